"""Compares what a crash test left behind with its input: read models, claims, checkpoints, failure rows, records."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Final, cast

from confluent_kafka import Consumer, Message, TopicPartition

from tests.support.crash_input import HANDLERS, Expected, expected
from tests.support.crash_world import World

MESSAGE_ID: Final = "tidegate-message-id"
LETTER_ID: Final = "tidegate-dead-letter-id"


async def differences(world: World, *, in_order: bool = True) -> list[str]:
    """What is not as the input demands, each in a line; nothing if all is well.

    `in_order=False` where a database was put back under a running worker: until that notices, its commands may have
    written of later events.
    """
    want = expected(world.sent)
    found = _Found()
    await _read_models(world, want, found, in_order)
    await _claims(world, want, found)
    await _positions(world, found)
    await _failures(world, want, found)
    _announcements(world, want, found)
    await _letters(world, found)
    return found.lines


class _Found:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def compare(self, what: str, have: object, want: object) -> None:
        if have != want:
            self.lines.append(f"{what}: have {have}, want {want}")

    def compare_sets(self, what: str, have: set[Any], want: set[Any]) -> None:
        if have != want:
            self.lines.append(f"{what}: missing {_few(want - have)}, too many {_few(have - want)}")


def _few(items: set[Any]) -> str:
    return f"{len(items)} {sorted(map(str, items))[:5]}"


async def _read_models(world: World, want: Expected, found: _Found, in_order: bool) -> None:
    for table, column, wanted in (("sums", "total", want.sums), ("counts", "n", want.counts)):
        rows = await world.db.fetch(f"SELECT customer, {column} FROM public.{table}")
        have = {row[0]: row[1] for row in rows}
        for customer in sorted(have.keys() | wanted.keys()):
            found.compare(f"{table} of {customer}", have.get(customer, 0), wanted.get(customer, 0))
    journal: defaultdict[str, list[str]] = defaultdict(list)
    for row in await world.db.fetch("SELECT id, customer FROM public.journal ORDER BY place"):
        journal[row["customer"]].append(row["id"])
    for customer in sorted(journal.keys() | want.journal.keys()):
        have = journal[customer] if in_order else sorted(journal[customer], key=_number)
        _compare_order(f"journal of {customer}", have, want.journal.get(customer, []), found)


def _compare_order(what: str, have: list[str], want: list[str], found: _Found) -> None:
    if have == want:
        return
    twice = sorted({entry for entry in have if have.count(entry) > 1})
    found.compare_sets(what, set(have), set(want))
    found.lines.append(f"{what}: more than once {twice[:5]}; in order: {have == sorted(have, key=_number)}")


def _number(id_text: str) -> int:
    return int(id_text.rpartition("-")[2])


async def _claims(world: World, want: Expected, found: _Found) -> None:
    tables = await world.db.fetch("SELECT table_name FROM tidegate.generation")
    have: defaultdict[str, set[bytes]] = defaultdict(set)
    for table in tables:
        rows = await world.db.fetch(
            f"SELECT h.name, c.event_id FROM tidegate.{table[0]} c JOIN tidegate.handler h ON h.id = c.handler"
        )
        for row in rows:
            have[row[0]].add(row[1])
    ids = {record.id: record.event_id(world.places.topic) for record in world.sent}
    for handler in HANDLERS:
        found.compare_sets(f"claims of {handler}", have[handler], {ids[i] for i in want.claims[handler]})


async def _positions(world: World, found: _Found) -> None:
    rows = await world.db.fetch(
        """SELECT h.name, c.partition, c.next_offset FROM tidegate.checkpoint c
             JOIN tidegate.handler h ON h.id = c.handler"""
    )
    have = {(row[0], row[1]): row[2] for row in rows if row[0]}
    for handler in HANDLERS:
        for partition, end in world.ends.items():
            found.compare(f"checkpoint of {handler} in {partition}", have.get((handler, partition)), end)
    for partition, committed in world.committed().items():
        found.compare(f"Kafka's offset of {partition}", committed, world.ends[partition])


async def _failures(world: World, want: Expected, found: _Found) -> None:
    rows = await world.db.fetch(
        """SELECT h.name, f.state, f.id_text, f.reason FROM tidegate.failure f
             JOIN tidegate.handler h ON h.id = f.handler"""
    )
    dead: defaultdict[str, list[str]] = defaultdict(list)
    for name, state, id_text, reason in rows:
        if state == "dead":
            dead[name].append(id_text)
            found.compare(
                f"reason of {id_text} in {name or 'no handler'}", reason, "rejected" if name else "undecodable"
            )
        elif state != "linked" or id_text not in want.dead[name]:
            found.lines.append(f"a row of {name}, {id_text} is {state}: {reason}")
    for handler in HANDLERS:
        found.compare(f"dead of {handler}", sorted(dead[handler]), sorted(want.dead[handler]))
    found.compare("undecodable", len(dead[""]), want.undecodable)


def _announcements(world: World, want: Expected, found: _Found) -> None:
    """Each id at least once, no other id, and in order within each customer where it first occurs."""
    messages = read_all(world.places.bootstrap, world.places.out_topic)
    ids: dict[str, str] = {}
    by_customer: defaultdict[str, list[str]] = defaultdict(list)
    for message in messages:
        announcement = json.loads(message.value() or b"")
        stable, event = header_of(message, MESSAGE_ID), announcement["id"]
        if stable not in ids:
            by_customer[announcement["customer"]].append(event)
        found.compare(f"the announcement under {stable}", ids.setdefault(stable, event), event)
    for customer in sorted(by_customer.keys() | want.announced.keys()):
        have, wanted = by_customer.get(customer, []), want.announced.get(customer, [])
        _compare_order(f"announcements of {customer}", have, wanted, found)


async def _letters(world: World, found: _Found) -> None:
    rows = await world.db.fetch("SELECT id FROM tidegate.outbox WHERE kind = 'letter'")
    topic = f"{world.places.topic}.{world.places.consumer}.dlq"
    have = {header_of(message, LETTER_ID) for message in read_all(world.places.bootstrap, topic)}
    found.compare_sets("letters", have, {row[0].hex() for row in rows})
    dead = await world.db.fetchval("SELECT count(*) FROM tidegate.failure WHERE state = 'dead'")
    found.compare("letters of the dead", len(rows), dead)


def read_all(bootstrap: str, topic: str) -> list[Message]:
    """Every record of a topic, in the order of its partitions."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        partitions = reader.list_topics(topic, 30).topics[topic].partitions
        ends = {p: reader.get_watermark_offsets(TopicPartition(topic, p), 30) for p in partitions}
        reader.assign([TopicPartition(topic, p, low) for p, (low, _) in ends.items()])
        return _read(reader, sum(high - low for low, high in ends.values()))
    finally:
        reader.close()


def _read(reader: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        got = reader.consume(count - len(messages), 30)
        assert got, f"the topic gave {len(messages)} of {count} records"
        messages += [message for message in got if message.error() is None]
    return messages


def header_of(message: Message, name: str) -> str:
    """A header as text."""
    headers = cast("list[tuple[str, bytes | str | None]]", message.headers() or [])
    for key, value in headers:
        if key == name:
            return value.decode() if isinstance(value, bytes) else str(value)
    raise AssertionError(f"a record of {message.topic()} has no header {name}")
