"""A declared command and the function that carries its class out, as values. No IO; time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ..dlq.policy import FailurePolicy
from ..inbox.effect_rules import Effect, Review
from ..inbox.errors import Problem
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
    places: int | None
    """How many at once, None where the declaration does not say."""
    deadline_s: float
    policy: FailurePolicy
    rate_per_s: float | None = None
    renamed_from: str | None = None
    effects: tuple[str, ...] | None = None
    """The calls to the outside that it makes; None: any that the app declares."""
    declared: Mapping[str, Effect] = field(default_factory=dict[str, Effect])
    """All that the app declares; some may come later than the command."""

    @property
    def concurrency(self) -> int:
        """How many at once. One, unless it is said, where a kill would put each of them to review."""
        if self.places is not None:
            return self.places
        return 1 if any(isinstance(effect.rule, Review) for effect in self.calls) else CONCURRENCY

    @property
    def calls(self) -> tuple[Effect, ...]:
        """The effects that it may make."""
        names = self.declared if self.effects is None else self.effects
        return tuple(self.declared[name] for name in names if name in self.declared)

    def problems(self, consumer: str) -> list[Problem]:
        """Effects that it names and nobody declares."""
        where = f"handler {self.name!r} of {consumer!r}"
        unknown = [name for name in self.effects or () if name not in self.declared]
        fix = "declare it with app.effect(...), or correct effects="
        return [Problem(where, f"no effect {name!r} is declared", fix) for name in unknown]

    def warnings(self) -> list[str]:
        """What is allowed, but should be known."""
        if self.places is not None or self.effects is not None or self.concurrency > 1:
            return []
        return [
            f"command {self.name!r} runs one at a time, since it may make calls under review(): name the effects that "
            "it makes with effects=[...], or say concurrency="
        ]

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
