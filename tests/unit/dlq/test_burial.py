"""Burying: one row and one letter that tell the same, the same again after any repeat."""

from __future__ import annotations

import datetime
from dataclasses import replace

from tidegate.dlq.burial import Burial, Buried, letters_of
from tidegate.dlq.failure_text import dead
from tidegate.dlq.letter import Letter, read_letter
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failure import Put
from tidegate.inbox.failure_rows import Failure, NewFailure, Place
from tidegate.inbox.outbox import NewOutgoing
from tidegate.inbox.outcome import Dead, FailureState, Reason
from tidegate.inbox.record_bytes import encode_headers

PLACE = Place(handler_id=7, version=2, incarnation=1)
RECORD = Record(
    "shop.orders", 3, 42, b"\xff\x00", b"\x00\x00\x00\x00\x07\x02", (("ce_id", b"o-17"),), 1_700_000_000_000, 1
)
DEAD = Dead(Reason.REJECTED, "no credit", "billing.CreditRefused", "0123456789abcdef")


def event(record: Record = RECORD) -> Event[object]:
    return Event(
        object(),
        record,
        type="shop.OrderPlaced",
        event_id=b"e" * 16,
        id_text="o-17",
        payload_hash=5,
        tenant="acme",
        brand="north",
    )


def burial(clock: ManualClock | None = None, limit_bytes: int = 1_000_000) -> Burial:
    limits = {"shop.orders.billing.dlq": limit_bytes}
    return Burial("billing", clock or ManualClock(), limits, lambda record: 7 if record.value else None)


def letter_in(outgoing: NewOutgoing) -> Letter:
    return read_letter(Record(outgoing.topic, 0, 0, outgoing.key, outgoing.payload, outgoing.headers))


def stored(row: NewFailure, replay_count: int = 0) -> Failure:
    """The row as it would be read back."""
    return Failure(
        id=11,
        handler=row.handler,
        version=row.version,
        topic=row.topic,
        incarnation=row.incarnation,
        partition=row.partition,
        record_offset=row.record_offset,
        home_topic=row.home.topic,
        home_partition=row.home.number,
        event_id=row.event_id,
        payload_hash8=row.payload_hash8,
        lane=row.lane,
        seq=1,
        state=FailureState.QUEUED,
        **row.verdict._asdict(),
        due=row.last_failed_at,
        duplicate_of=None,
        attempts=row.attempts,
        replay_count=replay_count,
        row_version=2,
        first_failed_at=row.first_failed_at,
        last_failed_at=row.last_failed_at,
        id_text=row.id_text,
        type=row.type,
        tenant=row.tenant,
        brand=row.brand,
        correlation_id=row.correlation_id,
        operation_id=row.operation_id,
        schema_id=row.schema_id,
        key=row.key,
        value=row.value,
        headers=encode_headers(row.headers),
        timestamp_ms=row.timestamp_ms,
        timestamp_type=row.timestamp_type,
    )


def test_row_and_letter_tell_the_same() -> None:
    clock = ManualClock()
    first_failed_at = clock.now()
    clock.advance(3)
    row, outgoing = burial(clock).bury(PLACE, "revenue", event(), DEAD, attempts=5, first_failed_at=first_failed_at)
    assert (row.key, row.value, row.headers) == (RECORD.key, RECORD.value, RECORD.headers)
    assert (outgoing.key, outgoing.payload) == (RECORD.key, RECORD.value)
    assert (outgoing.topic, outgoing.kind, outgoing.consumer) == ("shop.orders.billing.dlq", "letter", "billing")
    assert outgoing.home == row.home == Partition("shop.orders", 3)
    assert letter_in(outgoing) == Letter(
        key=RECORD.key,
        value=RECORD.value,
        headers=RECORD.headers,
        dead_letter_id=outgoing.id.hex(),
        reason="rejected",
        disposition="released",
        exception_type="billing.CreditRefused",
        exception_message="no credit",
        stack_digest="0123456789abcdef",
        event_id="o-17",
        correlation_id="o-17",
        causation_id="o-17",
        operation_id="o-17",
        tenant="acme",
        brand="north",
        consumer="billing",
        handler="revenue",
        handler_version=2,
        attempts=5,
        first_failed_at=first_failed_at,
        last_failed_at=first_failed_at + datetime.timedelta(seconds=3),
        origin_topic="shop.orders",
        origin_incarnation=1,
        origin_partition=3,
        origin_offset=42,
        origin_timestamp_ms=1_700_000_000_000,
        origin_timestamp_type=1,
        schema_id=7,
        replay_count=0,
    )


def test_a_repeated_burial_has_the_same_identity_and_another_version_its_own() -> None:
    clock = ManualClock()
    undertaker = burial(clock)
    first = undertaker.bury(PLACE, "revenue", event(), DEAD)
    clock.advance(60)
    repeat = undertaker.bury(PLACE, "revenue", event(), Dead(Reason.EXHAUSTED, "other"), attempts=2)
    assert (repeat.letter.id, repeat.row.position) == (first.letter.id, first.row.position)
    rebuilt = undertaker.bury(PLACE._replace(version=3), "revenue", event(), DEAD)
    assert rebuilt.letter.id != first.letter.id


