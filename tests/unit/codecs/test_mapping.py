"""Payload classes: matched by full name, checked at load where that can be known, made without a detour."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NewType, Optional, Union

import pydantic
import pytest

from tests.support.avro import ORDER, body, framed, one, opened, record, record_schema, refusal_of, value_of
from tidegate.consumers.codecs.codec import CodecSettings, Decoded
from tidegate.consumers.codecs.json import Json
from tidegate.inbox.errors import ConfigurationError, RecordError
from tidegate.inbox.outcome import Reason

AT = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
VALUE = {"event_id": "e", "order_id": "o", "customer": "c", "amount": 5, "at": AT}
CustomerId = NewType("CustomerId", str)


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    event_id: str
    order_id: str
    customer: str
    amount: int
    at: datetime.datetime


class Kind(enum.Enum):
    RETAIL = "A"
    B = "wholesale"


def test_a_record_becomes_an_instance_of_the_class_of_its_name(tmp_path: Path) -> None:
    codec = opened(tmp_path, {1: ORDER}, types=[OrderPlaced])
    decoded = one(codec, 1, body(ORDER, VALUE))
    assert isinstance(decoded, Decoded)
    assert (decoded.value, decoded.type, decoded.schema_id) == (
        OrderPlaced("e", "o", "c", 5, AT),
        "shop.OrderPlaced",
        1,
    )
    assert codec.encode("shop.orders", decoded.value) == framed(1, body(ORDER, VALUE)).value


def test_a_record_without_a_class_stays_a_dict(tmp_path: Path) -> None:
    assert value_of(opened(tmp_path, {1: ORDER}), 1, body(ORDER, VALUE)) == VALUE


def test_the_declared_full_name_goes_before_the_classs_own(tmp_path: Path) -> None:
    @dataclass
    class Placed:
        __avro_name__ = "shop.OrderPlaced"
        amount: int

    @dataclass
    class OrderPlaced:
        customer: str

    codec = opened(tmp_path, {1: ORDER}, types=[OrderPlaced, Placed])
    assert value_of(codec, 1, body(ORDER, VALUE)) == Placed(5)


def test_two_classes_of_one_name_are_a_configuration_error(tmp_path: Path) -> None:
    @dataclass
    class OrderPlaced:
        amount: int

    with pytest.raises(ConfigurationError, match="__avro_name__"):
        opened(tmp_path, {}, types=[OrderPlaced, globals()["OrderPlaced"]])


def test_types_declared_later_count_for_schemas_that_are_known(tmp_path: Path) -> None:
    codec = opened(tmp_path, {1: ORDER})
    assert value_of(codec, 1, body(ORDER, VALUE)) == VALUE
    codec.types([OrderPlaced, dict, str])
    assert isinstance(value_of(codec, 1, body(ORDER, VALUE)), OrderPlaced)


def test_fields_that_the_class_lacks_are_left_out_and_defaults_of_the_class_count(tmp_path: Path) -> None:
    @dataclass
    class OrderPlaced:
        amount: int
        customer: str
        note: str = "none"
        tags: list[str] = field(default_factory=list)

    codec = opened(tmp_path, {1: ORDER}, types=[OrderPlaced])
    assert value_of(codec, 1, body(ORDER, VALUE)) == OrderPlaced(5, "c")


def test_keyword_only_fields_and_another_order(tmp_path: Path) -> None:
    @dataclass(kw_only=True)
    class OrderPlaced:
        at: datetime.datetime
        customer: CustomerId

    codec = opened(tmp_path, {1: ORDER}, types=[OrderPlaced])
    assert value_of(codec, 1, body(ORDER, VALUE)) == OrderPlaced(at=AT, customer=CustomerId("c"))


def test_a_field_that_no_record_has_is_incompatible_as_a_whole(tmp_path: Path) -> None:
    @dataclass
    class OrderPlaced:
        customer: str
        currency: str

    error = refusal_of(opened(tmp_path, {1: ORDER}, types=[OrderPlaced]), 1, b"")
    assert error.reason is Reason.SCHEMA_INCOMPATIBLE
    assert "OrderPlaced needs currency" in str(error)


@dataclass(frozen=True)
class Address:
    street: str


@dataclass(frozen=True)
class Everything:
    address: Address
    others: list[Address]
    more: tuple[Address, ...]
    by_name: Mapping[str, Address]
    maybe: Address | None
    old_maybe: Optional[int]  # noqa: UP045 - the old spelling is what is tested
    old_union: Union[int, str]  # noqa: UP007 - so is this
    kind: Kind
    word: Literal["A", "B"]
    labels: frozenset[str]
    share: float
    price: Annotated[Decimal, "EUR"]
    ident: uuid.UUID
    raw_ident: str
    at_ms: int
    anything: Any
    seq: Sequence[int]


def test_nested_classes_lists_optionals_and_enums(tmp_path: Path) -> None:
    address = record_schema("shop.Address", {"street": "string"})
    kind = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
    uuid_text = {"type": "string", "logicalType": "uuid"}
    schema = record_schema(
        "Everything",
        {
            "address": address,
            "others": {"type": "array", "items": "shop.Address"},
            "more": {"type": "array", "items": "shop.Address"},
            "by_name": {"type": "map", "values": "shop.Address"},
            "maybe": ["null", "shop.Address"],
            "old_maybe": ["null", "int"],
            "old_union": ["int", "string"],
            "kind": kind,
            "word": "K",
            "labels": {"type": "array", "items": "string"},
            "share": "int",
            "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "ident": uuid_text,
            "raw_ident": uuid_text,
            "at_ms": {"type": "long", "logicalType": "timestamp-millis"},
            "anything": "shop.Address",
            "seq": {"type": "array", "items": "int"},
        },
    )
    street = {"street": "s"}
    written = {
        "address": street, "others": [street], "more": [street], "by_name": {"k": street}, "maybe": street,
        "old_maybe": None, "old_union": "x", "kind": "A", "word": "B", "labels": ["l"], "share": 2,
        "price": Decimal("1.50"), "ident": uuid.UUID(int=1), "raw_ident": uuid.UUID(int=2), "at_ms": AT,
        "anything": street, "seq": [1],
    }  # fmt: skip
    codec = opened(tmp_path, {1: schema}, types=[Everything])
    value = value_of(codec, 1, body(schema, written))
    assert value == Everything(
        Address("s"), [Address("s")], (Address("s"),), {"k": Address("s")}, Address("s"), None, "x", Kind.RETAIL, "B",
        frozenset({"l"}), 2.0, Decimal("1.50"), uuid.UUID(int=1), str(uuid.UUID(int=2)),
        round(AT.timestamp() * 1000), street, [1],
    )  # fmt: skip
    assert type(value.share) is float


@pytest.mark.parametrize(
    ("kind", "annotation"),
    [
        ("string", int), ("long", str), ("double", int), ("boolean", int), ("bytes", str), ("long", bool),
        ({"type": "array", "items": "int"}, list[str]), ({"type": "map", "values": "int"}, dict[str, str]),
        ({"type": "long", "logicalType": "timestamp-nanos"}, datetime.datetime), ("string", Address),
        ({"type": "long", "logicalType": "timestamp-millis"}, datetime.date), (record_schema("shop.X", {}), int),
        ({"type": "array", "items": "int"}, tuple[int, int]),
    ],
)  # fmt: skip
def test_a_wrong_type_is_known_when_the_schema_is_loaded(tmp_path: Path, kind: Any, annotation: Any) -> None:
    @dataclass
    class T:
        v: object

    T.__annotations__["v"] = annotation
    error = refusal_of(opened(tmp_path, {1: record_schema("T", {"v": kind})}, types=[T]), 1, b"")
    assert error.reason is Reason.SCHEMA_INCOMPATIBLE
    assert "T.v" in str(error)


def test_a_null_is_refused_only_where_the_class_takes_none(tmp_path: Path) -> None:
    @dataclass
    class T:
        v: int

    codec = opened(tmp_path, {1: record_schema("T", {"v": ["null", "int"]})}, types=[T])
    assert value_of(codec, 1, b"\x02\x0a") == T(5)
    assert refusal_of(codec, 1, b"\x00").reason is Reason.SCHEMA_INCOMPATIBLE


class Refusal(Exception):
    """No kin of the exceptions that checks usually raise."""


@dataclass
class Checked:
    v: str

    def __post_init__(self) -> None:
        if self.v != "ok":
            raise Refusal(f"not ok: {self.v}")


@dataclass
class Assigned:
    v: str

    def __setattr__(self, name: str, value: str) -> None:
        Checked(value)
        super().__setattr__(name, value)


@dataclass(init=False)
class Initialised:
    v: str

    def __init__(self, v: str) -> None:
        self.v = Checked(v).v


class Undecorated(Initialised):
    pass


@dataclass
class Unmade:
    v: str

    def __new__(cls, v: str) -> Any:
        Checked(v)
        return super().__new__(cls)


@dataclass(kw_only=True)
class ByName(Checked):
    pass


class Model(pydantic.BaseModel):
    v: str

    @pydantic.field_validator("v")
    @classmethod
    def check(cls, v: str) -> str:
        return Checked(v).v


class Guarding:
    def __set__(self, instance: object, value: str) -> None:
        Checked(value)


@dataclass
class Described:
    v: str


Described.v = Guarding()  # pyright: ignore[reportAttributeAccessIssue] - in the class it would be a default


@pytest.mark.parametrize(
    "cls", [Checked, Assigned, Initialised, Undecorated, Unmade, ByName, Model, Described], ids=lambda cls: cls.__name__
)
def test_a_class_that_checks_itself_refuses_whatever_it_raises_and_quotes_nothing(tmp_path: Path, cls: type) -> None:
    """What a user's class raises, of any type, is that record's fault, and the next record is decoded."""
    codec = opened(tmp_path, {1: record_schema(cls.__name__, {"v": "string"})}, types=[cls])
    good, bad, after = codec.decode_many([framed(1, b"\x04ok"), framed(1, b"\x0csecret"), framed(1, b"\x04ok")])
    assert isinstance(good, Decoded)
    assert isinstance(after, Decoded)
    assert isinstance(good.value, cls)
    assert isinstance(bad, RecordError)
    assert (bad.reason, str(bad)) == (
        Reason.SCHEMA_INCOMPATIBLE,
        f"{cls.__name__} does not take the record: Refusal",
    )


@pytest.mark.parametrize("cls", [Checked, Model], ids=lambda cls: cls.__name__)
def test_the_same_goes_for_json(cls: type) -> None:
    codec = Json(types=[cls], type=cls.__name__).open(CodecSettings())
    bad, good = codec.decode_many([record(b'{"v": "secret"}'), record(b'{"v": "ok"}')])
    assert isinstance(good, Decoded)
    assert isinstance(bad, RecordError)
    assert (bad.reason, str(bad)) == (
        Reason.SCHEMA_INCOMPATIBLE,
        f"{cls.__name__} does not take the record: Refusal",
    )


@dataclass
class Leaving:
    v: str
    error: ClassVar[type[BaseException]]

    def __post_init__(self) -> None:
        if self.v != "ok":
            raise self.error


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_class_that_would_end_the_process_refuses_its_record_and_no_more(error: type[BaseException]) -> None:
    Leaving.error = error
    codec = Json(types=[Leaving], type="Leaving").open(CodecSettings())
    bad, good = codec.decode_many([record(b'{"v": "no"}'), record(b'{"v": "ok"}')])
    assert isinstance(good, Decoded)
    assert isinstance(bad, RecordError)
    assert bad.reason is Reason.SCHEMA_INCOMPATIBLE


def test_what_cannot_be_hashed_for_a_set_is_that_records_fault(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class T:
        v: frozenset[Any]

    codec = opened(
        tmp_path,
        {1: record_schema("T", {"v": {"type": "array", "items": {"type": "map", "values": "int"}}})},
        types=[T],
    )
    assert value_of(codec, 1, b"\0") == T(frozenset())
    assert str(refusal_of(codec, 1, b"\x02\0\0")) == "T.v does not take the record: TypeError"


def test_a_pydantic_model_validates_and_nests(tmp_path: Path) -> None:
    class Item(pydantic.BaseModel):
        sku: str
        count: int = pydantic.Field(gt=0)

    class Order(pydantic.BaseModel):
        lines: list[Item]
        customer: str = pydantic.Field(alias="customerName")
        note: str | None = None

    line = record_schema("Item", {"sku": "string", "count": "int"})
    schema = record_schema(
        "Order", {"customerName": "string", "lines": {"type": "array", "items": line}, "extra": "int"}
    )
    codec = opened(tmp_path, {1: schema}, types=[Order, Item])
    good = {"customerName": "c", "lines": [{"sku": "s", "count": 1}], "extra": 1}
    assert value_of(codec, 1, body(schema, good)) == Order(lines=[Item(sku="s", count=1)], customerName="c")
    error = refusal_of(codec, 1, body(schema, {**good, "lines": [{"sku": "secret", "count": 0}]}))
    assert (error.reason, str(error)) == (
        Reason.SCHEMA_INCOMPATIBLE,
        "Item.count does not take the value: greater_than",
    )


@dataclass
class Line:
    sku: str
    kind: Kind


@dataclass
class Basket:
    lines: list[Line]
    first: Line | None


def test_an_instance_is_written_with_its_nested_values(tmp_path: Path) -> None:
    line = record_schema(
        "Line", {"sku": "string", "kind": {"type": "enum", "name": "K", "symbols": ["A", "wholesale"]}}
    )
    schema = record_schema("Basket", {"lines": {"type": "array", "items": line}, "first": ["null", "Line"]})
    codec = opened(tmp_path, {1: schema}, types=[Basket, Line])
    order = Basket([Line("s", Kind.RETAIL)], Line("t", Kind.B))
    content = codec.encode("t", order)
    assert value_of(codec, 1, content[5:]) == order
    with pytest.raises(ValueError, match="no file of the schema directory holds Line"):
        codec.encode("t", Line("s", Kind.RETAIL))
    with pytest.raises(ValueError, match="has no full name"):
        codec.encode("t", {"lines": []})


def test_an_annotation_that_nothing_defines_is_found_at_start(tmp_path: Path) -> None:
    @dataclass
    class Lost:
        v: Nowhere  # noqa: F821 - nothing defines it  # pyright: ignore[reportUndefinedVariable] - the same

    with pytest.raises(ConfigurationError, match="Lost has an annotation that nothing defines: Nowhere"):
        opened(tmp_path, {}, types=[Lost])
