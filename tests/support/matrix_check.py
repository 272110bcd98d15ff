"""Judges what a chain of the crash matrix left behind: each event is claimed, or stands in a row with its reason."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.crash_check import LETTER_ID, MESSAGE_ID, header_of, read_all
from tests.support.matrix import BEFORE_CALLS, IN_DOUBT, Ends, Kind, Sent, Step
from tests.support.matrix_world import Chain

ORIGIN_PARTITION: Final = "tidegate-origin-partition"
ORIGIN_OFFSET: Final = "tidegate-origin-offset"

Row = tuple[str, str, str]
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class Left:
    """What is there at the end."""

    claims: set[tuple[str, bytes]] = field(default_factory=set[tuple[str, bytes]])
    """(handler, event id)."""
    rows: dict[tuple[str, int, int], Row] = field(default_factory=dict[tuple[str, int, int], Row])
    """(handler, partition, offset) -> state, reason, message."""
    sums: dict[str, int] = field(default_factory=dict[str, int])
    journal: Counter[str] = field(default_factory=Counter[str])
    told: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The event's id -> the ids of the records that it published."""
    dead: dict[int, Place] = field(default_factory=dict[int, Place])
    """Id of each dead row -> where its record lies."""
    letters: dict[str, int | None] = field(default_factory=dict[str, int | None])
    """Id of each letter that was written -> the row that it tells of."""
    letters_sent: defaultdict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    """Id of each letter in the topic -> the records that it says it is of."""
    checked: int = 0


async def differences(chain: Chain) -> list[str]:
    """What is not as it must be, each in a line."""
    left = await _look(chain)
    found = [line for record in chain.sent for line in _of_one(chain, left, record)]
    found += _doubts(chain, left)
    found += _letters(chain, left)
    if left.checked:
        found.append(f"{left.checked} rows of refused events")
    return found


async def _look(chain: Chain) -> Left:
    left, db, places = Left(), chain.db, chain.places
    for (table,) in await db.fetch("SELECT table_name FROM tidegate.generation"):
        claims = await db.fetch(
            f"SELECT h.name, c.event_id FROM tidegate.{table} c JOIN tidegate.handler h ON h.id = c.handler"
        )
        left.claims |= {(name, event_id) for name, event_id in claims}
    rows = await db.fetch(
        """SELECT h.name, f.partition, f.record_offset, f.state, f.reason, f.message, f.id FROM tidegate.failure f
             JOIN tidegate.handler h ON h.id = f.handler"""
    )
    left.rows = {(name, partition, at): (state, reason, why) for name, partition, at, state, reason, why, _ in rows}
    left.dead = {id_: (partition, at) for _, partition, at, state, _, _, id_ in rows if state == "dead"}
    left.sums = {row[0]: row[1] for row in await db.fetch("SELECT id, times FROM public.sums")}
    left.journal = Counter(row[0] for row in await db.fetch("SELECT id FROM public.journal"))
    left.checked = await db.fetchval("SELECT count(*) FROM public.checked")
    for message in read_all(places.bootstrap, places.out_topic):
        left.told[json.loads(message.value() or b"")["id"]].add(header_of(message, MESSAGE_ID))
    written = await db.fetch("SELECT id, failure_id FROM tidegate.outbox WHERE kind = 'letter'")
    left.letters = {id_.hex(): failure_id for id_, failure_id in written}
    for message in read_all(places.bootstrap, places.letters):
        place = (int(header_of(message, ORIGIN_PARTITION)), int(header_of(message, ORIGIN_OFFSET)))
        left.letters_sent[header_of(message, LETTER_ID)].add(place)
    return left


def _letters(chain: Chain, left: Left) -> list[str]:
    """One for each dead row, in the topic under one id however often it was sent, and none for nothing."""
    owed = left.dead | chain.put_back
    told = Counter(left.letters.values())
    found = [f"{told[id_]} letters of the dead row {id_} at {owed[id_]}" for id_ in owed if told[id_] != 1]
    found += [f"{told[id_]} letters of {id_}, which is no dead row" for id_ in told.keys() - owed.keys()]
    expected = {letter: {owed[id_]} for letter, id_ in left.letters.items() if id_ in owed}
    for letter in expected.keys() | left.letters_sent.keys():
        if left.letters_sent.get(letter) != expected.get(letter):
            found.append(f"letter {letter} is of {left.letters_sent.get(letter)}, not {expected.get(letter)}")
    return found


def _of_one(chain: Chain, left: Left, record: Sent) -> list[str]:
    """What is wrong with one event."""
    kind, handler = record.step.kind, record.step.kind.value
    claimed = (handler, record.event_id(chain.places.topic)) in left.claims
    row = left.rows.get((handler, *chain.places_of[record]))
    expected: dict[str, tuple[Any, Any]] = {"standing once": (claimed + (row is not None), 1)}
    if kind is Kind.PICKY:
        expected["row of the record"] = (left.rows.get(("", *chain.places_of[record])), None)
    is_unknown = row is not None and row[0] == "unknown"
    if not (is_unknown and kind is Kind.REVIEWED):
        expected["claimed"] = (claimed, kind.ends is Ends.CLAIMED)
        expected["row"] = (row and row[0], "dead" if kind.ends is Ends.DEAD else None)
    if kind is Kind.PROJECTION:
        expected["sums"] = (left.sums.get(record.id), 1)
    if kind in (Kind.TX, Kind.AGAIN):
        expected["journal"] = (left.journal[record.id], 1)
    if kind is Kind.PUBLISH:
        expected["records published"] = (len(left.told[record.id]), 1)
    if kind.is_effect:
        expected |= _of_effect(chain, record, is_unknown=is_unknown)
    return [
        f"{record.id}: {what} is {have}, not {want} ({row})" for what, (have, want) in expected.items() if have != want
    ]


def _of_effect(chain: Chain, record: Sent, *, is_unknown: bool) -> dict[str, tuple[Any, Any]]:
    """What the provider says."""
    done, calls = chain.provider.done[record.id], chain.provider.requests[record.id]
    if is_unknown:
        return {"calls of an unknown effect": (calls <= 1, True)}
    if record.step.kind is Kind.KEYED:
        return {"effects": (done, 1)}
    return {"effects": (done, 1), "calls": (calls, 1)}


def _doubts(chain: Chain, left: Left) -> list[str]:
    """UNKNOWN where nobody can know: of each step that dies beside a call one event, since they run one at a time."""
    steps: defaultdict[Step, list[str]] = defaultdict(list)
    for record in chain.sent:
        if record.step.kind is Kind.REVIEWED:
            steps[record.step].append(left.rows.get((Kind.REVIEWED.value, *chain.places_of[record]), ("",))[0])
    return [
        f"{step.name}: {unknown} unknown"
        for step, states in steps.items()
        if (unknown := states.count("unknown")) > (step.point not in BEFORE_CALLS)
        or (step.point in IN_DOUBT and not unknown)
    ]
