"""Schemas: every name defined once, references resolved once, contradictions told as what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.avro import body, framed, opened, record_schema, save, value_of
from tidegate.consumers.codecs.codec import CodecStalled
from tidegate.consumers.codecs.schemas import SchemaError, UndefinedNameError, parse

ADDRESS = record_schema("shop.Address", {"street": "string"})
OTHER_ADDRESS = record_schema("shop.Address", {"street": "string", "zip": "int"})
ORDER = record_schema("shop.Order", {"to": "shop.Address"})
INVOICE = record_schema("shop.Invoice", {"to": "shop.Address"})
ROOT = record_schema("shop.Root", {"order": "shop.Order", "invoice": "shop.Invoice"})
VALUE = {"order": {"to": {"street": "a"}}, "invoice": {"to": {"street": "b"}}}


def texts(*schemas: Any) -> list[str]:
    return [json.dumps(schema) for schema in schemas]


def test_a_diamond_of_references_defines_each_name_once(tmp_path: Path) -> None:
    """Root refers to Order and Invoice, both to Address: a record of it decodes.

    Case: B27
    Parts: real (fastavro writes the record)
    Red when: schemas._added raises for a name that is known already
    """
    codec = opened(tmp_path, {1: ADDRESS, 2: ORDER, 3: INVOICE, 4: ROOT})
    assert value_of(codec, 4, body(ROOT, VALUE, [ADDRESS, ORDER, INVOICE])) == VALUE


def test_a_type_that_is_spelled_out_twice_alike_is_one_type() -> None:
    """References that carry Address inline, as older registries return them, agree with the one that refers to it.

    Case: B27
    Parts: none
    Red when: schemas._added raises for a name that is known already
    """
    inlined = record_schema("shop.Invoice", {"to": ADDRESS})
    schema = parse(json.dumps(ROOT), texts(ADDRESS, ORDER, inlined, ADDRESS))
    assert set(schema.names) == {"shop.Address", "shop.Order", "shop.Invoice", "shop.Root"}
    assert schema == parse(json.dumps(ROOT), texts(ADDRESS, ORDER, INVOICE))


def test_two_meanings_of_one_name_are_an_error_of_the_schema_and_no_record_dies_of_it(tmp_path: Path) -> None:
    """Two different definitions of Address stall the partition with a clear message; nothing goes to the dead letters.

    Case: B27
    Parts: real (files)
    Red when: SchemaDirectory.by_id raises a RecordError for a SchemaError
    """
    conflicting = record_schema("shop.Invoice", {"to": OTHER_ADDRESS})
    codec = opened(tmp_path, {2: record_schema("shop.Order", {"to": ADDRESS}), 3: conflicting, 4: ROOT, 9: ADDRESS})
    records = [framed(9, b"\x02a"), framed(4, b"\x02a\x02b"), framed(9, b"\x02a")]
    with pytest.raises(CodecStalled, match=r"two different definitions of shop\.Address") as stalled:
        codec.decode_many(records)
    assert len(stalled.value.done) == 1


def test_a_record_may_contain_itself(tmp_path: Path) -> None:
    """A schema that refers to itself, directly and by way of another, is read to any depth that a record has.

    Case: B27
    Parts: real (fastavro writes the record)
    Red when: plans.Compiler._record has no memory of the records that it is about to make (it recurses for ever)
    """
    tree = record_schema(
        "Tree", {"name": "string", "children": {"type": "array", "items": "Tree"}, "up": ["null", "Tree"]}
    )
    leaf: dict[str, Any] = {"name": "leaf", "children": [], "up": None}
    value = {"name": "root", "children": [leaf, {"name": "branch", "children": [leaf], "up": leaf}], "up": None}
    codec = opened(tmp_path, {1: tree})
    content = body(tree, value)
    assert value_of(codec, 1, content) == value
    assert codec.encode("t", ("Tree", value)) == framed(1, content).value


def test_one_short_name_in_two_namespaces_is_two_types(tmp_path: Path) -> None:
    """a.Part and b.Part live side by side, and a bare name means the one of its own namespace.

    Case: B27
    Parts: real (fastavro writes the record)
    Red when: schemas._union goes by bare names, or schemas._flat leaves a named type in its place
    """
    mine = record_schema("Part", {"x": "int"})
    theirs = record_schema("Part", {"y": "string"}, namespace="b")
    both = record_schema("Both", {"one": mine, "two": theirs, "again": "Part"}, namespace="a")
    codec = opened(tmp_path, {1: both})
    value = {"one": {"x": 1}, "two": {"y": "2"}, "again": {"x": 3}}
    assert value_of(codec, 1, body(both, value)) == value
    assert set(parse(json.dumps(both)).names) == {"a.Part", "b.Part", "a.Both"}
    union = parse(json.dumps([{**mine, "namespace": "a"}, theirs]))
    assert union.root == ["a.Part", "b.Part"]


def test_a_bare_name_means_one_of_no_namespace_where_its_own_has_none(tmp_path: Path) -> None:
    """As for Java's parser, through which the registry takes schemas; fastavro alone knows no such name."""
    part = record_schema("Part", {"x": "int"})
    inline = record_schema("One", {"one": {**part, "namespace": ""}, "two": "Part"}, namespace="a")
    referred = record_schema("Two", {"one": "Part"}, namespace="a")
    codec = opened(tmp_path, {1: part, 2: inline, 3: referred})
    assert value_of(codec, 2, b"\x02\x04") == {"one": {"x": 1}, "two": {"x": 2}}
    assert value_of(codec, 3, b"\x02") == {"one": {"x": 1}}
    assert codec.encode("t", ("a.Two", {"one": {"x": 1}})) == framed(3, b"\x02").value


