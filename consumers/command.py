"""A declared command and the function that carries its class out, as values. No IO; time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ..dlq.policy import FailurePolicy
from .injection import Wants, read_wants

CONCURRENCY: Final = 16
"""Commands of one handler at once: enough to hide a 10 ms call at 1,600 a second, few enough for a small pool."""

COMMAND_DEADLINE_S: Final = 30.0
"""Most HTTP clients give up within 30 s; a handler that takes longer should say so."""


@dataclass(frozen=True, slots=True)
class Command:
    """A declared command: the trigger that makes it out of an event, and how it runs."""

    name: str
    trigger: Callable[..., Any]
    takes: frozenset[type | str]
    concurrency: int
    deadline_s: float
    policy: FailurePolicy
    rate_per_s: float | None = None
    renamed_from: str | None = None

    def accepts(self, type_name: str, value_type: type) -> bool:
        """Whether events of this type are for this command."""
        return type_name in self.takes or value_type in self.takes


@dataclass(frozen=True)
class HandlerFunction:
    """The one function that carries out commands of a class."""

    function: Callable[..., Any]

    @cached_property
    def wants(self) -> Wants:
        """What it wants. Read late: a class that it names may stand further down in its module."""
        return read_wants(self.function)
