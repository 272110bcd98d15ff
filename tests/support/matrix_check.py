"""Judges what a chain of the crash matrix left behind: each event is claimed, or stands in a row with its reason."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.support.crash_check import LETTER_ID, MESSAGE_ID, header_of, read_all
from tests.support.matrix import BEFORE_CALLS, IN_DOUBT, Ends, Kind, Sent, Step
from tests.support.matrix_world import Chain

Row = tuple[str, str, str]


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
    letters: set[str] = field(default_factory=set[str])
    letters_owed: set[str] = field(default_factory=set[str])
    checked: int = 0


async def differences(chain: Chain) -> list[str]:
    """What is not as it must be, each in a line."""
    left = await _look(chain)
    found = [line for record in chain.sent for line in _of_one(chain, left, record)]
    found += _doubts(chain, left)
    if left.letters != left.letters_owed:
        found.append(
            f"letters: missing {left.letters_owed - left.letters}, nobody's {left.letters - left.letters_owed}"
        )
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
        """SELECT h.name, f.partition, f.record_offset, f.state, f.reason, f.message FROM tidegate.failure f
             JOIN tidegate.handler h ON h.id = f.handler"""
    )
    left.rows = {(name, partition, at): (state, reason, why) for name, partition, at, state, reason, why in rows}
    left.sums = {row[0]: row[1] for row in await db.fetch("SELECT id, times FROM public.sums")}
    left.journal = Counter(row[0] for row in await db.fetch("SELECT id FROM public.journal"))
    left.checked = await db.fetchval("SELECT count(*) FROM public.checked")
    for message in read_all(places.bootstrap, places.out_topic):
        left.told[json.loads(message.value() or b"")["id"]].add(header_of(message, MESSAGE_ID))
    left.letters = {header_of(message, LETTER_ID) for message in read_all(places.bootstrap, places.letters)}
    left.letters_owed = {row[0].hex() for row in await db.fetch("SELECT id FROM tidegate.outbox WHERE kind = 'letter'")}
    return left


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
