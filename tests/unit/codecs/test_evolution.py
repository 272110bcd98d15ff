"""Writer's schema to reader's schema: what fits is converted at load, what does not is refused by name."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.avro import body, opened, record_schema, refusal_of, value_of
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.outcome import Reason

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Kind", "symbols": list(symbols), **more}


def with_defaults(**fields: tuple[Any, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "old", "type": "int"},
            *({"name": n, "type": t, "default": d} for n, (t, d) in fields.items()),
        ],
    }


def test_a_default_has_the_type_of_a_written_value(tmp_path: Path) -> None:
    """Defaults of fields that were not written arrive as bytes, Decimal, lists of their own: not as the schema's text.

    Case: B23
    Parts: real (fastavro writes the old record)
    Red when: plans.Compiler._absent hands out the default as the schema's JSON has it
    """
    new = with_defaults(
        b=("bytes", "\u00ff"),
        d=(DECIMAL, "\u0000"),
        n=(["null", "string"], None),
        s=(["null", "string"], "any"),
        xs=({"type": "array", "items": "bytes"}, ["\u0001"]),
        m=({"type": "map", "values": "int"}, {"a": 1}),
        f=("double", 1),
    )
    old = record_schema("R", {"old": "int"})
    codec = opened(tmp_path, {1: old}, readers=[new])
    first, second = (value_of(codec, 1, body(old, {"old": 7})) for _ in range(2))
    assert first == {
        "old": 7,
        "b": b"\xff",
        "d": Decimal("0.00"),
        "n": None,
        "s": "any",
        "xs": [b"\x01"],
        "m": {"a": 1},
        "f": 1.0,
    }
    assert isinstance(first["d"], Decimal)
    assert first["d"].as_tuple().exponent == -2
    assert first["xs"] is not second["xs"]


@pytest.mark.parametrize(
    ("kind", "default"),
    [("bytes", "\u0100"), ("int", "1"), ("int", 2**31), ("string", None), (["null", "int"], "x"), (enum("A"), "B")],
)
def test_a_default_that_does_not_fit_its_type_is_found_at_start(tmp_path: Path, kind: Any, default: Any) -> None:
    """A reader's schema with a wrong default is a configuration error, before any record.

    Case: B23
    Parts: real (files)
    Red when: avro._declared leaves out check_defaults
    """
    with pytest.raises(ConfigurationError, match=r"the default of R\.x"):
        opened(tmp_path, {}, readers=[with_defaults(x=(kind, default))])


def test_a_symbol_that_the_reader_lacks_becomes_its_default_or_is_dead(tmp_path: Path) -> None:
    """An unknown enum symbol becomes the reader's default; without one that record is dead, and only that one.

    Case: B23
    Parts: real (fastavro writes both records)
    Red when: scalars._symbol takes the writer's symbol where the reader has neither it nor a default
    """
    writer = record_schema("R", {"k": enum("A", "B")})
    wrote_a, wrote_b = body(writer, {"k": "A"}), body(writer, {"k": "B"})
    for folder, reader, expected in (
        (tmp_path / "with", enum("A", default="A"), {"k": "A"}),
        (tmp_path / "without", enum("A"), None),
    ):
        folder.mkdir()
        codec = opened(folder, {1: writer}, readers=[record_schema("R", {"k": reader})])
        assert value_of(codec, 1, wrote_a) == {"k": "A"}
        if expected is not None:
            assert value_of(codec, 1, wrote_b) == expected
        else:
            error = refusal_of(codec, 1, wrote_b)
            assert error.reason is Reason.SCHEMA_INCOMPATIBLE
            assert "R.k has the symbol B" in str(error)


def test_a_renamed_record_and_field_are_found_by_alias(tmp_path: Path) -> None:
    reader = {
        "type": "record",
        "name": "shop.New",
        "aliases": ["shop.Old"],
        "fields": [{"name": "amount", "type": "double", "aliases": ["sum"]}],
    }
    writer = record_schema("shop.Old", {"sum": "int", "gone": "string"})
    codec = opened(tmp_path, {1: writer}, readers=[reader])
    assert value_of(codec, 1, body(writer, {"sum": 3, "gone": "x"})) == {"amount": 3.0}


@pytest.mark.parametrize(
    ("written", "read", "value", "expected"),
    [
        ("int", "long", 5, 5),
        ("int", "float", 5, 5.0),
        ("long", "double", 5, 5.0),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "ä", "ä".encode()),
        ("bytes", "string", "ä".encode(), "ä"),
        ("int", ["null", "long"], 5, 5),
        (["null", "int"], ["null", "string", "long"], 5, 5),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1], [1.0]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}, {"a": 1}, {"a": 1.0}),
    ],
)
def test_promotions_of_the_specification(tmp_path: Path, written: Any, read: Any, value: Any, expected: Any) -> None:
    writer = record_schema("R", {"v": written})
    codec = opened(tmp_path, {1: writer}, readers=[record_schema("R", {"v": read})])
    got = value_of(codec, 1, body(writer, {"v": value}))["v"]
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("long", "int"),
        ("string", "int"),
        ("int", {"type": "array", "items": "int"}),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}),
        ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "timestamp-micros"}),
    ],
)
def test_what_no_record_can_satisfy_is_incompatible_as_a_whole(tmp_path: Path, written: Any, read: Any) -> None:
    codec = opened(tmp_path, {1: record_schema("R", {"v": written})}, readers=[record_schema("R", {"v": read})])
    error = refusal_of(codec, 1, b"")
    assert error.reason is Reason.SCHEMA_INCOMPATIBLE
    assert "schema 1 cannot be read as R: R.v is" in str(error)


def test_a_branch_that_the_reader_lacks_is_dead_only_where_it_is_used(tmp_path: Path) -> None:
    writer = record_schema("R", {"v": ["int", "string"]})
    codec = opened(tmp_path, {1: writer}, readers=[record_schema("R", {"v": "int"})])
    assert value_of(codec, 1, body(writer, {"v": 5})) == {"v": 5}
    assert refusal_of(codec, 1, body(writer, {"v": "x"})).reason is Reason.SCHEMA_INCOMPATIBLE
