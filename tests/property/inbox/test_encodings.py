"""Laws of what is stored and looked up: encodings lose nothing, identities never collide by their encoding."""

from __future__ import annotations

import string
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.inbox.claim import copy_buffer
from tidegate.inbox.event import Headers
from tidegate.inbox.identity import digest16, event_id16, event_prefix, key_hash16, outbox_id16, position_id16
from tidegate.inbox.record_bytes import EMPTY, decode_headers, encode_headers
from tidegate.inbox.safe_text import safe_text

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
headers = st.lists(st.tuples(any_text, st.none() | st.binary(max_size=30)), max_size=8).map(tuple)


@given(headers)
def test_headers_come_back_as_they_were(given_headers: Headers) -> None:
    assert decode_headers(encode_headers(given_headers)) == given_headers


def test_no_headers_have_one_encoding() -> None:
    assert encode_headers(()) == EMPTY


@given(headers, headers)
def test_different_headers_have_different_bytes(one: Headers, other: Headers) -> None:
    assert (encode_headers(one) == encode_headers(other)) == (one == other)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_say_that_they_are_none(data: bytes) -> None:
    try:
        decoded = decode_headers(data)
    except ValueError:
        return
    assert encode_headers(decoded) == data


@given(headers.filter(bool), st.data())
def test_bytes_that_were_cut_are_refused(given_headers: Headers, data: st.DataObject) -> None:
    encoded = encode_headers(given_headers)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError, match="headers"):
        decode_headers(encoded[:cut])


@given(any_text, st.integers(1, 30))
def test_safe_text_is_bounded_storable_and_stays_as_it_is(text: str, chars_max: int) -> None:
    safe = safe_text(text, chars_max)
    assert len(safe) <= chars_max
    assert "\0" not in safe
    assert safe.encode().decode() == safe
    assert safe_text(safe, chars_max) == safe


parts = st.lists(st.binary(max_size=12), max_size=5)


@given(parts, parts)
def test_two_lists_of_parts_share_a_digest_only_if_they_are_the_same(one: list[bytes], other: list[bytes]) -> None:
    assert (digest16(b"k", *one) == digest16(b"k", *other)) == (one == other)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_kinds_are_name_spaces_of_their_own(one: bytes, other: bytes) -> None:
    assert (digest16(one, b"x") == digest16(other, b"x")) == (one == other)


words = st.text(string.ascii_letters + "/", max_size=6)


@given(*[words] * 6, *[st.binary(max_size=6)] * 2)
def test_ids_of_different_topics_types_or_tenants_never_collide(
    topic: str, type_: str, tenant: str, topic2: str, type2: str, tenant2: str, event: bytes, event2: bytes
) -> None:
    one = event_id16(event_prefix(topic, type_, tenant.encode()), event)
    other = event_id16(event_prefix(topic2, type2, tenant2.encode()), event2)
    assert (one == other) == ((topic, type_, tenant, event) == (topic2, type2, tenant2, event2))


positions = st.tuples(words, st.integers(0, 99), st.integers(0, 99), st.integers(0, 2**63 - 1))


@given(positions, positions)
def test_a_position_is_one_identity(one: tuple[str, int, int, int], other: tuple[str, int, int, int]) -> None:
    assert (position_id16(*one) == position_id16(*other)) == (one == other)


@given(st.binary(max_size=8), st.none() | st.binary(max_size=8))
def test_a_null_key_is_no_empty_key(operation: bytes, key: bytes | None) -> None:
    assert len(key_hash16(operation)) == 16
    other = b"" if key is None else None
    assert outbox_id16("h", "o", "t", key, "n", 0) != outbox_id16("h", "o", "t", other, "n", 0)


claims = st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.integers(-(2**63), 2**63 - 1)), max_size=20)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), claims)
def test_the_copy_buffer_is_what_the_format_says(handler: int, version: int, ids: list[tuple[bytes, int]]) -> None:
    buffer = copy_buffer(handler, version, ids)
    assert buffer[:19] == b"PGCOPY\n\xff\r\n\0" + bytes(8)
    assert buffer[-2:] == b"\xff\xff"
    rows = [buffer[at : at + 54] for at in range(19, len(buffer) - 2, 54)]
    for row, (event_id, payload_hash) in zip(rows, ids, strict=True):
        assert struct.unpack(">hiqii", row[:22]) == (4, 8, handler, 4, version)
        assert row[22:26] == struct.pack(">i", 16)
        assert row[26:42] == event_id
        assert struct.unpack(">iq", row[42:]) == (8, payload_hash)
