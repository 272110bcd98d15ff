"""Keeps an exception from flying where it does harm: through librdkafka's C frames, or out of the client thread.

It is reported as fatal to the listener by whoever made the containment, and logged with its stack. A raising callback
would make a whole read vanish while the positions move on (B01).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import final


@final
class Containment:
    """`with containment:` lets nothing out; what came is given to `report`."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        self._report(error)
        return True
