"""Logical types: exact decimals, dates and times as Python's, and a typed refusal of what those cannot hold. No IO.

| logical type | value | refused |
|---|---|---|
| decimal | `Decimal`, every digit | more digits than the precision: `decimal_precision` |
| date | `date` | outside the years 1 to 9999: `value_out_of_range` |
| time-millis, time-micros | `time` | negative, or a day and more: `value_out_of_range` |
| timestamp-millis, -micros | `datetime` in UTC | outside the years 1 to 9999: `value_out_of_range` |
| local-timestamp-millis, -micros | naive `datetime` | the same |
| timestamp-nanos, local-timestamp-nanos | `int`, nanoseconds since 1970: a datetime would drop digits | nothing |
| uuid | `UUID` | text that is none: `invalid_uuid` |
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final, NoReturn

from ...inbox.errors import RecordError
from ...inbox.outcome import Reason
from .schemas import FixedType, Primitive

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_LOCAL: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - a local timestamp has no zone
_EPOCH_DAY: Final = _EPOCH.toordinal()
_DAY_MICROS: Final = 86_400_000_000
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)

TYPES: Final[dict[str, type]] = {
    "decimal": Decimal,
    "date": datetime.date,
    "time-millis": datetime.time,
    "time-micros": datetime.time,
    "timestamp-millis": datetime.datetime,
    "timestamp-micros": datetime.datetime,
    "timestamp-nanos": int,
    "local-timestamp-millis": datetime.datetime,
    "local-timestamp-micros": datetime.datetime,
    "local-timestamp-nanos": int,
    "uuid": uuid.UUID,
}
"""What each logical type is in Python."""


def converter(node: Primitive | FixedType, where: str) -> Callable[[Any], Any] | None:
    """The function from the base type's value to the logical type's; None where they are the same.

    It raises RecordError and nothing else; `where` names the field in its message.
    """
    logical = node.logical
    if logical == "decimal":
        return _decimal(node.precision, node.scale, where)
    if logical == "uuid":
        return _uuid_of_bytes(where) if isinstance(node, FixedType) else _uuid_of_text(where)
    if logical == "date":
        return _date(where)
    if logical in ("time-millis", "time-micros"):
        return _time(1_000 if logical == "time-millis" else 1, f"{logical} at {where}")
    if logical is None or logical.endswith("nanos"):
        return None
    return _datetime(
        _EPOCH_LOCAL if logical.startswith("local") else _EPOCH, logical.endswith("millis"), f"{logical} at {where}"
    )


def _out_of_range(what: str) -> NoReturn:
    raise RecordError(Reason.UNDECODABLE, f"value_out_of_range: {what}")


def _decimal(precision: int, scale: int, where: str) -> Callable[[bytes], Decimal]:
    limit = 10**precision

    def convert(raw: bytes) -> Decimal:
        unscaled = int.from_bytes(raw, "big", signed=True)
        if not -limit < unscaled < limit:
            raise RecordError(
                Reason.UNDECODABLE,
                f"decimal_precision: more than the {precision} digits that the schema allows at {where}",
            )
        # Without the context `scaleb` would round to the thread's precision (28 digits).
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return convert


def _uuid_of_text(where: str) -> Callable[[str], uuid.UUID]:
    def convert(raw: str) -> uuid.UUID:
        try:
            return uuid.UUID(raw)
        except ValueError:
            raise RecordError(Reason.UNDECODABLE, f"invalid_uuid: at {where}") from None

    return convert


def _uuid_of_bytes(where: str) -> Callable[[bytes], uuid.UUID]:
    def convert(raw: bytes) -> uuid.UUID:
        if len(raw) != 16:
            raise RecordError(Reason.UNDECODABLE, f"invalid_uuid: at {where}")
        return uuid.UUID(bytes=raw)

    return convert


def _date(where: str) -> Callable[[int], datetime.date]:
    what = f"date at {where}"

    def convert(raw: int) -> datetime.date:
        try:
            return datetime.date.fromordinal(raw + _EPOCH_DAY)
        except (ValueError, OverflowError):
            _out_of_range(what)

    return convert


def _time(micros: int, what: str) -> Callable[[int], datetime.time]:
    def convert(raw: int) -> datetime.time:
        raw *= micros
        if not 0 <= raw < _DAY_MICROS:
            _out_of_range(what)
        seconds, micro = divmod(raw, 1_000_000)
        minutes, second = divmod(seconds, 60)
        return datetime.time(minutes // 60, minutes % 60, second, micro)

    return convert


def _datetime(epoch: datetime.datetime, millis: bool, what: str) -> Callable[[int], datetime.datetime]:
    timedelta = datetime.timedelta

    def from_millis(raw: int) -> datetime.datetime:
        try:
            return epoch + timedelta(0, 0, 0, raw)
        except OverflowError:
            _out_of_range(what)

    def from_micros(raw: int) -> datetime.datetime:
        try:
            return epoch + timedelta(0, 0, raw)
        except OverflowError:
            _out_of_range(what)

    return from_millis if millis else from_micros


def raw_value(node: Primitive | FixedType, value: Any, where: str) -> Any:
    """The base type's value of a logical type's, exactly.

    Raises:
        ValueError: a naive datetime for a point in time, more digits than the schema allows, another type.
    """
    expected = TYPES[node.logical or ""]
    if type(value) is not expected and not (isinstance(value, expected) and expected in (Decimal, datetime.datetime)):
        raise ValueError(f"{where} needs {expected.__name__} for {node.logical}, not {type(value).__name__}")
    if node.logical == "decimal":
        return _unscaled(node, value, where)
    if node.logical == "uuid":
        return value.bytes if isinstance(node, FixedType) else str(value)
    if node.logical == "date":
        return value.toordinal() - _EPOCH_DAY
    if isinstance(value, datetime.time):
        return _time_of_day(node, value, where)
    if isinstance(value, datetime.datetime):
        return _since_epoch(node, value, where)
    return value


def _unscaled(node: Primitive | FixedType, value: Decimal, where: str) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{where} needs a finite decimal")
    shift = exponent + node.scale
    unscaled = int("".join(map(str, digits)) or "0")
    if shift < 0:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise ValueError(f"{where} has more than {node.scale} decimal places")
    elif unscaled:
        # A shift beyond the precision is too many digits; it is not computed, for it may be 10^999999.
        unscaled *= 10 ** min(shift, node.precision)
    if unscaled >= 10**node.precision:
        raise ValueError(f"{where} has more than {node.precision} digits")
    unscaled = -unscaled if sign else unscaled
    if isinstance(node, FixedType):
        return unscaled.to_bytes(node.size, "big", signed=True)
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def _time_of_day(node: Primitive | FixedType, value: datetime.time, where: str) -> int:
    if value.tzinfo is not None:
        raise ValueError(f"{where} is a time of day without a zone")
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return micros if node.logical == "time-micros" else _whole_millis(micros, where)


def _since_epoch(node: Primitive | FixedType, value: datetime.datetime, where: str) -> int:
    local = (node.logical or "").startswith("local")
    if local and value.tzinfo is not None:
        raise ValueError(f"{where} is a local timestamp: it takes a datetime without a zone")
    if not local and value.utcoffset() is None:
        raise ValueError(f"{where} is a point in time: a datetime without a zone would be guessed at")
    micros = (value - (_EPOCH_LOCAL if local else _EPOCH)) // _MICROSECOND
    return micros if (node.logical or "").endswith("micros") else _whole_millis(micros, where)


def _whole_millis(micros: int, where: str) -> int:
    """Milliseconds, the rest cut off towards the past, as Java's `toEpochMilli` does."""
    return micros // 1_000
