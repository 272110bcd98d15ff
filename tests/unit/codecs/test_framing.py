"""The Confluent wire format: what is framed otherwise is refused by name."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.avro import ORDER, body, framed, opened, record, record_schema
from tidegate.consumers.codecs import framing
from tidegate.consumers.codecs.codec import Decoded
from tidegate.consumers.codecs.framing import schema_id
from tidegate.inbox.errors import RecordError
from tidegate.inbox.event import Headers
from tidegate.inbox.outcome import Reason

EMPTY = record_schema("Nothing", {})
LETTERS = record_schema("Letters", {"text": "bytes"})
NUMBERS = record_schema("Numbers", dict.fromkeys("abcde", "int"))
GUID = bytes(range(16))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "an empty value"),
        (b"\0", "first byte 0x00, length 1"),
        (b"\0\0\0\0", "first byte 0x00, length 4"),
        (b"hello", "first byte 0x68, length 5"),
        (b"\x01" + GUID, "first byte 0x01, length 17"),
    ],
)
def test_a_value_that_is_not_framed_is_undecodable_and_its_content_stays_out_of_the_message(
    tmp_path: Path, value: bytes, text: str
) -> None:
    """A value that is not framed is undecodable, and no more than its first byte and length is told.

    Case: B28, B17
    Parts: real (files)
    Red when: framing.prefix_key leaves out the check of the length (a short value indexes past its end)
    """
    codec = opened(tmp_path, {7: EMPTY})
    (error,) = codec.decode_many([record(value)])
    assert isinstance(error, RecordError)
    assert error.reason is Reason.UNDECODABLE
    assert text in str(error)
    assert "hello" not in str(error)


def test_exactly_five_bytes_are_an_empty_record(tmp_path: Path) -> None:
    """Exactly five bytes are legal where the schema's record has no fields.

    Case: B28
    Parts: real (files)
    Red when: framing.prefix_key compares the length with <= instead of <
    """
    codec = opened(tmp_path, {7: EMPTY})
    (decoded,) = codec.decode_many([record(b"\0\0\0\0\7")])
    assert isinstance(decoded, Decoded)
    assert (decoded.value, decoded.type, decoded.schema_id) == ({}, "Nothing", 7)


def test_an_id_in_a_header_counts_although_the_bare_body_begins_like_a_known_frame(tmp_path: Path) -> None:
    """Four zeros and a seven are the numbers of a bare body here, not schema 7, which is known already.

    Case: B28
    Parts: real (files)
    Red when: AvroCodec.decode_many does not ask framing.header_key for a known prefix
    """
    codec = opened(tmp_path, {7: EMPTY, 9: NUMBERS})
    codec.warm([7])
    written = body(NUMBERS, {"a": 0, "b": 0, "c": 0, "d": 0, "e": -4})
    assert written == framing.prefix(7)
    (decoded,) = codec.decode_many([record(written, (("__value_schema_id", b"\0\0\0\0\x09"),))])
    assert isinstance(decoded, Decoded)
    assert (decoded.type, decoded.schema_id, decoded.value["e"]) == ("Numbers", 9, -4)


@pytest.mark.parametrize("bare", [b"\x06abc", b"\0\0\0\0\7", b"\0\0\0\0\7\x02"])
def test_an_id_in_a_header_counts_whatever_the_bare_body_looks_like(tmp_path: Path, bare: bytes) -> None:
    """A schema's id in a header means a bare body, even where that body looks framed."""
    codec = opened(tmp_path, {7: EMPTY, 8: LETTERS})
    codec.warm([7])
    written = body(LETTERS, {"text": bare})
    framed_alike, plain = codec.decode_many(
        [record(written, (("__value_schema_id", b"\0\0\0\0\x08"),)), record(b"\0\0\0\0\x08" + written)]
    )
    assert isinstance(framed_alike, Decoded)
    assert isinstance(plain, Decoded)
    assert (framed_alike.value, framed_alike.type, framed_alike.schema_id) == ({"text": bare}, "Letters", 8)
    assert plain.value == framed_alike.value


