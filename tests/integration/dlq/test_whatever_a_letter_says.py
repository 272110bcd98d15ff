"""Anybody may write a dead-letter topic: whatever stands in a letter's headers, its row is one that the inbox takes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.integration.dlq.conftest import REJECTED, Graveyard
from tidegate.consumers import App, Raw, Scope, header
from tidegate.consumers.adoption import intake_of
from tidegate.consumers.intake import scope_of
from tidegate.consumers.layers import load
from tidegate.dlq.adopting import Handler, Target
from tidegate.dlq.adoptions import Adoptions
from tidegate.dlq.burial import Burial
from tidegate.dlq.letter import Letter, read_letter, write_letter
from tidegate.dlq.letter_headers import OUR_NAMES
from tidegate.dlq.reach import unlimited
from tidegate.dlq.replay_journal import Part
from tidegate.dlq.replay_order import Order
from tidegate.dlq.selection import Filter
from tidegate.inbox import failure
from tidegate.inbox.event import Header, Partition, Record
from tidegate.inbox.failure_rows import Failure, Verdict
from tidegate.inbox.finding import failure_of

SOURCE: Final = "shop.orders"
PLACE: Final = Partition(f"{SOURCE}.billing.dlq", 0)

OURS: Final = write_letter(
    Letter(
        key=b"k", value=b"v", headers=(), dead_letter_id="ab", reason="rejected", exception_type="ValueError",
        consumer="billing", handler="revenue", handler_version=1, attempts=1, origin_topic=SOURCE, origin_partition=3,
        origin_incarnation=0, origin_offset=7, origin_timestamp_ms=5, origin_timestamp_type=1, replay_count=0,
    )
).headers  # fmt: skip
SPRING: Final = (
    ("kafka_dlt-original-topic", SOURCE.encode()),
    ("kafka_dlt-original-partition", struct.pack(">i", 3)),
    ("kafka_dlt-original-offset", struct.pack(">q", 7)),
)
STREAMS: Final = (("__streams.errors.exception", b"java.lang.RuntimeException"),)

OF_SPRING: Final = (
    *("original-topic", "original-partition", "original-offset", "original-timestamp", "original-timestamp-type"),
    *("original-consumer-group", "exception-fqcn", "exception-cause-fqcn", "exception-message"),
    *("exception-stacktrace", "key-exception-fqcn"),
)
OF_OTHERS: Final = (
    *("topic", "partition", "offset", "exception", "message", "stacktrace", "group", "delivery.count"),
    *("class.name", "connector.name", "exception.class.name", "exception.message"),
)
FOREIGN: Final = (
    *[prefix + name for prefix in ("kafka_dlt-", "kafka_") for name in OF_SPRING],
    *[f"__{family}.errors.{name}" for family in ("streams", "connect", "dlq") for name in OF_OTHERS],
    *("retry_topic-attempts", "retry_topic-original-timestamp", "kafka_deliveryAttempt"),
)
OF_THE_RECORD: Final = ("id", "tenant", "brand", "correlation-id", "traceparent", "tidegate-", "")

NUMBERS: Final = (
    *(-(2**63) - 1, -(2**63), -(2**31), -1, 0, 1, 2, 3, 4, 99, 10**6, 10**6 + 1),
    *(2**30, 2**31 - 1, 2**31, 2**63 - 2, 2**63 - 1, 2**63, 10**30),
)


def big_endian(number: int, size: int) -> bytes:
    """As Java writes a number into so many bytes, cut off where it has more."""
    return (number % 2 ** (8 * size)).to_bytes(size, "big")


numbers = st.sampled_from(NUMBERS)
long_or_odd = st.sampled_from(["c" * 5_000, "\U0001d4b3" * 1_000, "\0" * 300, "\x1b[31m", "\ud800", ",", " "])
texts = st.text(st.characters(exclude_categories=()), max_size=400) | long_or_odd
values = (
    st.none()
    | st.binary(max_size=40)
    | numbers.map(lambda n: str(n).encode())
    | st.builds(big_endian, numbers, st.sampled_from([1, 2, 4, 8, 9]))
    | texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
)
names = st.sampled_from(sorted(OUR_NAMES)) | st.sampled_from(FOREIGN) | st.sampled_from(OF_THE_RECORD)
changes = st.dictionaries(names, values, max_size=5)


class Forged(NamedTuple):
    """A letter that somebody wrote: a good one, some headers of which say something else."""

    good: tuple[Header, ...]
    changed: dict[str, bytes | None]
    key: bytes | None = b"k"
    value: bytes | None = b"v"

    def record(self, n: int) -> Record:
        """As it stands in the topic; its event is one of its own, unless its id was changed."""
        headers = {"id": b"o-%d" % n, **dict(self.good), **self.changed}
        return Record(*PLACE, n, self.key, self.value, tuple(headers.items()), 5, 1)


forged = st.builds(
    Forged, st.sampled_from([OURS, SPRING, STREAMS, ()]), changes, st.binary(max_size=2), st.none() | st.just(b"v")
)


@dataclass
class Topic:
    """The letters, in one partition."""

    records: Sequence[Record]

    async def read(self, partition: Partition, offset: int, records_max: int) -> Stretch:
        """All from there on."""
        return Stretch(tuple(self.records[offset : offset + records_max]), len(self.records), at_end=True)


class Stretch(NamedTuple):
    records: tuple[Record, ...]
    next_offset: int
    at_end: bool


def adoptions_of(graveyard: Graveyard, records: Sequence[Record]) -> Adoptions:
    """As the command line makes them: a consumer with one projection, its own intake, and every right."""
    consumer = App("tests", owner="tests").consumer(
        "billing", topics=[SOURCE], codec=Raw(), event_id=header("id"),
        scope=Scope(tenant=header("tenant"), brand=header("brand")),
    )  # fmt: skip
    ours = Handler(graveyard.handlers["revenue"], 1, alone=False)
    target = Target(
        consumer="billing", source=SOURCE, partitions=4, incarnation=0, handlers={"revenue": ours, "": ours},
        scope_of=lambda record: scope_of(record, consumer.scope),
    )  # fmt: skip
    make = intake_of(consumer, load({}).settings, {SOURCE: 0})
    return Adoptions(graveyard.gate().store, Topic(records), target, make, graveyard.clock.now, permit=unlimited("ann"))


async def fail_again(graveyard: Graveyard, rows: Sequence[Failure]) -> None:
    """What a worker does that takes them up and has no luck, and what a person may do then."""
    now, burial, why = graveyard.clock.now(), Burial("billing", graveyard.clock), Verdict.of(REJECTED)
    async with graveyard.db.transaction() as conn:
        for row in rows:
            seen, attempts = (row.id, row.row_version), row.attempts + 1
            letter = burial.letter_again(row, "revenue", REJECTED, attempts)
            assert read_letter(Record("dlq", 0, 0, letter.key, letter.payload, letter.headers)).attempts is not None
            assert await failure.bury(conn, graveyard.t, seen, why, attempts=attempts, now=now)
        again = [(row.id, row.row_version + 1) for row in rows]
        assert len(await failure.requeue(conn, graveyard.t, again, now)) == len(rows)


def each(good: tuple[Header, ...], names: Iterable[str], value: bytes) -> list[Forged]:
    """As many letters as names, with this value under one of them."""
    return [Forged(good, {name: value}) for name in sorted(names)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(letters=st.lists(forged, min_size=1, max_size=10), force=st.booleans())
@example(letters=each(OURS, OUR_NAMES, b"-1"), force=True)
@example(letters=each(OURS, OUR_NAMES, b"%d" % (2**63 - 1)), force=True)
@example(letters=each(SPRING, FOREIGN, b"\x7f" + b"\xff" * 7), force=False)
@example(letters=each(SPRING, FOREIGN, b"\xff" * 4), force=False)
@example(letters=each(STREAMS, FOREIGN, b"%d" % (2**63 - 1)), force=False)
@example(letters=[Forged(OURS, {"tidegate-replay-count": b"999"})], force=False)
@example(letters=[Forged(OURS, {"tidegate-handler-version": b"999"})], force=False)
async def test_whatever_a_letter_says_its_row_is_taken_or_it_is_refused_by_a_reason(
    graveyard: Graveyard, letters: list[Forged], force: bool
) -> None:
    """Rows, journal and audit: nothing in a header is more than their columns hold, also when it fails again.

    Case: B42
    Parts: real (PostgreSQL), fake (the topic)
    Red when: dlq/letter.py's read_letter does not bound what was read
    """
    f = graveyard.t.failure
    async with graveyard.db.transaction() as conn:  # those of the example before
        await conn.execute(sa.delete(f))
        await conn.execute(sa.delete(graveyard.t.parked_key))
    adoptions = adoptions_of(graveyard, [letter.record(n) for n, letter in enumerate(letters)])
    order = Order(
        actor="ann", reason="restored", filter=Filter(state=None), all_tenants=True, force=force,
        versions={("billing", "revenue"): 1},
    )  # fmt: skip
    run = await adoptions.start(order, [Part(PLACE, 0, len(letters))])
    run = await adoptions.go_on(run.id, "ann")
    assert (run.read, run.replayed + run.skipped + run.refused) == (len(letters), len(letters))
    assert sum(run.causes.values()) == run.skipped + run.refused
    assert not re.search(r"\d\d", "".join(run.causes)), "a stranger's number would be a cause of its own, each time"
    async with graveyard.db.transaction() as conn:
        rows = [failure_of(row) for row in (await conn.execute(sa.select(f))).mappings()]
    assert len(rows) == run.replayed
    await fail_again(graveyard, rows)
