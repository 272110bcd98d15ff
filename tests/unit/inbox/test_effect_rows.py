"""What a repeat must find again (an operation's identity, its key, its request's fingerprint), and what is stored."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, RootModel, field_serializer

from tidegate.inbox.effect_rows import NOT_TOLD, Call, Owner, ResultRefused, fingerprint, next_key, result_text
from tidegate.inbox.effect_rules import Effect, review

CHARGE = Effect("charge", review(), 10.0)
OWNER = Owner("billing/bill", "#7", scope="t1")


def called(operation: str = "op-1", owner: Owner = OWNER, effect: Effect = CHARGE) -> Call:
    return Call.of(effect, owner, operation, None)


def test_the_key_is_the_same_in_every_process_and_every_release() -> None:
    """It stands at providers: a changed derivation would double what is retried across an upgrade."""
    assert called().key == "f03bf3f2-3cf8-5238-a228-34e0659b723f"


def test_a_key_is_a_uuid_in_form() -> None:
    for n in range(200):
        parsed = uuid.UUID(called(f"op-{n}").key)
        assert str(parsed) == called(f"op-{n}").key
        assert parsed.version == 5
        assert parsed.variant == uuid.RFC_4122


DIFFERENT: dict[str, Call] = {
    "operation": called("op-2"),
    "owner": called(owner=Owner("billing/other", "#8", scope="t1")),
    "tenant": called(owner=Owner("billing/bill", "#7", scope="t2")),
    "scope": called(owner=Owner("billing/bill", "#7", scope="shop.orders")),
    "effect": called(effect=Effect("refund", review(), 10.0)),
    "a boundary that moved": called("p-1", owner=Owner("billing/bill", "#7", scope="t1o")),
    "6,000 characters": called("o" * 6_000),
    "6,001 characters": called("o" * 6_001),
    "NUL": called("op\x00"),
    "a lone surrogate": called("op\ud800"),
}


def test_what_differs_in_anything_is_another_operation() -> None:
    calls = [called(), *DIFFERENT.values()]
    assert len({call.identity for call in calls}) == len(calls)
    assert len({call.key for call in calls}) == len(calls)


def test_a_renamed_handler_finds_its_rows() -> None:
    renamed = called(owner=Owner("billing/charge", "#7", scope="t1"))
    assert renamed.identity == called().identity


def test_an_operation_without_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="operation id"):
        called("")


@pytest.mark.parametrize("operation", [17, None, uuid.UUID(int=7), b"o1"])
def test_an_operation_id_that_is_no_text_is_refused_with_what_fixes_it(operation: Any) -> None:
    with pytest.raises(TypeError, match=r"operation_id= is a .*: give text"):
        called(operation)


def test_a_persons_word_gives_another_key_each_time() -> None:
    first = called().key
    assert len({first, next_key(first), next_key(next_key(first))}) == 3
    assert next_key(first) == next_key(first)


# ------------------------------------------------------------------------------------------------------ fingerprints


@dataclass(frozen=True)
class Order:
    id: str
    cents: int


class Payment(BaseModel):
    amount: decimal.Decimal


class Colour(enum.Enum):
    RED = "red"


class Parcel(BaseModel):
    sent: datetime.datetime
    wait: datetime.timedelta
    id: uuid.UUID
    colour: Colour
    body: bytes
    payments: tuple[Payment, ...]


class Tagged(BaseModel):
    tags: set[str]


class Frozen(BaseModel):
    by_day: dict[str, list[frozenset[int]]]


class Tags(RootModel[set[str]]):
    pass


class Sorted(BaseModel):
    tags: set[str]

    @field_serializer("tags")
    def in_order(self, tags: set[str]) -> list[str]:
        return sorted(tags)


REQUESTS: dict[str, Any] = {
    "text": "pay",
    "bytes": b"pay",
    "dict": {"a": 1, "b": [1, 2, None]},
    "dataclass": Order("o1", 5),
    "model": Payment(amount=decimal.Decimal("1.10")),
    "model of all sorts": Parcel(
        sent=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        wait=datetime.timedelta(seconds=90),
        id=uuid.UUID(int=7),
        colour=Colour.RED,
        body=b"pay",
        payments=(Payment(amount=decimal.Decimal("1.10")),),
    ),
    "model with a sorted set": Sorted(tags={"a", "b"}),
    "decimal": {"amount": decimal.Decimal("1.10")},
    "date": {"on": datetime.date(2026, 1, 1)},
    "time": {"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)},
    "uuid": {"id": uuid.UUID(int=7)},
    "enum": {"colour": Colour.RED},
    "inner bytes": {"body": b"\x00\xff"},
    "surrogate": {"text": "\ud800"},
    "NUL": {"text": "\x00"},
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_has_a_stable_fingerprint(kind: str) -> None:
    first = fingerprint(REQUESTS[kind])
    assert first == fingerprint(REQUESTS[kind])
    assert len(first) == 16
    assert first != NOT_TOLD


def test_the_order_of_fields_says_nothing_and_everything_else_does() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    told = [fingerprint(request) for request in ({"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": [1]}, b'{"a":1}', "a", b"a")]
    assert len(set(told)) == len(told)
    assert fingerprint(None) == NOT_TOLD


def test_a_models_fingerprint_is_that_of_its_json() -> None:
    """Rows of earlier days hold it: another form would make each of their repeats a contradiction."""
    parcel = REQUESTS["model of all sorts"]
    assert fingerprint(parcel) == fingerprint(parcel.model_dump(mode="json"))
    assert fingerprint({"parcel": parcel}) == fingerprint({"parcel": parcel.model_dump(mode="json")})


UNSTABLE: list[Any] = [
    *({1, 2}, object(), {"a": object()}, {"a": {1}}, {("a", 1): 2}),
    *(Tagged(tags={"a"}), {"a": [Tagged(tags={"a"})]}, Frozen(by_day={"mon": [frozenset({1})]}), Tags({"a"})),
]


@pytest.mark.parametrize("request_", UNSTABLE)
def test_what_could_differ_from_run_to_run_is_refused(request_: Any) -> None:
    with pytest.raises(TypeError):
        fingerprint(request_)


# ----------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("result", [None, 1, "x", [], {}, {"a": [1, 2.5, None, True, "é", "\U0001f600", "\\u0000"]}])
def test_a_result_is_json(result: Any) -> None:
    text = result_text(result, 1_000)
    assert (None if text is None else json.loads(text)) == result


REFUSED: dict[str, Any] = {
    "no JSON": {"a": object()},
    "NaN": float("nan"),
    "infinity": [float("inf")],
    "NUL": {"a": "\x00"},
    "NUL in a key": {"\x00": 1},
    "a lone surrogate": "\ud800",
    "bytes": b"x",
    "too large": "x" * 999,
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_kept_is_refused_with_its_reason(what: str) -> None:
    with pytest.raises(ResultRefused, match="result"):
        result_text(REFUSED[what], 1_000)


def test_a_result_in_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for endless in (ring, deep):
        with pytest.raises(ResultRefused):
            result_text(endless, 1_000)


def test_the_bound_is_of_bytes_and_inclusive() -> None:
    assert result_text("é" * 10, 22) is not None
    with pytest.raises(ResultRefused, match="22 bytes of JSON, more than result_bytes_max=21"):
        result_text("é" * 10, 21)