@pytest.mark.parametrize("told", [b"", b"7", b"\0\0\0\7", b"\x01" + GUID[:15], b"\x02" + GUID, b"\0" + GUID])
def test_a_header_that_names_no_schema_is_an_explicit_unsupported_framing(tmp_path: Path, told: bytes) -> None:
    """A header that holds neither id nor GUID is said to be so, and its value is not guessed at.

    Case: B28
    Parts: real (files)
    Red when: framing.schema_key reads an id without asking for the length
    """
    codec = opened(tmp_path, {7: EMPTY})
    (error,) = codec.decode_many([record(b"\0\0\0\0\7", (("__value_schema_id", told),))])
    assert isinstance(error, RecordError)
    assert error.reason is Reason.UNDECODABLE
    assert str(error).startswith("unsupported_framing")


def test_a_null_header_is_none(tmp_path: Path) -> None:
    codec = opened(tmp_path, {7: EMPTY})
    (decoded,) = codec.decode_many([record(b"\0\0\0\0\7", (("__value_schema_id", None),))])
    assert isinstance(decoded, Decoded)


def test_a_guid_is_refused_by_name_where_schemas_have_ids_only(tmp_path: Path) -> None:
    """A directory of schemas has no GUIDs: an explicit unsupported_framing, and no wait for what never comes.

    Case: B28
    Parts: real (files)
    Red when: SchemaDirectory.by_guid raises DependencyError
    """
    codec = opened(tmp_path, {7: EMPTY})
    codec.warm([7])
    (error,) = codec.decode_many([record(b"\0\0\0\0\7", (("__value_schema_id", b"\x01" + GUID),))])
    assert isinstance(error, RecordError)
    assert error.reason is Reason.UNDECODABLE
    assert str(error).startswith("unsupported_framing")
    assert str(uuid.UUID(bytes=GUID)) in str(error)


@pytest.mark.parametrize(
    ("headers", "value", "told"),
    [
        ((), b"\0\0\0\0\7", 7),
        ((("__value_schema_id", b"\0\0\0\0\x08"),), b"", 8),
        ((("__value_schema_id", b"\x01" + GUID),), b"", None),
    ],
)
def test_a_letter_learns_the_id_from_where_it_stands(headers: Headers, value: bytes, told: int | None) -> None:
    assert schema_id(record(value, headers)) == told


def test_an_unknown_id_in_a_sound_frame_is_an_unknown_schema(tmp_path: Path) -> None:
    """An unknown schema id is a reason of its own.

    Case: B28
    Parts: real (files)
    Red when: SchemaDirectory.by_id raises Reason.UNDECODABLE
    """
    codec = opened(tmp_path, {7: EMPTY})
    (error,) = codec.decode_many([record(b"\0\x7f\xff\xff\xff" + b"\x06abc")])
    assert isinstance(error, RecordError)
    assert error.reason is Reason.UNKNOWN_SCHEMA


def test_bytes_too_many_or_too_few_never_shift_the_neighbours(tmp_path: Path) -> None:
    codec = opened(tmp_path, {1: ORDER})
    value = {"event_id": "e", "order_id": "o", "customer": "c", "amount": 5, "at": 0}
    good = body(ORDER, value)
    results = codec.decode_many(
        [framed(1, content) for content in (good, good + b"\0", good, good[:-1], good[:3], good)]
    )
    assert [isinstance(result, Decoded) for result in results] == [True, False, True, False, False, True]
    assert [str(results[index]) for index in (1, 3, 4)] == [
        "by its schema 1 the value ends at byte 13, and it has 14 bytes",
        "the value ends in the middle of a field (12 bytes)",
        "the value ends in the middle of a field (8 bytes)",
    ]
