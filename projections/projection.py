"""What a projection is: a name, a version, a batch function, and the bounds it declared. No IO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..dlq.policy import FailurePolicy

BATCH_MAX: Final = 5_000
"""Events in one transaction: beyond it the share of round trips is below a tenth and only latency and memory grow."""

BATCH_WAIT_MS: Final = 0
"""A batch is whatever came while the last one was written: waiting longer only pays where events trickle in."""

PROJECTION_DEADLINE_S: Final = 60.0
"""A batch that writes for a minute holds its locks for a minute: something is wrong with it."""


CONTINUE: Final = FailurePolicy("continue")
"""A projection goes on behind a failed event: what it writes is guarded by versions, or does not depend on order."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A declared projection. `takes` holds payload classes and full type names; empty means every type."""

    name: str
    version: int
    function: Callable[..., Any]
    takes: frozenset[type | str] = frozenset()
    freshness_s: float | None = None
    batch_max: int = BATCH_MAX
    batch_wait_ms: int = BATCH_WAIT_MS
    deadline_s: float = PROJECTION_DEADLINE_S
    policy: FailurePolicy = CONTINUE
    renamed_from: str | None = None
    only_if_newer: bool = False
    """Its writes are guarded: an event that comes behind a later one of its key changes nothing."""

    def accepts(self, type_name: str, value_type: type) -> bool:
        """Whether events of this type are for this projection (a tombstone is for every projection)."""
        return not self.takes or type_name in self.takes or value_type in self.takes
