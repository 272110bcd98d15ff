"""The dead letter: the record as it came, headers that say why, and a size that is bounded."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shlex
from dataclasses import replace

import pytest

from tidegate.dlq.foreign import LetterFormat
from tidegate.dlq.letter import (
    HELD,
    LETTER_BYTES_MAX,
    LETTER_BYTES_MIN,
    RELEASED,
    Letter,
    Victim,
    Written,
    dead_letter_id,
    dead_letter_topic,
    own_headers,
    read_letter,
    write_letter,
    written_bytes,
)
from tidegate.dlq.letter_headers import LETTER_HEADERS, OUR_NAMES, REPLAY, REPLAY_COMMAND
from tidegate.inbox.event import Record

AT = datetime.datetime(2026, 11, 29, 20, 30, 0, 123456, tzinfo=datetime.UTC)

LETTER = Letter(
    key=b"\xff\x00",
    value=b"\x00\x00\x00\x00\x07\x02",
    headers=(("ce_id", b"o-17"), ("ce_id", b"again"), ("empty", b""), ("null", None), ("bin", b"\xff\xfe")),
    dead_letter_id="00ff" * 8,
    reason="rejected",
    disposition=RELEASED,
    exception_type="billing.CreditRefused",
    exception_message="no credit",
    stack_digest="0123456789abcdef",
    event_id="o-17",
    correlation_id="c-1",
    causation_id="o-17",
    operation_id="o-17",
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    tenant="acme",
    brand="north",
    consumer="billing-orders",
    handler="send-invoice",
    handler_version=0,
    attempts=5,
    first_failed_at=AT,
    last_failed_at=AT + datetime.timedelta(seconds=3),
    origin_topic="shop.orders",
    origin_incarnation=0,
    origin_partition=3,
    origin_offset=2**40,
    origin_timestamp_ms=1_700_000_000_000,
    origin_timestamp_type=1,
    schema_id=7,
    replay_count=0,
)


def record_of(written: Written) -> Record:
    return Record("shop.orders.billing-orders.dlq", 0, 9, written.key, written.value, written.headers)


def headers_of(written: Written) -> dict[str, bytes | None]:
    return dict(written.headers)


def test_key_value_and_headers_are_the_record_s_byte_for_byte() -> None:
    """A record with a binary key, an Avro frame and odd headers keeps every byte of them in its letter.

    Case: B33
    Parts: -
    Red when: dlq/letter.py's _written passes `letter.key or b""` on
    """
    for key, value in ((LETTER.key, LETTER.value), (None, b""), (b"", None)):
        written = write_letter(replace(LETTER, key=key, value=value))
        assert (written.key, written.value) == (key, value)
        assert written.headers[: len(LETTER.headers)] == LETTER.headers


def test_what_is_written_is_read_back() -> None:
    assert read_letter(record_of(write_letter(LETTER))) == LETTER


def test_every_field_has_its_header() -> None:
    names = set(headers_of(write_letter(replace(LETTER, claim="00", claim_bytes=1, left_out=("value",)))))
    assert names >= OUR_NAMES


def test_a_field_that_is_not_known_has_no_header() -> None:
    written = write_letter(Letter(key=None, value=b"x", dead_letter_id="ab", tenant=None))
    assert "tidegate-tenant" not in headers_of(written)
    assert "tidegate-schema-id" not in headers_of(written)


def test_all_our_headers_are_utf8_text() -> None:
    letter = replace(LETTER, tenant="\ud800acme\0", exception_message="a\ud83d\ude00\nb")
    headers = headers_of(write_letter(letter))
    assert {name for name in headers if name in OUR_NAMES and (headers[name] or b"").decode("utf-8") == ""} == set()
    assert headers["tidegate-tenant"] == "\ufffdacme\ufffd".encode()
    assert headers["tidegate-exception-message"] == "a\U0001f600 b".encode()


def test_the_names_of_kafka_s_own_dead_letters_are_written_too() -> None:
    headers = headers_of(write_letter(LETTER))
    assert {name: value for name, value in headers.items() if name.startswith("__dlq.")} == {
        "__dlq.errors.topic": b"shop.orders",
        "__dlq.errors.partition": b"3",
        "__dlq.errors.offset": str(2**40).encode(),
        "__dlq.errors.group": b"billing-orders",
        "__dlq.errors.delivery.count": b"5",
        "__dlq.errors.message": b"no credit",
    }


def test_a_letter_of_a_letter_is_no_bigger() -> None:
    """Headers of an earlier letter are replaced, also those that a producer only pretends to have.

    Case: B39
    Parts: -
    Red when: dlq/letter.py's own_headers returns its argument
    """
    first = write_letter(LETTER)
    again = write_letter(replace(LETTER, headers=first.headers, replay_count=1))
    assert len(again.headers) == len(first.headers)
    assert written_bytes(again) == written_bytes(first)
    assert headers_of(again)["tidegate-replay-count"] == b"1"
    assert own_headers((("tidegate-tenant", b"forged"), ("__dlq.errors.topic", b"x"), ("mine", b"1"))) == (
        ("mine", b"1"),
    )


def test_headers_of_other_tidegate_records_are_the_record_s_own() -> None:
    headers = (("tidegate-message-id", b"1"), ("traceparent", b"00-a-b-01"))
    assert own_headers(headers) == headers


def test_the_replay_instruction_names_the_row_for_a_machine() -> None:
    instruction = json.loads(headers_of(write_letter(LETTER))[REPLAY] or b"")
    assert instruction == {
        "version": 1,
        "dead_letter_id": LETTER.dead_letter_id,
        "consumer": "billing-orders",
        "handler": "send-invoice",
        "handler_version": 0,
        "event_id": "o-17",
        "tenant": LETTER.tenant,
        "reason": "rejected",
        "replay_count": 0,
        "runbook": "docs/runbooks/rejected.md",
        "origin": {"topic": "shop.orders", "incarnation": 0, "partition": 3, "offset": 2**40},
    }


@pytest.mark.parametrize("tenant", ["acme", "x; rm -rf ~ $(reboot) '\"", "--yes", ""])
def test_the_replay_command_is_one_command_whatever_its_words_hold(tenant: str) -> None:
    letter = replace(LETTER, dead_letter_id="x; rm -rf ~ $(reboot) '\"", tenant=tenant)
    command = (headers_of(write_letter(letter))[REPLAY_COMMAND] or b"").decode()
    words = ["tidegate", "dlq", "replay", letter.dead_letter_id, "--tenant", tenant]
    assert shlex.split(command) == [*words, "--reason", "cause repaired"]


def test_the_replay_command_of_a_letter_without_tenant_means_all() -> None:
    command = (headers_of(write_letter(replace(LETTER, tenant=None)))[REPLAY_COMMAND] or b"").decode()
    assert "--all-tenants" in shlex.split(command)
    assert "--yes" not in command, "who pastes it sees first what it would do"


def test_a_letter_too_large_for_its_topic_goes_as_a_claim() -> None:
    """A value that only just fitted its own topic leaves a letter with its hash, and stays in the inbox.

    Case: B31
    Parts: -
    Red when: dlq/letter.py's _fits returns True
    """
    value = bytes(range(256)) * 3_903  # 999,168 bytes
    written = write_letter(replace(LETTER, value=value, exception_message="m" * 100_000), LETTER_BYTES_MAX)
    assert written_bytes(written) < LETTER_BYTES_MAX
    assert (written.key, written.value) == (LETTER.key, None)
    letter = read_letter(record_of(written))
    assert (letter.claim, letter.claim_bytes, letter.left_out) == (
        hashlib.sha256(value).hexdigest(),
        len(value),
        ("value",),
    )
    assert letter.headers == LETTER.headers
    assert letter.origin_offset == LETTER.origin_offset


@pytest.mark.parametrize(
    ("key_bytes", "value_bytes", "header_bytes", "left_out"),
    [
        (10, 90_000, 10, ("value",)),
        (10, 10, 90_000, ("headers",)),
        (10, 90_000, 90_000, ("value", "headers")),
        (90_000, 90_000, 90_000, ("value", "headers", "key")),
        (90_000, None, 0, ("value", "headers", "key")),
    ],
)
def test_no_more_is_left_out_than_has_to_be(
    key_bytes: int, value_bytes: int | None, header_bytes: int, left_out: tuple[str, ...]
) -> None:
    big = replace(
        LETTER,
        key=b"k" * key_bytes,
        value=None if value_bytes is None else b"v" * value_bytes,
        headers=(("h", b"h" * header_bytes),),
    )
    letter = read_letter(record_of(write_letter(big, LETTER_BYTES_MIN)))
    assert letter.left_out == left_out
    assert (letter.key is None) == ("key" in left_out)
    assert letter.headers == (() if "headers" in left_out else big.headers)


def test_our_own_headers_fit_at_their_longest() -> None:
    longest = {
        row.field: "\U0001f600" * 10_000 for row in LETTER_HEADERS if isinstance(getattr(LETTER, row.field), str)
    }
    longest["exception_message"] = '"' * 10_000
    written = write_letter(replace(LETTER, headers=(), **longest), LETTER_BYTES_MIN)
    assert "tidegate-claim" not in headers_of(written)
    json.loads(headers_of(written)[REPLAY] or b"")


def test_a_limit_that_cannot_hold_a_letter_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        write_letter(LETTER, LETTER_BYTES_MIN - 1)


def test_two_records_of_one_key_have_two_letters_and_a_repeat_has_the_same() -> None:
    """The letter's identity is its origin and its replay count, so nothing of one key overwrites another.

    Case: B33
    Parts: -
    Red when: dlq/letter.py's dead_letter_id leaves origin.offset out of place
    """
    first, second = Record("t", 0, 1, b"k", b"v"), Record("t", 0, 2, b"k", b"v")

    def id_of(record: Record, ordinal: int = 0) -> bytes:
        return dead_letter_id(Victim("c", "h", 0, b"e" * 16), record, 0, ordinal)

    assert id_of(first) == id_of(first)
    assert len({id_of(first), id_of(second), id_of(first, 1)}) == 3


def test_the_topic_of_letters_is_the_consumer_s_own() -> None:
    assert dead_letter_topic("shop.orders", "billing") == "shop.orders.billing.dlq"


# ---------------------------------------------------------------------------------------------------- reading others


def test_a_letter_of_spring_is_understood() -> None:
    headers = (
        ("ce_id", b"o-1"),
        ("kafka_dlt-original-topic", b"shop.orders"),
        ("kafka_dlt-original-partition", (3).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", (42).to_bytes(8, "big")),
        ("kafka_dlt-original-timestamp", (1_700_000_000_000).to_bytes(8, "big")),
        ("kafka_dlt-original-timestamp-type", b"CreateTime"),
        ("kafka_dlt-original-consumer-group", b"billing"),
        ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
        ("kafka_dlt-exception-cause-fqcn", b"com.example.CreditRefused"),
        ("kafka_dlt-exception-message", b"no credit at postgresql://a:pw123@db/x"),
        ("kafka_dlt-exception-stacktrace", b"E: no\n\tat com.example.A.b(A.java:1)\n"),
        ("kafka_dlt-original-topic", b"shop.orders-retry-0"),
    )
    letter = read_letter(Record("shop.orders.DLT", 1, 5, b"k", b"v", headers))
    assert letter.format is LetterFormat.SPRING
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == ("shop.orders", 3, 42)
    assert (letter.origin_timestamp_ms, letter.origin_timestamp_type) == (1_700_000_000_000, 1)
    assert (letter.consumer, letter.exception_type) == ("billing", "com.example.CreditRefused")
    assert letter.exception_message == "no credit at postgresql://a:***@db/x"
    assert re.fullmatch("[0-9a-f]{16}", letter.stack_digest or "")
    assert (letter.key, letter.value, letter.headers) == (b"k", b"v", (("ce_id", b"o-1"),))


def test_a_letter_of_kafka_streams_is_understood() -> None:
    headers = (
        ("__streams.errors.exception", b"org.apache.kafka.common.errors.SerializationException: bad size"),
        ("__streams.errors.message", b"bad size"),
        ("__streams.errors.stacktrace", b"..."),
        ("__streams.errors.topic", b"shop.orders"),
        ("__streams.errors.partition", b"3"),
        ("__streams.errors.offset", b"42"),
    )
    letter = read_letter(Record("dlq", 0, 0, None, b"v", headers))
    assert letter.format is LetterFormat.STREAMS
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == ("shop.orders", 3, 42)
    assert letter.exception_type == "org.apache.kafka.common.errors.SerializationException"
    assert letter.exception_message == "bad size"


def test_letters_of_connect_and_of_share_groups_are_understood() -> None:
    connect = read_letter(
        Record("d", 0, 0, None, b"", (("__connect.errors.topic", b"t"), ("__connect.errors.offset", b"7")))
    )
    share = read_letter(
        Record("d", 0, 0, None, b"", (("__dlq.errors.topic", b"t"), ("__dlq.errors.delivery.count", b"5")))
    )
    assert (connect.format, connect.origin_topic, connect.origin_offset) == (LetterFormat.CONNECT, "t", 7)
    assert (share.format, share.origin_topic, share.attempts) == (LetterFormat.SHARE_GROUP, "t", 5)


def test_a_half_written_letter_is_read_as_far_as_it_goes() -> None:
    headers = (
        ("tidegate-dead-letter-id", b"ab"),
        ("tidegate-attempts", b"many"),
        ("tidegate-origin-offset", b"9" * 400),
        ("tidegate-first-failed-at", b"yesterday"),
        ("tidegate-last-failed-at", b"2026-01-01T00:00:00"),
        ("tidegate-origin-timestamp-type", b"\xff\xfe"),
        ("tidegate-reason", None),
    )
    letter = read_letter(Record("d", 0, 0, None, None, headers))
    assert letter == Letter(key=None, value=None, dead_letter_id="ab")


def test_a_record_that_is_no_letter_says_so() -> None:
    letter = read_letter(Record("orders", 2, 3, b"k", b"v", (("ce_id", b"1"),)))
    assert (letter.format, letter.headers, letter.reason) == (LetterFormat.NONE, (("ce_id", b"1"),), None)
    assert len(letter.dead_letter_id) == 32


def test_a_held_key_says_so() -> None:
    assert read_letter(record_of(write_letter(replace(LETTER, disposition=HELD)))).disposition == HELD
