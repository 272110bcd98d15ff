"""Avro as text and back: the same bytes, or a refusal without a value in it; masking as the fields' property says."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from tests.support.avro import body
from tidegate.consumers.codecs.avro_text import as_text, from_text, masking_of
from tidegate.consumers.codecs.source import SchemaText

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string", "mask": False},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "who",
            "mask": False,
            "type": {
                "type": "record",
                "name": "Person",
                "fields": [
                    {"name": "name", "type": "string", "mask": True},
                    {"name": "boss", "type": ["null", "Person"]},
                ],
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
TEXT = SchemaText(json.dumps(SCHEMA))
VALUE: dict[str, Any] = {
    "id": "o",
    "at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "price": Decimal("1.20"),
    "note": "x",
    "who": {"name": "Ann", "boss": None},
    "tags": {"a": "b"},
}


def test_text_goes_back_to_the_same_bytes() -> None:
    bytes_ = body(SCHEMA, VALUE)
    assert from_text(TEXT, as_text(TEXT, bytes_)) == bytes_


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '"Secret"', "null", '{"id": "Secret"}', '{"id": 4111, "at": 1, "price": "x", "tags": {}}'],
)
def test_what_does_not_fit_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        from_text(TEXT, text)
    assert "Secret" not in str(refused.value)
    assert "4111" not in str(refused.value)


def test_a_field_that_the_schema_does_not_have_is_not_passed_over() -> None:
    given = json.loads(as_text(TEXT, body(SCHEMA, VALUE)))
    given["who"]["more"] = 1
    with pytest.raises(ValueError, match=r"value\.who has a field"):
        from_text(TEXT, json.dumps(given))


def test_a_missing_field_with_a_default_gets_it() -> None:
    given = json.loads(as_text(TEXT, body(SCHEMA, VALUE)))
    del given["note"]
    assert from_text(TEXT, json.dumps(given)) == body(SCHEMA, VALUE | {"note": None})


def test_masking_is_read_from_the_fields_also_of_references_and_within_themselves() -> None:
    masking = masking_of(TEXT)
    assert masking.rules == {("id",): False, ("who",): False, ("who", "name"): True}
    assert masking.maps == {("tags",)}
    referring = {
        "type": "record",
        "name": "Box",
        "namespace": "other",
        "fields": [{"name": "order", "type": "shop.Order"}],
    }
    told = masking_of(SchemaText(json.dumps(referring), (json.dumps(SCHEMA),)))
    assert told.rules[("order", "who", "name")] is True
    assert told.maps == {("order", "tags")}


def test_a_primitive_has_nothing_to_mask_by() -> None:
    assert masking_of(SchemaText('"string"')).rules == {}
