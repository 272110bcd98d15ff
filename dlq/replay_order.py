"""What a replay is asked to do, and what its guards say to each letter. No IO.

| the inbox says | replayed? |
|---|---|
| failed: the row is dead | yes |
| done: its claim is there, with the same bytes | skipped; with `force` it runs again, under an identity of its own |
| queued already, or changed meanwhile by somebody else | skipped |
| unknown, discarded, a repeat of another | refused |
| replayed twice already | refused without `force` |
| of a tenant that was not named | refused, unless it was said that all tenants are meant |
| its payload was erased | refused |
| of a later version of its handler than the app has | refused |
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from ..inbox.errors import TidegateError
from ..inbox.identity import attempt_id16
from ..inbox.outcome import FailureState
from ..inbox.versions import is_run
from .selection import Entry, Filter

REPLAYS_MAX: Final = 2
"""A third replay of the same letter is a loop: the cause is not repaired. `force` says that a person knows better."""


class Left(enum.StrEnum):
    """What became of a letter that was not replayed."""

    SKIPPED = "skipped"
    """There is nothing to do: it is done, or under way."""
    REFUSED = "refused"
    """A guard says no."""


class Refusal(NamedTuple):
    """A letter that was not replayed, and why."""

    reference: str
    cause: str
    left: Left = Left.REFUSED


class Obstacle(NamedTuple):
    """Why a letter is not replayed."""

    cause: str
    left: Left = Left.REFUSED


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which letters to replay, who asks for it and why: by `references` (see `find`) or by `filter`, not both.

    `tenant` is the one whose letters are meant; `all_tenants` says that every tenant's are. `versions` are those of
    the app's handlers, where an app was named: (consumer, handler) -> version.
    """

    actor: str
    reason: str
    references: tuple[str, ...] = ()
    filter: Filter | None = None
    dry_run: bool = False
    force: bool = False
    new_operation: bool = False
    tenant: str | None = None
    all_tenants: bool = False
    to_source: str | None = None
    """The one topic to which the records are sent once more, where every group that reads it sees them; None: the rows
    are queued, and nobody else sees anything."""
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def __post_init__(self) -> None:
        if not self.actor or not self.reason.strip():
            raise TidegateError("a replay needs somebody who asks for it and a reason why")
        if bool(self.references) == (self.filter is not None):
            raise TidegateError("say which letters: either by their ids or by a filter")
        if self.named_tenant is not None and self.all_tenants:
            raise TidegateError("name one tenant, or say that all are meant, not both")

    @property
    def named_tenant(self) -> str | None:
        """The tenant whose letters are meant."""
        return self.tenant if self.filter is None or self.filter.tenant is None else self.filter.tenant


@final
@dataclass(frozen=True, slots=True)
class Known:
    """What the inbox knows of a letter besides its entry.

    `handler_id` and the hash of the bytes as received, the repair of its value, the identity that it ran under last;
    `claims` are the payload hashes of those of its identities that are claimed.
    """

    handler_id: int
    payload_hash: int
    edit_id: bytes | None = None
    attempt_id: bytes | None = None
    redacted: bool = False
    claims: Mapping[bytes, int] = field(default_factory=dict[bytes, int])

    def attempt_of(self, event_id: bytes) -> bytes | None:
        """The identity that its next run has anyway: that of its repair, or of its last run; None: the event's own."""
        return self.attempt_id if self.edit_id is None else attempt_id16(event_id, b"edit", self.edit_id)

    def is_done(self, event_id: bytes) -> bool:
        """Whether its effect is there. A repair of what is not done yet is a run of its own; so is what was forced."""
        attempt = self.attempt_of(event_id)
        if attempt is not None and (attempt in self.claims or self.edit_id is None):
            return attempt in self.claims
        return self.claims.get(event_id) == self.payload_hash


_STATES: Final[Mapping[FailureState, Obstacle]] = {
    FailureState.QUEUED: Obstacle("it is queued already", Left.SKIPPED),
    FailureState.UNKNOWN: Obstacle("its outcome is unknown: say what became of it (`tidegate review`)"),
    FailureState.DISCARDED: Obstacle("it was discarded"),
    FailureState.LINKED: Obstacle("it is a repeat and ends with its first one"),
}

