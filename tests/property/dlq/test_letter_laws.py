"""Laws of the dead letter: it keeps every byte, it never grows, and reading never fails."""

from __future__ import annotations

import datetime
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.letter import LETTER_BYTES_MIN, Letter, Written, own_headers, read_letter, write_letter, written_bytes
from tidegate.dlq.letter_headers import OUR_NAMES
from tidegate.inbox.event import Headers, Record

texts = st.none() | st.text(st.characters(exclude_categories=()), max_size=600)
numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
FIRST, LAST = datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)  # noqa: DTZ001 - in any zone they have their UTC
instants = st.none() | st.datetimes(FIRST, LAST, timezones=st.timezones())
names = st.text(max_size=20) | st.sampled_from(sorted(OUR_NAMES)) | st.just("traceparent")
foreign_names = st.builds(
    str.__add__,
    st.sampled_from(["kafka_dlt-", "__streams.errors.", "__connect.errors.", "__dlq.errors."]),
    st.sampled_from(
        ["original-topic", "original-offset", "topic", "partition", "offset", "message", "exception-message"]
    ),
)
headers: st.SearchStrategy[Headers] = st.lists(
    st.tuples(names | foreign_names, st.none() | st.binary(max_size=50)), max_size=12
).map(tuple)

letters = st.builds(
    Letter,
    key=st.none() | st.binary(max_size=50),
    value=st.none() | st.binary(max_size=200),
    headers=headers,
    dead_letter_id=st.text(min_size=1, max_size=40),
    reason=texts,
    disposition=texts,
    exception_type=texts,
    exception_message=texts,
    stack_digest=texts,
    event_id=texts,
    correlation_id=texts,
    causation_id=texts,
    operation_id=texts,
    traceparent=texts,
    tenant=texts,
    brand=texts,
    consumer=texts,
    handler=texts,
    handler_version=numbers,
    attempts=numbers,
    first_failed_at=instants,
    last_failed_at=instants,
    origin_topic=texts,
    origin_incarnation=numbers,
    origin_partition=numbers,
    origin_offset=numbers,
    origin_timestamp_ms=numbers,
    origin_timestamp_type=st.none() | st.integers(0, 2),
    schema_id=numbers,
    replay_count=numbers,
)


def record_of(written: Written) -> Record:
    return Record("dlq", 0, 0, written.key, written.value, written.headers)


@given(letters)
def test_key_value_and_own_headers_survive_whatever_they_are(letter: Letter) -> None:
    """Writing and reading a letter gives back every byte and every header, in order, with repeats and nulls.

    Case: B33
    Parts: -
    Red when: dlq/letter.py's own_headers makes a dict of its argument
    """
    read = read_letter(record_of(write_letter(letter)))
    assert (read.key, read.value) == (letter.key, letter.value)
    assert list(read.headers) == [header for header in letter.headers if header[0] not in OUR_NAMES]


@given(letters)
def test_what_was_read_is_written_and_read_the_same(letter: Letter) -> None:
    once = read_letter(record_of(write_letter(letter)))
    assert read_letter(record_of(write_letter(once))) == once


@given(letters, st.integers(1, 4))
def test_headers_never_grow_however_often_a_letter_is_buried(letter: Letter, times: int) -> None:
    first = write_letter(letter)
    latest = first
    for _ in range(times):
        latest = write_letter(replace(letter, headers=latest.headers))
    assert latest == first


@given(letters, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_every_letter_fits_its_limit(letter: Letter, key: int, value: int, header: int) -> None:
    size = LETTER_BYTES_MIN // 2
    big = replace(
        letter, key=b"k" * (key * size), value=b"v" * (value * size), headers=(("h", b"h" * (header * size)),)
    )
    written = write_letter(big, LETTER_BYTES_MIN)
    assert written_bytes(written) <= LETTER_BYTES_MIN
    if read_letter(record_of(written)).claim is None:
        assert (written.key, written.value) == (big.key, big.value)


@given(st.none() | st.binary(max_size=50), headers)
def test_reading_never_fails(value: bytes | None, given_headers: Headers) -> None:
    letter = read_letter(Record("t", 0, 0, None, value, given_headers))
    assert letter.value == value
    written = write_letter(letter)
    assert read_letter(record_of(written)).headers == own_headers(letter.headers)
