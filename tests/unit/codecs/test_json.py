"""JSON, strictly, both ways."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from tests.support.avro import record
from tidegate.consumers.codecs.codec import CodecSettings, Decoded
from tidegate.consumers.codecs.json import Json, JsonCodec
from tidegate.consumers.codecs.raw import Raw
from tidegate.inbox.errors import RecordError
from tidegate.inbox.outcome import Reason
from tidegate.inbox.scope import field, header


def opened(*types: type, **more: Any) -> JsonCodec:
    return Json(types=types, **more).open(CodecSettings())


def refused(codec: JsonCodec, raw: bytes) -> RecordError:
    (error,) = codec.decode_many([record(raw)])
    assert isinstance(error, RecordError)
    return error


def loaded(raw: bytes, **more: Any) -> Any:
    return opened(**more).decode(record(raw)).value


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"a": [{"b": "a\\u0000b"}]}', "a NUL character, which PostgreSQL cannot hold, at $.a[0].b"),
        (b'{"k\\u0000": 1}', "a NUL character, which PostgreSQL cannot hold, at a key of $"),
        (b'{"a": "\\ud800"}', "a lone surrogate at $.a"),
        (b'{"a": "\\uDC00\\uD800"}', "a lone surrogate at $.a"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number"),
        (b'{"a": 1e999}', "a number beyond what a double holds"),
    ],
)
def test_text_and_numbers_that_the_database_cannot_hold_are_undecodable_with_their_path(raw: bytes, text: str) -> None:
    """NUL, lone surrogates, NaN and infinities are dead with the path of the field.

    Case: B43
    Parts: none
    Red when: JsonCodec.decode leaves out _check_text (the strings), or _loaded parse_constant (the numbers)
    """
    error = refused(opened(), raw)
    assert (error.reason, str(error)) == (Reason.UNDECODABLE, f"JSON: {text}")


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\N{GRINNING FACE}"}),
        (b'{"a": "\\\\u0000"}', {"a": "\\u0000"}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
        (b'{"a": 1' + b"0" * 400 + b"}", {"a": 10**400}),
    ],
)
def test_text_and_numbers_that_only_look_dangerous_stay_as_they_are(raw: bytes, value: Any) -> None:
    """Paired surrogates, an escaped backslash before u0000, and a number of 400 digits are left alone.

    Case: B43
    Parts: none
    Red when: JsonCodec.decode refuses whatever _SUSPECT finds, without looking at the decoded text
    """
    assert loaded(raw) == value


def test_a_nul_is_taken_where_that_is_declared() -> None:
    assert loaded(b'"a\\u0000b"', allow_nul=True) == "a\0b"
    assert "surrogate" in str(refused(opened(allow_nul=True), b'"\\ud800"'))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "not JSON: Expecting value at character 0 of 0 bytes"),
        (b'{"secret": ', "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON: Extra data"),
        (b"\xff\xfe", "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
        (b'{"a": 1, "a": 2}', "a key comes twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5_000, "a number of too many digits"),
    ],
)
def test_what_is_not_json_is_undecodable_and_not_quoted(raw: bytes, text: str) -> None:
    error = refused(opened(), raw)
    assert error.reason is Reason.UNDECODABLE
    assert text in str(error)
    assert "secret" not in str(error)


@dataclass
class Inner:
    i: int


@dataclass
class Thing:
    u: Inner
    price: Decimal | None = None
    at: datetime.datetime | None = None


def test_types_are_checked_strictly_where_a_class_is_mapped() -> None:
    """A string where an int is declared is refused, not converted.

    Case: B26
    Parts: real (pydantic)
    Red when: JsonCodec.decode validates without strict=True (for "5"), or does not validate at all
    """
    codec = opened(Thing, type="Thing")
    for wrong in (b'{"u": {"i": "text"}}', b'{"u": {"i": "5"}}', b'{"u": {"i": 5.5}}', b'{"u": {}}', b"[]"):
        error = refused(codec, wrong)
        assert error.reason is Reason.SCHEMA_INCOMPATIBLE
        assert "text" not in str(error)
    good = b'{"u": {"i": 5}, "price": "1.50", "at": "2024-01-01T00:00:00Z", "more": 1}'
    (decoded,) = codec.decode_many([record(good)])
    assert isinstance(decoded, Decoded)
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert decoded.value == Thing(Inner(5), Decimal("1.50"), at)


class Ledger(pydantic.BaseModel, extra="forbid"):
    balances: dict[str, int]
    things: list[Inner] = []


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"balances": {"4111-test-card": "x"}}', "Ledger.balances.* does not take the value: int_type"),
        (b'{"balances": {}, "anna.smith@example.com": 1}', "Ledger.* does not take the value: extra_forbidden"),
        (b'{"balances": {}, "things": [{"i": "x"}]}', "Ledger.things.0.i does not take the value: int_type"),
        (b"{}", "Ledger.balances does not take the value: missing"),
        (b"[]", "Ledger does not take the value: model_type"),
    ],
)
def test_a_class_that_refuses_tells_its_own_names_and_no_key_of_the_payload(raw: bytes, told: str) -> None:
    """A key that nobody declared is a value like any: where it stands in the path is a star.

    Case: B38
    Parts: real (pydantic)
    Red when: codecs/mapping.py's _refused tells the path as pydantic gives it
    """
    assert str(refused(opened(Ledger, type="Ledger"), raw)) == told


@pytest.mark.parametrize(
    ("rule", "headers", "raw", "name"),
    [
        (header("type"), (("type", b"shop.Thing"),), b'{"u": {"i": 5}}', "shop.Thing"),
        (header("type"), (), b'{"u": {"i": 5}}', ""),
        (header("type"), (("type", None),), b'{"u": {"i": 5}}', ""),
        (field("meta.type"), (), b'{"u": {"i": 5}, "meta": {"type": "Thing"}}', "Thing"),
        (field("meta.type"), (), b'{"u": {"i": 5}, "meta": 7}', ""),
        (field("type"), (), b"[1]", ""),
        ("Other", (), b'{"u": {"i": 5}}', "Other"),
    ],
)
def test_the_type_comes_from_where_it_is_declared(rule: Any, headers: Any, raw: bytes, name: str) -> None:
    decoded = opened(Thing, type=rule).decode(record(raw, headers))
    assert decoded.type == name
    assert isinstance(decoded.value, Thing) == name.endswith("Thing")


def test_what_is_written_can_be_read_again() -> None:
    class Kind(enum.Enum):
        A = "a"

    class Model(pydantic.BaseModel):
        n: int = pydantic.Field(serialization_alias="N")

    codec = opened()
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    value = {
        "d": Decimal("1.50"), "b": b"\0\xff", "at": at, "day": at.date(), "u": uuid.UUID(int=1), "k": Kind.A,
        "t": Thing(Inner(1)), "m": Model(n=2), "xs": (1, 2.5, None, True), "text": "ä\N{GRINNING FACE}",
    }  # fmt: skip
    written = codec.encode("t", value)
    assert "ä\N{GRINNING FACE}".encode() in written
    assert json.loads(written) == {
        "d": "1.50", "b": "AP8=", "at": "2024-01-01T00:00:00+00:00", "day": "2024-01-01", "u": str(uuid.UUID(int=1)),
        "k": "a", "t": {"u": {"i": 1}, "price": None, "at": None}, "m": {"N": 2}, "xs": [1, 2.5, None, True],
        "text": "ä\N{GRINNING FACE}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": float("nan")}, r"\$\.a is not finite"),
        ({"a": [float("inf")]}, r"\$\.a\[0\] is not finite"),
        ({"a": Decimal("NaN")}, "not finite"),
        ({"a": datetime.datetime(2024, 1, 1)}, "without a zone"),  # noqa: DTZ001 - a naive one is what is tested
        ({"a": {1}}, "is a set"),
        ({1: "a"}, "a key that is no string"),
        ("\ud800", "lone surrogate"),
        (object(), "is a object"),
    ],
)
def test_what_json_cannot_say_is_a_value_error(value: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        opened().encode("t", value)


def test_raw_bytes_stay_bytes() -> None:
    codec = Raw().open(CodecSettings())
    (decoded,) = codec.decode_many([record(b"\0\xff")])
    assert isinstance(decoded, Decoded)
    assert (decoded.value, decoded.type, codec.encode("t", b"\0\xff")) == (b"\0\xff", "", b"\0\xff")
    with pytest.raises(ValueError, match="not str"):
        codec.encode("t", "text")
