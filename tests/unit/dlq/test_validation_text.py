"""What is told of a validation error: declared names, and nothing of the payload's keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import pydantic
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel, TypeAdapter
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from tidegate.dlq.failure_text import safe_message
from tidegate.dlq.validation_text import told_errors

CARD = "4111-test-card"
T = TypeVar("T")


class Entry(BaseModel, extra="forbid"):
    sku: int = Field(alias="articleNo")


class Cash(BaseModel):
    kind: Literal["cash"]
    cents: int


class Cheque(BaseModel):
    kind: Literal["cheque"]
    number: int


class Ledger(BaseModel, extra="forbid"):
    lines: list[Entry] = []
    balances: dict[str, int] = {}
    pins: dict[int, int] = {}
    paid: Annotated[Cash | Cheque, Field(discriminator="kind")] | None = None
    either: int | Entry = 1
    deep: int = Field(1, validation_alias=AliasPath("body", "items", 0))
    other: int = Field(1, validation_alias=AliasChoices("first_way", AliasPath("second_way", "inner")))


class Balances(RootModel[dict[str, int]]):
    """Nothing but a map."""


class Titled(BaseModel, title="what we owe"):
    cents: int


class Envelope(BaseModel, Generic[T]):
    content: T


class Checked(BaseModel):
    code: int

    @pydantic.field_validator("code")
    @classmethod
    def refuse(cls, code: int) -> int:
        raise PydanticCustomError(f"{CARD}", "no") if code else PydanticCustomError("code_unknown", "no")


def failed(make: Callable[[Any], object], value: object) -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as caught:
        make(value)
    return caught.value


@pytest.mark.parametrize(
    ("make", "value", "told"),
    [
        (Ledger.model_validate, {"balances": {CARD: "x"}}, ["balances.*: int_parsing"]),
        (Ledger.model_validate, {"balances": {4: 4}}, ["balances.4.[key]: string_type"]),
        (Ledger.model_validate, {"pins": {4111111111111111: "x"}}, ["pins.*: int_parsing"]),
        (Ledger.model_validate, {CARD: 1}, ["*: extra_forbidden"]),
        (Ledger.model_validate, {"cents": 1}, ["*: extra_forbidden"]),
        (
            Ledger.model_validate,
            {"lines": [{"articleNo": "x"}, {CARD: 1}]},
            ["lines.0.articleNo: int_parsing", "lines.1.articleNo: missing", "lines.1.*: extra_forbidden"],
        ),
        (Ledger.model_validate, {"paid": {"kind": "cash"}}, ["paid.cash.cents: missing"]),
        (Ledger.model_validate, {"either": "x"}, ["either.int: int_parsing", "either.Entry: model_type"]),
        (Ledger.model_validate, {"body": {"items": ["x"]}}, ["body.items.0: int_parsing"]),
        (Ledger.model_validate, {"second_way": {"inner": "x"}}, ["second_way.inner: int_parsing"]),
        (Ledger.model_validate, [], [": model_type"]),
        (Balances.model_validate, {CARD: "x"}, ["*: int_parsing"]),
        (Titled.model_validate, {"cents": "x"}, ["cents: int_parsing"]),
        (Envelope[Entry].model_validate, {"content": {"articleNo": "x"}}, ["content.articleNo: int_parsing"]),
        (Checked.model_validate, {"code": 0}, ["code: code_unknown"]),
        (Checked.model_validate, {"code": 1}, ["code: *"]),
        (TypeAdapter(list[Entry]).validate_python, [{"articleNo": "x"}], ["0.articleNo: int_parsing"]),
        (TypeAdapter(dict[str, Entry]).validate_python, {CARD: {}}, ["*.articleNo: missing"]),
        (TypeAdapter(dict[str, int]).validate_python, {CARD: "x"}, ["*: int_parsing"]),
    ],
)
def test_declared_names_are_told_and_keys_of_the_payload_are_not(
    make: Callable[[Any], object], value: object, told: Sequence[str]
) -> None:
    """Keys of maps and names that no class declares are payload: a person's address, a card.

    Case: B38
    Parts: real (pydantic)
    Red when: dlq/validation_text.py's _part tells every str
    """
    assert safe_message(failed(make, value)) == f"{len(told)} validation errors: {'; '.join(told)}"


class Part(TypedDict):
    number: int


Parts = NewType("Parts", list[Part])


@dataclass
class Machine:
    parts: Parts
    spare: Entry


def test_of_a_class_that_is_known_the_names_of_its_fields_fields_are_told() -> None:
    error = failed(TypeAdapter(Machine).validate_python, {"parts": [{"number": "x"}], "spare": {CARD: 1}})
    told = [("parts.0.number", "int_parsing"), ("spare.articleNo", "missing"), ("spare.*", "extra_forbidden")]
    assert told_errors(error, Machine) == told
    assert [path for path, _ in told_errors(error)] == ["*.0.*", "*.articleNo", "*.*"]