def test_what_java_takes_and_fastavro_alone_does_not_is_read(tmp_path: Path) -> None:
    schema = record_schema("R", {"a": {"type": {"type": "string", "avro.java.string": "String"}}, "b": {"type": "F"}})
    schema["fields"].append({"name": "c", "type": {"type": "double", "unit": "EUR"}, "default": 0})
    fixed = {"type": "fixed", "name": "F", "size": 1}
    codec = opened(tmp_path, {1: fixed, 2: schema})
    content = b"\x02a" + b"f" + b"\0" * 8
    assert value_of(codec, 2, content) == {"a": "a", "b": b"f", "c": 0.0}
    assert codec.encode("t", ("R", {"a": "a", "b": b"f"})) == framed(2, content).value


def test_branches_of_a_union_at_the_top_do_not_contradict_each_other() -> None:
    one = record_schema("One", {"to": ADDRESS})
    assert parse(json.dumps([one, record_schema("Two", {"to": ADDRESS})])).root == ["One", "Two"]
    with pytest.raises(SchemaError, match=r"two different definitions of shop\.Address: they do not agree"):
        parse(json.dumps([one, record_schema("Two", {"to": OTHER_ADDRESS})]))


def test_a_union_at_the_top_may_refer_to_its_records(tmp_path: Path) -> None:
    """A schema that is a list of references is read like any union.

    Case: B27
    Parts: real (fastavro writes the record)
    Red when: plans.plan does not resolve the branches of a union at the top
    """
    codec = opened(tmp_path, {1: ADDRESS, 2: ORDER, 4: ["shop.Order", "shop.Address"]})
    assert value_of(codec, 4, b"\x02" + body(ADDRESS, {"street": "x"})) == {"street": "x"}


def test_a_shared_type_may_stand_in_a_file_without_an_id(tmp_path: Path) -> None:
    codec = opened(tmp_path, {2: ORDER, 5: OTHER_ADDRESS})
    (tmp_path / "address.avsc").write_text(json.dumps(ADDRESS))
    assert value_of(codec, 2, b"\x02a") == {"to": {"street": "a"}}
    with pytest.raises(UndefinedNameError, match=r"define shop\.Address"):
        parse(json.dumps(ORDER))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "not JSON"),
        ("17", "not int"),
        ('"Unknown"', "define Unknown"),
        ('["int", "int"]', "different branches"),
        ("[]", "different branches"),
        ('["int", ["string"]]', "different branches"),
        ('{"type": "record", "name": "R"}', "no 'fields'"),
        ('{"type": "record", "name": "1R", "fields": []}', "no name"),
        ('{"type": "record", "fields": []}', "no 'name'"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "another field's",
        ),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "must be unique"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "must be in symbols"),
        ('{"type": "fixed", "name": "F", "size": -1}', "number of bytes"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}', "a decimal of precision 2"),
        ('{"type": "bytes", "logicalType": "decimal"}', "a decimal of precision None"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 1000000000}', "a decimal of precision"),
        ('{"type": "array"}', "no 'items'"),
        ('{"type": null}', "not NoneType"),
        ('{"type": ' * 3000 + '"int"' + "}" * 3000, "nested too deeply"),
    ],
)
def test_a_wrong_schema_is_told_clearly(schema: str, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        parse(schema)


def test_a_schema_that_is_put_right_is_used_after_a_while(tmp_path: Path) -> None:
    from tidegate.inbox.clock import ManualClock

    clock = ManualClock()
    codec = opened(tmp_path, {}, clock=clock)
    (tmp_path / "1.avsc").write_text('{"type": "rec')
    with pytest.raises(CodecStalled, match="not JSON"):
        codec.decode_many([framed(1, b"")])
    save(tmp_path, {1: record_schema("R", {})})
    clock.advance(61)
    assert value_of(codec, 1, b"") == {}
