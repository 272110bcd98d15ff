"""Letters of others, made by hand byte for byte as those systems write them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.foreign import LetterFormat
from tidegate.dlq.letter import Letter, read_letter
from tidegate.inbox.event import Headers, Record

TRACE = (
    b"org.springframework.kafka.listener.ListenerExecutionFailedException: Listener failed\n"
    b"\tat org.springframework.kafka.listener.X.invoke(X.java:2873)\n"
    b"Caused by: com.example.CreditRefused: card 4111 refused\n"
    b"\tat com.example.Billing.charge(Billing.java:17)\n"
)
OWN: Headers = (("ce_id", b"o-1"), ("kafka_custom", b"mine"), ("traceparent", b"00-a-b-01"), ("ce_id", None))


def read(*headers: tuple[str, bytes | None], value: bytes | None = b"v") -> Letter:
    return read_letter(Record("shop.orders-dlt", 1, 5, b"\xff", value, (*OWN, *headers)))


def told(letter: Letter) -> dict[str, Any]:
    """The fields that are told, without those of the record itself."""
    fields = {name: getattr(letter, name) for name in Letter.__dataclass_fields__}
    own = {"key", "value", "headers", "format", "dead_letter_id"}
    return {name: value for name, value in fields.items() if value is not None and name not in own}


SPRING: Headers = (
    ("kafka_dlt-original-topic", b"shop.orders"),
    ("kafka_dlt-original-partition", struct.pack(">i", 3)),
    ("kafka_dlt-original-offset", struct.pack(">q", 2**40)),
    ("kafka_dlt-original-timestamp", struct.pack(">q", 1_700_000_000_000)),
    ("kafka_dlt-original-timestamp-type", b"LogAppendTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"com.example.CreditRefused"),
    ("kafka_dlt-exception-message", b"Listener failed; password=pw123, card 4111111111111111"),
    ("kafka_dlt-exception-stacktrace", TRACE),
)


def test_a_letter_of_springs_recoverer_tells_all_that_our_own_does_where_it_can() -> None:
    letter = read(*SPRING)
    assert letter.format is LetterFormat.SPRING
    assert (letter.key, letter.value, letter.headers) == (b"\xff", b"v", OWN)
    assert told(letter) == {
        "origin_topic": "shop.orders",
        "origin_partition": 3,
        "origin_offset": 2**40,
        "origin_timestamp_ms": 1_700_000_000_000,
        "origin_timestamp_type": 2,
        "consumer": "billing",
        "exception_type": "com.example.CreditRefused",
        "exception_message": "Listener failed; password=***, card ***",
        "stack_digest": letter.stack_digest,
    }


def test_the_digest_of_a_java_stack_is_of_its_frames_and_not_of_its_messages() -> None:
    other = TRACE.replace(b"card 4111 refused", b"card 4222 refused")
    elsewhere = TRACE.replace(b"Billing.java:17", b"Billing.java:18")
    digests = [read(("kafka_dlt-exception-stacktrace", trace)).stack_digest for trace in (TRACE, other, elsewhere)]
    assert digests[0] == digests[1] != digests[2]


def test_of_several_hops_the_first_tells_the_origin_and_the_last_the_failure() -> None:
    """Spring appends: the record went through two retry topics before it was dead."""
    hop: Headers = (
        ("kafka_dlt-original-topic", b"shop.orders-retry-0"),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 9)),
        ("kafka_dlt-exception-cause-fqcn", b"com.example.Later"),
    )
    letter = read(*SPRING, *hop)
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == ("shop.orders", 3, 2**40)
    assert letter.exception_type == "com.example.Later"


@pytest.mark.parametrize(
    ("attempts", "n"),
    [
        *((struct.pack(">i", 4), 4), (b"\x04", 4), (b"4", 52), (b"40", 40)),
        *((b"", None), (b"x" * 9, None), (b"\x7f" + b"\xff" * 7, 1_000_000), (b"\xff" * 4, None)),
    ],
)
def test_a_letter_of_springs_retry_topics_tells_its_attempts(attempts: bytes, n: int | None) -> None:
    """`@RetryableTopic` writes the names without `dlt-`; older releases a BigInteger of one byte, whatever
    digit that is. What nobody counts to is no number that anything goes by.
    """
    letter = read(
        ("kafka_original-topic", b"shop.orders"),
        ("kafka_original-partition", struct.pack(">i", 3)),
        ("kafka_original-offset", struct.pack(">q", 42)),
        ("kafka_exception-fqcn", b"com.example.CreditRefused"),
        ("kafka_exception-message", b"no credit"),
        ("retry_topic-attempts", attempts),
        ("retry_topic-original-timestamp", (1_700_000_000_000).to_bytes(6, "big")),
        ("retry_topic-backoff-timestamp", (1_700_000_001_000).to_bytes(6, "big")),
    )
    assert letter.format is LetterFormat.SPRING
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset) == ("shop.orders", 3, 42)
    assert (letter.exception_type, letter.exception_message) == ("com.example.CreditRefused", "no credit")
    assert (letter.attempts, letter.origin_timestamp_ms) == (n, 1_700_000_000_000)
    assert letter.headers == OWN


def test_a_letter_of_a_key_that_spring_could_not_read_tells_that() -> None:
    letter = read(
        ("kafka_dlt-key-exception-fqcn", b"org.springframework.kafka.support.serializer.DeserializationException"),
        ("kafka_dlt-key-exception-message", b"failed to deserialize"),
        ("kafka_dlt-key-exception-stacktrace", TRACE),
    )
    assert letter.exception_type == "org.springframework.kafka.support.serializer.DeserializationException"
    assert (letter.exception_message, letter.stack_digest is None) == ("failed to deserialize", False)


def test_a_letter_of_kafka_streams_is_text() -> None:
    letter = read(
        ("__streams.errors.exception", b"org.apache.kafka.common.errors.SerializationException: bad: size"),
        ("__streams.errors.message", b"bad: size"),
        ("__streams.errors.stacktrace", TRACE),
        ("__streams.errors.topic", b"shop.orders"),
        ("__streams.errors.partition", b"3"),
        ("__streams.errors.offset", b"1099511627776"),
        value=None,
    )
    assert letter.format is LetterFormat.STREAMS
    assert (letter.value, letter.headers) == (None, OWN)
    assert told(letter) == {
        "origin_topic": "shop.orders",
        "origin_partition": 3,
        "origin_offset": 2**40,
        "exception_type": "org.apache.kafka.common.errors.SerializationException",
        "exception_message": "bad: size",
        "stack_digest": letter.stack_digest,
    }


def test_a_letter_of_kafka_connect_tells_connector_and_class() -> None:
    letter = read(
        ("__connect.errors.topic", b"shop.orders"),
        ("__connect.errors.partition", b"0"),
        ("__connect.errors.offset", b"7"),
        ("__connect.errors.connector.name", b"orders-to-s3"),
        ("__connect.errors.task.id", b"1"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
        ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
        ("__connect.errors.exception.message", b"Converting byte[] to Kafka Connect data failed"),
        ("__connect.errors.exception.stacktrace", TRACE),
    )
    assert letter.format is LetterFormat.CONNECT
    assert told(letter) == {
        "origin_topic": "shop.orders",
        "origin_partition": 0,
        "origin_offset": 7,
        "consumer": "orders-to-s3",
        "handler": "org.apache.kafka.connect.json.JsonConverter",
        "exception_type": "org.apache.kafka.connect.errors.DataException",
        "exception_message": "Converting byte[] to Kafka Connect data failed",
        "stack_digest": letter.stack_digest,
    }


def test_text_that_is_no_number_is_none() -> None:
    letter = read(("__connect.errors.partition", b"four"), ("__streams.errors.offset", b"\x00\x00\x00\x07"))
    assert (letter.origin_partition, letter.origin_offset) == (None, None)


NAMES = st.sampled_from(
    [name for name, _ in SPRING]
    + ["retry_topic-attempts", "__streams.errors.offset", "__connect.errors.partition", "__dlq.errors.delivery.count"]
)


@given(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=40)), max_size=8))
def test_whatever_stands_in_them_is_read_without_an_error(headers: list[tuple[str, bytes | None]]) -> None:
    letter = read(*headers)
    for number in (letter.origin_partition, letter.origin_offset, letter.attempts, letter.origin_timestamp_ms):
        assert number is None or -(2**63) <= number < 2**63


def test_what_others_wrote_without_bound_is_bounded_here() -> None:
    letter = read(("kafka_dlt-exception-message", b"m" * 10_000_000), ("kafka_dlt-exception-fqcn", b"c" * 10_000))
    assert len(letter.exception_message or "") <= 500
    assert len(letter.exception_type or "") <= 200
