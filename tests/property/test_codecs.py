"""Laws of the codecs: any bytes decode or are refused by name, and what fastavro writes is what we read."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import math
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.avro import framed, one, opened, record, record_schema, save, varint
from tidegate.consumers.codecs.avro import Avro, AvroCodec
from tidegate.consumers.codecs.codec import CodecSettings, CodecStalled, Decoded
from tidegate.consumers.codecs.json import Json
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import RecordError
from tidegate.inbox.outcome import Reason

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
KIND = {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}
POINT = record_schema("Point", {"x": "double", "y": "float"})
WIDE = record_schema(
    "Wide",
    {
        "i": "int",
        "l": "long",
        "f": "float",
        "d": "double",
        "b": "boolean",
        "s": "string",
        "raw": "bytes",
        "n": "null",
        "money": MONEY,
        "kind": KIND,
        "point": POINT,
        "maybe": ["null", "Point"],
        "either": ["string", "long", "Kind"],
        "fix": {"type": "fixed", "name": "Four", "size": 4},
        "list": {"type": "array", "items": "Point"},
        "map": {"type": "map", "values": ["null", "string"]},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "day": {"type": "int", "logicalType": "date"},
        "tod": {"type": "long", "logicalType": "time-micros"},
        "id": {"type": "string", "logicalType": "uuid"},
        "nested": ["null", "Wide"],
    },
)
NOTHINGS = record_schema(
    "Nothings",
    {
        "nulls": {"type": "array", "items": "null"},
        "deep": {"type": "array", "items": {"type": "array", "items": "null"}},
    },
)
TREE = record_schema("Tree", {"next": ["null", "Tree"], "all": {"type": "array", "items": "Tree"}})
SCHEMAS: dict[int, Any] = {
    1: WIDE,
    2: NOTHINGS,
    3: TREE,
    4: [POINT, KIND, "string"],
    5: "string",
    6: record_schema("E", {}),
}

doubles = st.floats(allow_nan=False)
floats = st.floats(allow_nan=False, width=32)
points = st.fixed_dictionaries({"x": doubles, "y": floats})
texts = st.text(max_size=300)
flat = {
    "i": st.integers(-(2**31), 2**31 - 1), "l": st.integers(-(2**63), 2**63 - 1), "f": floats, "d": doubles,
    "b": st.booleans(), "s": texts, "raw": st.binary(max_size=300), "n": st.none(),
    "money": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    "kind": st.sampled_from("ABC"), "point": points, "maybe": st.none() | points,
    "either": st.tuples(st.just("string"), texts) | st.tuples(st.just("long"), st.integers(-9, 9))
    | st.tuples(st.just("Kind"), st.sampled_from("ABC")),
    "fix": st.binary(min_size=4, max_size=4), "list": st.lists(points, max_size=80),
    "map": st.dictionaries(texts, st.none() | texts, max_size=5),
    "at": st.datetimes(min_value=datetime.datetime(1, 1, 2), timezones=st.just(datetime.UTC)),  # noqa: DTZ001 - hypothesis wants it naive
    "day": st.dates(), "tod": st.times(), "id": st.uuids(),
}  # fmt: skip
wides = st.fixed_dictionaries({**flat, "nested": st.none() | st.fixed_dictionaries({**flat, "nested": st.none()})})


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> AvroCodec:
    return opened(tmp_path_factory.mktemp("schemas"), SCHEMAS)


def unnamed(value: Any) -> Any:
    """A value without the names of its branches."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: unnamed(item[1] if isinstance(item, tuple) else item) for key, item in pairs}
    return [unnamed(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@given(value=wides)
def test_what_fastavro_writes_is_read_exactly_and_written_the_same(codec: AvroCodec, value: dict[str, Any]) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, WIDE, value)
    decoded = one(codec, 1, out.getvalue())
    assert isinstance(decoded, Decoded), str(decoded)
    assert decoded.value == unnamed(value)
    assert codec.encode("t", ("Wide", value)) == framed(1, out.getvalue()).value


@given(schema_id=st.sampled_from(sorted(SCHEMAS)), content=st.binary(max_size=200))
def test_any_body_decodes_or_is_refused_by_name(codec: AvroCodec, schema_id: int, content: bytes) -> None:
    one(codec, schema_id, content)


@given(value=wides, data=st.data())
def test_a_damaged_body_decodes_or_is_refused_by_name(
    codec: AvroCodec, value: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(codec.encode("t", ("Wide", value))[5:])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body)))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    one(codec, 1, bytes(body))


