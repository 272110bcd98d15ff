"""What is to be claimed of a batch: fresh events, their repeats, conflicts, and those that are set aside. No IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ..dlq.fates import BEHIND, Later
from ..inbox.claim import ClaimKey, Probe
from ..inbox.event import Event
from .fates import Fate, is_conflict

Events = list[Event[Any]]


@final
@dataclass(slots=True)
class Admitted:
    """What a projection gets of a batch, after its claims."""

    fresh: Events
    """The first of each id, until its claim says that it was handled before."""
    aside: Events = field(default_factory=list)
    """Those that get a failure row instead of a claim."""
    duplicates: Events = field(default_factory=list)
    conflicts: Events = field(default_factory=list)
    followers: Events = field(default_factory=list)
    """Later records of an id in the same batch; judged by the bytes that count for their id."""
    suspects: Events = field(default_factory=list)
    """Fresh ones that stand in the failure table with other bytes: repeats of a claim, or conflicts."""
    hashes: dict[bytes, int] = field(default_factory=dict)
    """Event id -> the payload hash that counts."""

    def sort_out(self, new: frozenset[bytes], taken: Mapping[bytes, int]) -> None:
        """Ids that were claimed before are repeats, or conflicts where the bytes differ."""
        fresh, self.fresh = self.fresh, []
        for event in fresh:
            if event.event_id in new:
                self.fresh.append(event)
            else:
                self._judge(event, taken.get(event.event_id, event.payload_hash))
        self.suspects = [event for event in self.suspects if event.event_id in new]
        self.hashes.update(taken)

    def judge_rest(self) -> None:
        """Followers, and suspects that nobody claimed."""
        self.conflicts += self.suspects
        for event in self.followers:
            self._judge(event, self.hashes[event.event_id])

    def _judge(self, event: Event[Any], payload_hash: int) -> None:
        (self.duplicates if event.payload_hash == payload_hash else self.conflicts).append(event)

    def waits(self, event: Event[Any], known: Probe, key: tuple[int, int]) -> None:
        """An event that has to wait for others of its key, unless the inbox knows its id."""
        claim_key = ClaimKey(*key, event.event_id)
        if claim_key in known.claims:
            self.hashes[event.event_id] = known.claims[claim_key]
            self._judge(event, known.claims[claim_key])
        elif rows := known.failures.get(claim_key):
            same = any(row.payload_hash == event.payload_hash for row in rows)
            self._judge(event, event.payload_hash if same else rows[0].payload_hash)
        else:
            self.aside.append(event)


def admit(events: Events, known: Probe, key: tuple[int, int], fates: Mapping[int, Fate]) -> Admitted:
    """What is to be claimed of `events`, before their claims are asked for.

    `known` holds what the failure table has of any of them, and also the claims of those that wait for others.
    """
    conflicting: Events = []
    if fates:
        conflicting = [event for event in events if id(event) in fates and is_conflict(fates[id(event)])]
        events = _without(events, conflicting)
    admitted = _leaders(events)
    admitted.aside = conflicting
    if fates:
        _set_aside(admitted, known, key, fates)
    if known.failures:
        _leave_known(admitted, known, key)
    return admitted


def _without(events: Events, others: Events) -> Events:
    left_out = {id(event) for event in others}
    return [event for event in events if id(event) not in left_out]


def _leaders(events: Events) -> Admitted:
    first = {event.event_id: event for event in reversed(events)}
    if len(first) == len(events):
        return Admitted(events)
    return Admitted(
        [event for event in events if first[event.event_id] is event],
        followers=[event for event in events if first[event.event_id] is not event],
        hashes={event_id: event.payload_hash for event_id, event in first.items()},
    )


def _set_aside(admitted: Admitted, known: Probe, key: tuple[int, int], fates: Mapping[int, Fate]) -> None:
    """Of the first ones of each id those that are not applied now. Their repeats end with them, whatever they met."""
    fresh, admitted.fresh = admitted.fresh, []
    for event in fresh:
        fate = fates.get(id(event))
        if fate is None:
            admitted.fresh.append(event)
        elif isinstance(fate, Later) and fate.verdict == BEHIND:
            admitted.waits(event, known, key)
        else:
            admitted.aside.append(event)


def _leave_known(admitted: Admitted, known: Probe, key: tuple[int, int]) -> None:
    """What stands in the failure table is not run: it is being dealt with there."""
    fresh, admitted.fresh = admitted.fresh, []
    for event in fresh:
        rows = known.failures.get(ClaimKey(*key, event.event_id), ())
        if any(row.payload_hash == event.payload_hash for row in rows):
            admitted.duplicates.append(event)
            continue
        admitted.fresh.append(event)
        if rows:
            admitted.suspects.append(event)


def in_batch_order(events: Collection[Event[Any]], aside: Events) -> Events:
    """Those set aside, as they came: rows of one lane get their places in this order."""
    chosen = {id(event) for event in aside}
    return [event for event in events if id(event) in chosen]
