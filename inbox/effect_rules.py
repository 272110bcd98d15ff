"""What a call to the outside declares: how it may be repeated, how long it may take. Frozen values, no IO.

The question is never "may it be tried again?" but "is it safe to try again?", and only whoever knows the service can
answer. There is no default.

| rule | the service | while nobody knows whether the call was made |
|---|---|---|
| `idempotent_key(valid_s=...)` | answers a repeat with the first result, by its key | call again with the same key |
| `probe(fn)` | can be asked what became of a call | ask, once the deadline and a margin are over |
| `review()` | neither | a person decides |

A key that is older than `valid_s` goes by `then`: a probe or a review.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final

from .errors import Problem

RESULT_BYTES_MAX: Final = 16_384
"""A result is what a repeat needs to go on: ids and numbers, not a document."""

MARGIN_S: Final = 5.0
"""Between a call's deadline and the moment at which another attempt may look: a request that is on its way, a provider
that still works on it, a client whose timer was late. Raise it for a provider that takes longer to make up its mind.
"""


@final
@dataclass(frozen=True, slots=True)
class Done:
    """A probe's answer: the service did it. `result` is what the call would have returned (JSON)."""

    result: Any = None
    external_id: str | None = None


@final
@dataclass(frozen=True, slots=True)
class NotDone:
    """A probe's answer: the service surely did not do it, and will not do it any more."""


@final
@dataclass(frozen=True, slots=True)
class CannotTell:
    """A probe's answer: the service does not know, or is not to be reached."""

    why: str = ""


ProbeAnswer: TypeAlias = Done | NotDone | CannotTell


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """What a probe is asked about. `key` went out with the call, if the handler sent it."""

    name: str
    key: str
    operation_id: str
    external_id: str | None
    attempts: int
    tenant: str | None = None
    brand: str | None = None
    correlation_id: str = ""


ProbeFunction: TypeAlias = Callable[..., Awaitable[ProbeAnswer] | ProbeAnswer]
"""`fn(asked: Asked, ...) -> Done | NotDone | CannotTell`, `async def` or `def`. Further parameters are resources."""


@final
@dataclass(frozen=True, slots=True)
class Review:
    """A person decides."""


@final
@dataclass(frozen=True, slots=True)
class Probe:
    """The service is asked."""

    function: ProbeFunction


@final
@dataclass(frozen=True, slots=True)
class IdempotentKey:
    """The service knows a repeat by its key, for `valid_s` seconds from its first use."""

    valid_s: float
    then: Probe | Review


EffectRule: TypeAlias = IdempotentKey | Probe | Review

_REVIEW: Final = Review()


def review() -> Review:
    """Nobody can be asked, and a repeat would be a second effect: what is not known waits for a person."""
    return _REVIEW


def probe(function: ProbeFunction) -> Probe:
    """Ask the service with `function` before the call is repeated. It must be truthful: `NotDone` is acted on."""
    return Probe(function)


def idempotent_key(*, valid_s: float, then: Probe | Review = _REVIEW) -> IdempotentKey:
    """The service takes an idempotency key and keeps it for `valid_s` seconds; an older one goes by `then`."""
    return IdempotentKey(valid_s, then)


DoneNeed: TypeAlias = Literal["result", "external_id"]
"""What a person who says that a call was done has to give with it."""

NEEDS_DECLARED: Final = (("result",), ("external_id",), ("result", "external_id"), ("external_id", "result"))
"""All that may be declared, besides nothing."""


@final
@dataclass(frozen=True, slots=True)
class Effect:
    """A declared kind of call. Times are seconds, `result_bytes_max` is of the result as JSON.

    `not_done` says of an exception that the call was surely not made or refused, where the library's own table
    (`effect_faults`) does not know it: an SDK's own classes, say. `done_needs` is what its handlers cannot go on
    without: who resolves a call as done by hand has to give it.
    """

    name: str
    rule: EffectRule
    deadline_s: float
    provider: str = ""
    result_bytes_max: int = RESULT_BYTES_MAX
    margin_s: float = MARGIN_S
    not_done: Callable[[BaseException], bool] | None = None
    done_needs: tuple[DoneNeed, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "provider", self.provider or self.name)


def rule_name(rule: EffectRule) -> str:
    """The rule as the table holds it."""
    return _NAMES[type(rule)]


_NAMES: Final[dict[type, str]] = {IdempotentKey: "idempotent_key", Probe: "probe", Review: "review"}


def probe_of(rule: EffectRule) -> Probe | None:
    """The probe that a rule has, at once or for keys that are too old."""
    if isinstance(rule, IdempotentKey):
        rule = rule.then
    return rule if isinstance(rule, Probe) else None


def problems_of(effect: Effect) -> list[Problem]:
    """What is wrong with a declaration."""
    where = f"effect {effect.name!r}"
    rule: Any = effect.rule
    needs: Any = effect.done_needs
    then: Any = rule.then if isinstance(rule, IdempotentKey) else _REVIEW
    asked = then if isinstance(rule, IdempotentKey) else rule
    checks = (
        (isinstance(rule, IdempotentKey | Probe | Review), "its rule is none",
         "give idempotent_key(valid_s=...), probe(fn) or review()"),
        (effect.deadline_s > 0, "deadline_s is not usable", "give more than 0: how long one call may take"),
        (effect.margin_s >= 0, "margin_s is not usable", "give 0 or more"),
        (effect.result_bytes_max >= 0, "result_bytes_max is not usable", "give 0 or more"),
        (not isinstance(rule, IdempotentKey) or rule.valid_s > max(0, effect.deadline_s),
         "its key is not valid for even one call", "give a valid_s of more than deadline_s"),
        (isinstance(then, Probe | Review),
         "what to do with an old key is not said", "give then=review() or then=probe(fn)"),
        (needs in ((), *NEEDS_DECLARED),
         "done_needs is not known", "give a tuple of 'result', 'external_id' or both"),
        (not isinstance(asked, Probe) or callable(asked.function), "its probe is no function", "give probe(fn)"),
    )  # fmt: skip
    return [Problem(where, what, fix) for fine, what, fix in checks if not fine]
