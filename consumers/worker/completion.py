"""What became of one handled event, on its way to the database. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, final

from ...dlq.fates import UNKNOWN_EFFECT, ForReview, Later
from ...dlq.policy import FailurePolicy
from ...inbox import claim, outbox
from ...inbox.failure_rows import Verdict
from ...inbox.outcome import Dead, Reason
from ..engine.signals import LaneItem
from .parked_keys import Lane

COMMAND_VERSION: Final = 0
"""Commands have no versions: the column holds a constant."""


Fate: TypeAlias = Dead | Later | ForReview
"""What becomes of an event that was not handled: the state of its failure row."""


def _no_one() -> None:
    """Nobody waits for it."""


@final
@dataclass(slots=True, eq=False)
class Completion:
    """One event that came to an end. `fate` says what becomes of one that was not handled; `claimed` that its claim is
    durable already, by its own transaction or, where it is a `repeat`, by another one. `skipped` is as `Ended` says.
    `landed` is called once nothing is left to do for it.

    Nobody changes one; it is not frozen because that makes it three times as slow to make, and each event has one.
    """

    track: str
    handler_id: int
    item: LaneItem
    policy: FailurePolicy
    outgoing: tuple[outbox.NewOutgoing, ...] = ()
    fate: Fate | None = None
    attempts: int = 1
    claimed: bool = False
    repeat: bool = False
    skipped: str | None = None
    seconds: float = 0.0
    landed: Callable[[], None] = _no_one

    @property
    def claim_key(self) -> claim.ClaimKey:
        """What it claims."""
        return claim.ClaimKey(self.handler_id, COMMAND_VERSION, self.item.event.event_id)

    @property
    def known_by(self) -> tuple[claim.ClaimKey, int]:
        """What two deliveries of one event have in common."""
        return self.claim_key, self.item.event.payload_hash

    @property
    def alone(self) -> bool:
        """It stands in no lane: its row neither waits for others nor holds them."""
        return self.policy.on_failure == "continue" or self.item.event.record.key is None

    @property
    def lane(self) -> Lane | None:
        """The lane that its row will hold, None where it holds none."""
        key = self.item.event.record.key
        if self.alone or key is None or not self.holds_lane:
            return None
        return Lane(self.handler_id, self.item.partition.topic, key)

    @property
    def holds_lane(self) -> bool:
        """Whether its row makes the later events of its key wait."""
        return self.holds_dead if isinstance(self.fate, Dead) else self.fate is not None

    @property
    def holds_dead(self) -> bool:
        """A dead event of this handler holds its key until a person has decided."""
        return self.policy.after_dead == "hold" and not self.alone

    def ending_as(self, fate: Fate) -> Completion:
        """The same, but it turned out to be this."""
        return replace(self, outgoing=(), fate=fate, claimed=False, skipped=None)

    def as_conflict(self, conflict: Dead) -> Completion:
        """Its id was handled with other bytes: dead, or a person's to decide, as its handler declares."""
        return self.ending_as(conflict_fate(conflict, self.policy, self.attempts))


def conflict_fate(conflict: Dead, policy: FailurePolicy, attempts: int) -> Fate:
    """What a conflict is to a handler of this policy; any other death stays what it is."""
    if conflict.reason is not Reason.CONFLICT or policy.on_conflict != "review":
        return conflict
    return ForReview(Verdict.of(conflict), attempts)


def in_doubt_fate(fate: Fate, effect_id: int | None, attempts: int) -> Fate:
    """What `fate` is while nobody knows the end of this call of its event's: a row names it, and nothing dies."""
    if effect_id is None or isinstance(fate, ForReview):
        return fate
    if isinstance(fate, Later):
        return fate if fate.effect_id is not None else replace(fate, effect_id=effect_id)
    why = f"a call of it is in doubt; without that it would be dead ({fate.reason}): {fate.why}"
    return ForReview(Verdict.of(fate)._replace(reason=UNKNOWN_EFFECT, message=why), attempts, effect_id)


Admitted = Callable[[Mapping[Completion, Dead]], list[Completion]]
"""What may be written of those that turned out to be conflicts."""


def all_of_them(again: Mapping[Completion, Dead]) -> list[Completion]:
    """Where nobody holds any back."""
    return [member.as_conflict(dead) for member, dead in again.items()]
