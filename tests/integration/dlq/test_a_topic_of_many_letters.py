"""A dead-letter topic with a million letters is read in bounded steps: never more of it in memory than one of them."""

from __future__ import annotations

import datetime
import gc
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.integration.dlq.conftest import Graveyard
from tidegate.dlq.adopting import Handler, Target
from tidegate.dlq.adoptions import RECORDS_MAX, Adoptions
from tidegate.dlq.letter import Letter, write_letter
from tidegate.dlq.reach import unlimited
from tidegate.dlq.replay_journal import Part
from tidegate.dlq.replay_order import Order
from tidegate.dlq.selection import Filter
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.identity import digest16, payload_hash8

LETTERS: Final = 1_000_000
THERE: Final = 20
"""One offset of so many is a letter: compaction took the others. Fifty thousand are read in half a minute."""


class _Stretch(NamedTuple):
    records: tuple[Record, ...]
    next_offset: int
    at_end: bool


@dataclass
class _Topic:
    """A million offsets, made when they are asked for."""

    asked: list[int] = field(default_factory=list[int])
    alive: list[int] = field(default_factory=list[int])

    async def read(self, partition: Partition, offset: int, records_max: int) -> _Stretch:
        """The next letters."""
        self.asked.append(records_max)
        if len(self.asked) % 20 == 1:
            self.alive.append(sum(1 for found in gc.get_objects() if type(found) is Record))
        behind = min(LETTERS, offset + records_max * THERE)
        records = tuple(_letter(partition, at) for at in range(offset, behind, THERE))
        return _Stretch(records, behind, behind == LETTERS)


def _letter(partition: Partition, offset: int) -> Record:
    letter = Letter(
        key=None, value=b"{}", dead_letter_id=f"{offset:032x}", reason="rejected", consumer="billing",
        handler="revenue", handler_version=1, origin_topic="shop.orders", origin_partition=3, origin_offset=offset,
        replay_count=2 if offset % (2 * THERE) else 0,
    )  # fmt: skip
    key, value, headers = write_letter(letter)
    return Record(partition.topic, partition.number, offset, key, value, headers)


def _event(record: Record) -> Event[None]:
    name = b"%d" % record.offset
    return Event(
        None, record, event_id=digest16(b"t", name), id_text=name.decode(), payload_hash=payload_hash8(record.value)
    )


async def test_a_million_offsets_are_planned_in_steps_and_counted(graveyard: Graveyard) -> None:
    """The dry run of all of it: half are refused, and what a step made is gone with it.

    Case: B39
    Parts: real (PostgreSQL), fake (the topic)
    Red when: dlq/adoptions.py's plan keeps what each step judged
    """
    topic = _Topic()
    target = Target(
        consumer="billing", source="shop.orders", partitions=4, incarnation=0,
        handlers={"revenue": Handler(graveyard.handlers["revenue"], 1, alone=True)}, scope_of=lambda _: (None, None),
    )  # fmt: skip
    store = graveyard.gate().store
    now = datetime.datetime.now(datetime.UTC)
    adoptions = Adoptions(store, topic, target, _event, lambda: now, permit=unlimited("ann"))
    order = Order(actor="ann", reason="restored", filter=Filter(state=None), dry_run=True)
    plan = await adoptions.plan(order, [Part(Partition("shop.orders.billing.dlq", 0), 0, LETTERS)])
    read = LETTERS // THERE
    assert (plan.read, plan.replayed, sum(plan.refused.values())) == (read, read // 2, read // 2)
    assert set(topic.asked) == {RECORDS_MAX}
    assert len(topic.asked) == read // RECORDS_MAX
    assert max(topic.alive) <= 4 * RECORDS_MAX, "a letter and the record in it, of this step and the last one"