CHANGED: Final = Obstacle("it was changed meanwhile", Left.SKIPPED)
DONE: Final = Obstacle("it was handled already", Left.SKIPPED)
ERASED: Final = Obstacle("its payload was erased")
ELSEWHERE: Final = Obstacle("it came from another topic than the one that was named (--to-source)")
NOT_KNOWN: Final = Obstacle("no letter is known under this id")


def obstacle(entry: Entry, known: Known, order: Order) -> Obstacle | None:
    """Why this letter must not be replayed; None where it may."""
    if entry.state is not FailureState.DEAD:
        return _STATES[entry.state]
    if (other := tenant_obstacle(entry.tenant, order)) is not None:
        return other
    if known.redacted:
        return ERASED
    if (newer := version_obstacle(entry.consumer, entry.handler, entry.version, order)) is not None:
        return newer
    if not order.force and entry.replay_count >= REPLAYS_MAX:
        return too_often(entry.replay_count)
    if not order.force and known.is_done(entry.event_id):
        return DONE
    if order.to_source is not None and entry.topic != order.to_source:
        return ELSEWHERE
    return None


def too_often(replays: int) -> Obstacle:
    """The loop guard's word. Anybody may have written the number: each other one would be a cause of its own."""
    times = replays if replays <= _REPLAYS_TOLD_MAX else f"more than {_REPLAYS_TOLD_MAX}"
    return Obstacle(f"it was replayed {times} times already: repair the cause, or force it (--force)")


_REPLAYS_TOLD_MAX: Final = 9


def kind_obstacle(consumer: str, handler: str, version: int, tenant: str | None, order: Order) -> Obstacle | None:
    """What is in the way of all letters of a handler's version and a tenant, whatever else is to be said of them."""
    return tenant_obstacle(tenant, order) or version_obstacle(consumer, handler, version, order)


def tenant_obstacle(tenant: str | None, order: Order) -> Obstacle | None:
    """Whether the order says that this tenant's letters are meant."""
    named = order.named_tenant
    if named is not None:
        return None if tenant == named else Obstacle("it is another tenant's than the one that was named (--tenant)")
    if tenant is None or order.all_tenants:
        return None
    return Obstacle("it is of a tenant: say whose letters are meant (--tenant NAME, or --all-tenants)")


def version_obstacle(consumer: str, handler: str, version: int, order: Order) -> Obstacle | None:
    """Whether the app that was named is as new as the letter."""
    mine = order.versions.get((consumer, handler))
    if mine is None or version <= mine or is_run(version):
        return None
    return Obstacle(f"it is of version {version} of its handler, this app has {mine}: use the newer release")


def identity_of_run(entry: Entry, known: Known, *, force: bool) -> bytes | None:
    """What the run is claimed by: None, the event's own id; else an identity that a done event does not hold up."""
    attempt, event_id = known.attempt_of(entry.event_id), entry.event_id
    taken = attempt in known.claims if attempt is not None else event_id in known.claims
    if not (taken and force):
        return attempt
    return attempt_id16(event_id, b"forced", b"%d/%d" % (entry.id, entry.replay_count + 1))


def new_operation_id(entry: Entry) -> str:
    """Another operation of the same event: its calls are new ones."""
    return f"{entry.operation_id[:_OPERATION_CHARS]}/replay-{entry.id}-{entry.replay_count + 1}"


_OPERATION_CHARS: Final = 240
"""With what is added it stays below what the column's index takes."""


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What a replay did, or would do on a dry run."""

    dry_run: bool
    read: int
    replayed: tuple[Entry, ...]
    refused: tuple[Refusal, ...]
    """Whatever was not replayed: what was skipped too."""
    more: bool = False
    """The filter matches more letters than one transaction takes: go on behind `last_id`."""
    last_id: int = 0
    """The highest row number that was read: what was refused is not read again behind it."""

    @property
    def by_reason(self) -> Mapping[str, int]:
        """How many of the replayed letters had which reason."""
        return Counter(entry.reason for entry in self.replayed)

    @property
    def by_cause(self) -> Mapping[str, int]:
        """How many were not replayed for which cause."""
        return Counter(refusal.cause for refusal in self.refused)

    def count(self, left: Left) -> int:
        """How many were skipped, or refused."""
        return sum(refusal.left is left for refusal in self.refused)
