"""Logical types: every digit kept, what Python cannot hold refused by name, nothing naive written."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.avro import body, opened, record_schema, refusal_of, value_of, varint
from tidegate.consumers.codecs.avro import AvroCodec
from tidegate.inbox.outcome import Reason


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(base: str, name: str) -> dict[str, Any]:
    return {"type": base, "logicalType": name}


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process believes to be in this time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_more_digits_than_the_precision_are_refused_and_never_rounded(tmp_path: Path) -> None:
    """A decimal with more digits than its schema allows is dead with `decimal_precision`, never rounded.

    Case: B21
    Parts: real (the case's bytes)
    Red when: logical._decimal leaves out the comparison with the limit
    """
    codec = opened(tmp_path, {1: record_schema("Money", {"amount": decimal(4, 2)})})
    error = refusal_of(codec, 1, bytes.fromhex("0800bc614e"))
    assert error.reason is Reason.UNDECODABLE
    assert str(error).startswith("decimal_precision")
    assert "Money.amount" in str(error)


@pytest.mark.parametrize("text", ["9" * 36 + ".99", "-" + "9" * 36 + ".99", "0.01", "-0.01", "0.00", "123456.78"])
def test_every_digit_of_a_decimal_survives_both_ways(tmp_path: Path, text: str) -> None:
    """38 nines come back as 38 nines, whatever the thread's decimal context rounds to.

    Case: B21
    Parts: real (fastavro)
    Red when: logical._decimal calls scaleb without its exact context
    """
    schema = record_schema("Money", {"amount": decimal(38, 2)})
    codec = opened(tmp_path, {1: schema})
    with localcontext(prec=6):
        value = value_of(codec, 1, body(schema, {"amount": Decimal(text)}))
        again = codec.encode("money", ("Money", value))
    assert value == {"amount": Decimal(text)}
    assert again == b"\0\0\0\0\1" + body(schema, {"amount": Decimal(text)})


def test_a_fixed_decimal_is_exact_too(tmp_path: Path) -> None:
    fixed = {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 4}
    schema = record_schema("Money", {"amount": fixed})
    codec = opened(tmp_path, {1: schema})
    value = {"amount": Decimal("-99999999999999.9999")}
    assert value_of(codec, 1, body(schema, value)) == value
    assert codec.encode("money", ("Money", value))[5:] == body(schema, value)


def test_a_readers_decimal_of_another_scale_is_incompatible_before_any_record(tmp_path: Path) -> None:
    """Another precision or scale in the reader's schema is an incompatibility, for every record of that schema.

    Case: B21
    Parts: real (files)
    Red when: scalars._check_scalars leaves out the comparison of precision and scale
    """
    reader = record_schema("Money", {"amount": decimal(8, 4)})
    codec = opened(tmp_path, {1: record_schema("Money", {"amount": decimal(8, 2)})}, readers=[reader])
    error = refusal_of(codec, 1, b"\x02\x01")
    assert error.reason is Reason.SCHEMA_INCOMPATIBLE
    assert "decimal(8,2) as written, decimal(8,4) as read" in str(error)


@pytest.mark.parametrize(
    ("field", "content", "text"),
    [
        (logical("long", "timestamp-millis"), varint(2**63 - 1), "value_out_of_range: timestamp-millis at T.v"),
        (logical("long", "timestamp-millis"), varint(-(2**63)), "value_out_of_range: timestamp-millis at T.v"),
        (logical("long", "timestamp-micros"), varint(2**63 - 1), "value_out_of_range: timestamp-micros at T.v"),
        (logical("long", "local-timestamp-millis"), varint(2**60), "value_out_of_range: local-timestamp-millis at T.v"),
        (logical("int", "date"), varint(2**31 - 1), "value_out_of_range: date at T.v"),
        (logical("int", "date"), varint(-(2**31)), "value_out_of_range: date at T.v"),
        (logical("int", "time-millis"), varint(90_000_000), "value_out_of_range: time-millis at T.v"),
        (logical("int", "time-millis"), varint(-1), "value_out_of_range: time-millis at T.v"),
        (logical("long", "time-micros"), varint(86_400_000_000), "value_out_of_range: time-micros at T.v"),
        (logical("string", "uuid"), b"\x14not-a-uuid", "invalid_uuid: at T.v"),
    ],
)
def test_what_python_cannot_hold_is_refused_by_name(
    tmp_path: Path, field: dict[str, Any], content: bytes, text: str
) -> None:
    """Sentinels and nonsense in dates, times and uuids are dead by name, and no exception of Python's gets out.

    Case: B25
    Parts: real (the case's numbers)
    Red when: logical.converter's functions leave out their except or range check (each row has its own)
    """
    codec = opened(tmp_path, {1: record_schema("T", {"v": field})})
    error = refusal_of(codec, 1, content)
    assert (error.reason, str(error)) == (Reason.UNDECODABLE, text)


def test_a_bad_value_in_a_field_that_nobody_asked_for_harms_nobody(tmp_path: Path) -> None:
    wide = record_schema("T", {"v": logical("long", "timestamp-millis"), "n": "long", "s": "string"})
    codec = opened(tmp_path, {1: wide}, readers=[record_schema("T", {"n": "long"})])
    assert value_of(codec, 1, varint(2**63 - 1) + b"\x0a" + b"\x02\xff") == {"n": 5}


@pytest.mark.parametrize("name", ["timestamp-nanos", "local-timestamp-nanos"])
def test_nanoseconds_are_an_int_and_keep_every_digit(tmp_path: Path, name: str) -> None:
    """Nanoseconds arrive as an int, as documented, because a datetime would drop three digits.

    Case: B25
    Parts: real (files)
    Red when: logical.converter makes a datetime of nanoseconds
    """
    codec = opened(tmp_path, {1: record_schema("T", {"v": logical("long", name)})})
    value = {"v": 1_755_933_141_855_875_123}
    assert value_of(codec, 1, varint(value["v"])) == value
    assert codec.encode("t", ("T", value))[5:] == varint(value["v"])


@pytest.mark.usefixtures("zone")
def test_a_naive_datetime_is_never_written_as_a_point_in_time(tmp_path: Path) -> None:
    """A naive datetime is refused, whatever zone the host is in.

    Case: B25
    Parts: real (TZ set for the process)
    Red when: logical._check_zone lets a naive datetime through (fastavro takes it by the host's zone)
    """
    codec = opened(tmp_path, {1: record_schema("T", {"v": logical("long", "timestamp-millis")})})
    with pytest.raises(ValueError, match="is a point in time"):
        codec.encode("t", ("T", {"v": datetime.datetime(2024, 1, 1)}))  # noqa: DTZ001 - a naive one is what is tested


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("year", [1, 1883, 1969, 1970, 2024, 9999])
@pytest.mark.parametrize("name", ["timestamp-millis", "timestamp-micros"])
def test_a_point_in_time_is_the_same_in_every_zone(tmp_path: Path, name: str, year: int) -> None:
    """A timestamp survives both ways, in UTC, in whatever zone the process runs.

    Case: B25
    Parts: real (fastavro, TZ set for the process)
    Red when: logical._datetime goes by datetime.fromtimestamp without a zone
    """
    schema = record_schema("T", {"v": logical("long", name)})
    codec = opened(tmp_path, {1: schema})
    at = datetime.datetime(year, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC)
    content = body(schema, {"v": at})
    assert value_of(codec, 1, content) == {"v": at}
    assert value_of(codec, 1, content)["v"].tzinfo is datetime.UTC
    assert codec.encode("t", ("T", {"v": at}))[5:] == content


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (logical("int", "date"), datetime.date(1, 1, 1)),
        (logical("int", "date"), datetime.date(9999, 12, 31)),
        (logical("int", "time-millis"), datetime.time(23, 59, 59, 999_000)),
        (logical("long", "time-micros"), datetime.time(23, 59, 59, 999_999)),
        (logical("long", "local-timestamp-micros"), datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),  # noqa: DTZ001 - a naive one is what is tested
        (logical("string", "uuid"), uuid.UUID(int=7)),
        (logical("string", "no-such-type"), "text"),
    ],
)
def test_the_other_logical_types_survive_both_ways(tmp_path: Path, field: dict[str, Any], value: object) -> None:
    schema = record_schema("T", {"v": field})
    codec = opened(tmp_path, {1: schema})
    content = body(schema, {"v": value})
    assert value_of(codec, 1, content) == {"v": value}
    assert codec.encode("t", ("T", {"v": value}))[5:] == content


def test_a_fixed_uuid_is_a_uuid(tmp_path: Path) -> None:
    codec = opened(
        tmp_path, {1: record_schema("T", {"v": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}})}
    )
    value = {"v": uuid.UUID(int=2**100)}
    assert value_of(codec, 1, value["v"].bytes) == value
    assert codec.encode("t", ("T", value))[5:] == value["v"].bytes
    assert str(refusal_of(codec, 1, b"123")).startswith("invalid_uuid")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (decimal(4, 2), Decimal("123.45"), "more than 4 digits"),
        (decimal(4, 2), Decimal("123.4"), "more than 4 digits"),
        (decimal(4, 2), Decimal("1.234"), "more than 2 decimal places"),
        (decimal(4, 2), Decimal("1E+999999"), "more than 4 digits"),
        (decimal(4, 2), Decimal("NaN"), "finite"),
        (decimal(4, 2), 1.5, "needs Decimal"),
        (
            logical("long", "local-timestamp-millis"),
            datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
            "without a zone",
        ),
        (logical("int", "date"), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "needs date"),
        (logical("long", "timestamp-millis"), 5, "needs datetime"),
        ("int", 2**31, "out of range"),
        ("long", 2**63, "out of range"),
        ("int", True, "needs int, not bool"),
        ("string", b"x", "needs string, not bytes"),
        ("string", "\ud800", "lone surrogate"),
        ("float", 1e300, "too large"),
        ("double", 2**53 + 1, "does not hold exactly"),
        ("boolean", 1, "needs boolean"),
    ],
)
def test_what_cannot_be_written_exactly_is_a_value_error(tmp_path: Path, field: Any, value: object, text: str) -> None:
    codec: AvroCodec = opened(tmp_path, {1: record_schema("T", {"v": field})})
    with pytest.raises(ValueError, match=text):
        codec.encode("t", ("T", {"v": value}))
