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
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final, NoReturn, cast

from ...inbox.errors import RecordError
from ...inbox.outcome import Reason
from .schemas import Named, Node, kind_of, logical_of

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_LOCAL: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - a local timestamp has no zone
_EPOCH_DAY: Final = _EPOCH.toordinal()
_DAY_MICROS: Final = 86_400_000_000
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)

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


def converter(node: Node, where: str) -> Callable[[Any], Any] | None:
    """The function from the base type's value to the logical type's; None where they are the same.

    It raises RecordError and nothing else; `where` names the field in its message.
    """
    logical = logical_of(node)
    if logical == "decimal":
        return _decimal(cast("Named", node), where)
    if logical == "uuid":
        return _uuid_of_bytes(where) if kind_of(node) == "fixed" else _uuid_of_text(where)
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


def _decimal(node: Named, where: str) -> Callable[[bytes], Decimal]:
    precision, scale = node["precision"], node["scale"]
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


def writable(node: Node, value: Any, where: str) -> Any:
    """A logical type's value as fastavro writes it exactly; it knows all of them but a uuid of fixed bytes.

    Raises:
        ValueError: a naive datetime for a point in time, more digits than the schema allows, another type.
    """
    logical = logical_of(node) or ""
    expected = TYPES[logical]
    if type(value) is not expected and not (isinstance(value, expected) and expected in (Decimal, datetime.datetime)):
        raise ValueError(f"{where} needs {expected.__name__} for {logical}, not {type(value).__name__}")
    if isinstance(value, Decimal):
        return _exact(cast("Named", node), value, where)
    if isinstance(value, datetime.time) and value.tzinfo is not None:
        raise ValueError(f"{where} is a time of day without a zone")
    if isinstance(value, datetime.datetime):
        _check_zone(value, where, is_local=logical.startswith("local"))
    return value.bytes if isinstance(value, uuid.UUID) and kind_of(node) == "fixed" else value


def _exact(node: Named, value: Decimal, where: str) -> Decimal:
    """The decimal with the schema's scale. fastavro counts digits before it scales, and would write one too many."""
    if not value.is_finite():
        raise ValueError(f"{where} needs a finite decimal")
    context = Context(prec=node["precision"], traps=[Inexact, InvalidOperation])
    try:
        return value.quantize(Decimal(1).scaleb(-node["scale"], _EXACT), context=context)
    except Inexact:
        raise ValueError(f"{where} has more than {node['scale']} decimal places") from None
    except InvalidOperation:
        raise ValueError(f"{where} has more than {node['precision']} digits") from None


def _check_zone(value: datetime.datetime, where: str, *, is_local: bool) -> None:
    if is_local and value.tzinfo is not None:
        raise ValueError(f"{where} is a local timestamp: it takes a datetime without a zone")
    if not is_local and value.utcoffset() is None:
        raise ValueError(f"{where} is a point in time: a datetime without a zone would be guessed at")