@given(
    values=st.lists(st.binary(max_size=60) | st.binary(max_size=20).map(lambda rest: b"\0\0\0\0\5" + rest), max_size=8)
)
def test_any_values_give_one_result_each_in_order(codec: AvroCodec, values: list[bytes]) -> None:
    """No value's fault reaches its neighbours: each result is the same as when it comes alone."""
    together = codec.decode_many([record(value) for value in values])
    alone = [codec.decode_many([record(value)])[0] for value in values]
    assert [repr(result) for result in together] == [repr(result) for result in alone]


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_json_or_refused_by_name(raw: bytes) -> None:
    (result,) = Json().open(CodecSettings()).decode_many([record(raw)])
    assert isinstance(result, Decoded | RecordError)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | doubles.filter(math.isfinite) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


@given(value=plain)
def test_json_that_was_written_is_read_again(value: Any) -> None:
    codec = Json(allow_nul=True).open(CodecSettings())
    assert codec.decode(record(codec.encode("t", value))).value == value


@given(text=st.text(st.characters() | st.sampled_from("\0\ud800\udc00\\u0"), max_size=20))
def test_json_text_is_refused_exactly_where_postgres_cannot_hold_it(text: str) -> None:
    """NUL and lone surrogates, however escaped, and nothing else.

    Case: B43
    Parts: none
    Red when: json._check_string lets one of them pass, or _SUSPECT does not find the escape
    """
    (result,) = Json().open(CodecSettings()).decode_many([record(json.dumps({"a": text}).encode())])
    meant = json.loads(json.dumps(text))  # a high surrogate before a low one is one character
    sound = "\0" not in meant and not any("\ud800" <= character <= "\udfff" for character in meant)
    assert isinstance(result, Decoded) == sound
    if isinstance(result, Decoded):
        assert result.value == {"a": meant}


@pytest.mark.parametrize(
    ("schema_id", "content"),
    [
        (2, varint(2**60)),
        (2, varint(-(2**60)) + varint(0)),
        (2, varint(0) + (varint(100_000)) * 3),
        (5, varint(2**62) + b"abc"),
        (5, varint(-5) + b"abc"),
        (5, varint(-(2**63)) + b"abc"),
        (5, b"\xff" * 200),
        (5, b"\x80" * 5_000_000 + b"\x01"),
        (1, b"\xff" * 9 + b"\x7f"),
        (3, b"\x02" * 1_000_000),
        (3, (b"\0" + varint(1)) * 500_000),
        (3, b"\0" + varint(2**62)),
    ],
)  # fmt: skip
def test_bombs_neither_fill_the_memory_nor_crash(tmp_path: Path, schema_id: int, content: bytes) -> None:
    """Counts of 2^60, lengths of 2^62, endless numbers and bottomless nesting are refused at no cost."""
    codec = opened(tmp_path, SCHEMAS)
    codec.warm(SCHEMAS)
    made = framed(schema_id, content)
    tracemalloc.start()
    try:
        (error,) = codec.decode_many([made])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, RecordError)
    assert error.reason is Reason.UNDECODABLE
    assert peak < 2_000_000


@given(
    text=st.text(max_size=80) | plain.map(lambda value: json.dumps({"type": "record", "name": "R", "fields": value}))
)
def test_any_text_as_a_schema_is_used_or_stalls(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("one", numbered=True)
    save(folder, {})
    (folder / "1.avsc").write_text(text, encoding="utf-8", errors="replace")
    codec = Avro(str(folder)).open(CodecSettings(clock=ManualClock()))
    with contextlib.suppress(CodecStalled):
        assert len(codec.decode_many([framed(1, b"\0")])) == 1