def test_a_letter_after_a_replay_is_another_letter_of_the_same_size() -> None:
    row, first = burial().bury(PLACE, "revenue", event(), DEAD)
    again = burial().letter_again(stored(row, replay_count=1), "revenue", DEAD, 1)
    assert again.id != first.id
    assert again.failure_id == 11
    assert again.topic == first.topic
    assert len(again.headers) == len(first.headers)
    expected = replace(letter_in(first), dead_letter_id=again.id.hex(), replay_count=1)
    assert letter_in(again) == expected


def test_what_the_worker_does_to_a_row_can_be_found_by_event_and_correlation() -> None:
    row, _ = burial().bury(PLACE, "revenue", event(), DEAD)
    line = burial().audit_line(stored(row), "revenue", "completed")
    assert (line.act, line.actor, line.consumer, line.handler) == ("completed", "worker", "billing", "revenue")
    assert (line.failure_id, line.event_id, line.correlation_id, line.tenant) == (11, b"e" * 16, "o-17", "acme")


def test_rows_with_all_in_common_share_a_line_that_names_each_of_them() -> None:
    row, _ = burial().bury(PLACE, "revenue", event(), DEAD)
    one, other = stored(row), stored(row)._replace(id=12, event_id=b"f" * 16, correlation_id="o-18")
    elsewhere = stored(row)._replace(id=13, tenant="zenith")
    shared, own = burial().audit_lines([one, elsewhere, other], "revenue", "completed")
    assert own == burial().audit_line(elsewhere, "revenue", "completed")
    assert (shared.failure_id, shared.event_id, shared.correlation_id) == (None, None, "")
    assert (shared.tenant, shared.handler, shared.details["attempts"]) == ("acme", "revenue", one.attempts)
    assert shared.details["failure_ids"] == (11, 12)
    assert shared.details["event_ids"] == ((b"e" * 16).hex(), (b"f" * 16).hex())
    assert shared.details["correlation_ids"] == ("o-17", "o-18")


def test_a_record_that_reached_no_handler_is_known_by_its_position() -> None:
    undertaker = burial()
    row, outgoing = undertaker.reject(PLACE._replace(version=0), RECORD, Dead(Reason.UNDECODABLE, "bad magic byte"))
    letter = letter_in(outgoing)
    assert (letter.handler, letter.reason, letter.event_id) == ("", "undecodable", "shop.orders/3@42")
    assert letter.exception_type is None
    assert row.event_id != event().event_id


def test_a_null_key_and_a_tombstone_stay_null() -> None:
    bare = Record("shop.orders", 0, 1, None, None)
    row, outgoing = burial().reject(PLACE, bare, Dead(Reason.TOMBSTONE, "nothing to delete"))
    assert (row.key, row.value, outgoing.key, outgoing.payload) == (None, None, None, None)
    assert letter_in(outgoing).schema_id is None


def test_what_is_too_large_for_a_letter_is_whole_in_the_row() -> None:
    """The letter of a 999,000-byte value goes out without it, and the row keeps every byte.

    Case: B31
    Parts: -
    Red when: dlq/burial.py gives write_letter twice its limit
    """
    big = Record("shop.orders", 0, 1, b"k", b"v" * 999_000)
    row, outgoing = burial().bury(PLACE, "revenue", event(big), DEAD)
    assert row.value == big.value
    assert outgoing.payload is None
    assert letter_in(outgoing).claim_bytes == 999_000


def test_no_secret_of_an_exception_is_in_row_or_letter() -> None:
    """A password in a DSN and a value of the record are in neither, whatever the exception says.

    Case: B38
    Parts: -
    Red when: dlq/failure_text.py's safe_message returns str(exc)
    """
    record = Record("shop.orders", 0, 1, b"k", b'{"card": "4111-test-card"}')
    error = ValueError("card 4111-test-card refused by postgresql://app:pw123@db/shop")
    row, outgoing = burial().bury(PLACE, "revenue", event(record), dead(Reason.REJECTED, error, record))
    told = b"".join((value or b"") for _, value in outgoing.headers) + row.verdict.message.encode()
    assert b"refused by" in told
    assert b"4111" not in told
    assert b"pw123" not in told


def test_letters_name_their_rows_and_a_redelivery_gets_no_second_one() -> None:
    first = burial().bury(PLACE, "revenue", event(), DEAD)
    other = Record("shop.orders", 3, 43, b"k", b"v")
    second: Buried = burial().bury(PLACE, "revenue", event(other), DEAD)
    letters = letters_of([Put(11, created=False), Put(12, created=True)], [first, second])
    assert letters == [replace(second.letter, failure_id=12)]
