"""JSON, strictly: UTF-8, each key once, finite numbers, no text that PostgreSQL cannot hold, types checked. No IO.

Refused as `undecodable`: anything that is not JSON, `NaN` and infinities, a key that comes twice in an object, lone
surrogates, and (unless allowed) NUL characters, each with the path of the field. As `schema_incompatible`: what does
not fit the class; types are checked strictly, so that a string is no number and a number no string.

Written: dataclasses and pydantic models as objects, Decimal as a string, bytes as base64, datetimes in ISO 8601 with
their zone; a naive datetime, NaN and infinities are refused.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, cast, final

import pydantic

from ...inbox.errors import RecordError
from ...inbox.event import Record
from ...inbox.outcome import Reason
from ...inbox.scope import FromField, FromHeader
from .codec import CodecSettings, Decoded
from .mapping import Classes, checked, full_name_of

_SUSPECT: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""Escapes that may make text which UTF-8 or PostgreSQL does not have. Paired surrogates are looked at, and good."""

TypeRule = FromHeader | FromField | str

_TYPE_HEADER: Final = FromHeader("type")


@final
class Json:
    """Declares JSON.

    Args:
        types: payload classes besides those that handlers name.
        type: where a record's type name comes from: a header, a field (a dotted path goes deeper), or the name itself.
            A record without one has the type "".
        allow_nul: take strings with NUL characters, which PostgreSQL's text and jsonb refuse.
    """

    def __init__(self, types: Iterable[type] = (), type: TypeRule = _TYPE_HEADER, allow_nul: bool = False) -> None:
        self._types = tuple(types)
        self._type = type
        self._allow_nul = allow_nul

    def open(self, settings: CodecSettings) -> JsonCodec:
        """See `CodecSpec.open`."""
        codec = JsonCodec(self._type, self._allow_nul)
        codec.types(self._types)
        return codec


@final
class JsonCodec:
    """The codec that `Json` declares."""

    def __init__(self, type: TypeRule, allow_nul: bool) -> None:
        self._type = type
        self._allow_nul = allow_nul
        self._classes = Classes()
        self._makes: dict[type, Callable[..., Any]] = {}

    def types(self, types: Iterable[type]) -> None:
        """See `Codec.types`."""
        self._classes = Classes([*self._classes, *types])
        self._makes = {
            cls: checked(pydantic.TypeAdapter(cls).validate_json, full_name_of(cls), cls) for cls in self._classes
        }

    def decode(self, record: Record) -> Decoded:
        """See `Codec.decode`."""
        raw = record.value or b""
        value = _loaded(raw)
        if _SUSPECT.search(raw):
            _check_text(value, self._allow_nul)
        name = self._type_of(record, value)
        cls = self._classes.find(name) if name else None
        return Decoded(value if cls is None else self._makes[cls](raw, strict=True), name)

    def decode_many(self, records: Sequence[Record]) -> list[Decoded | RecordError]:
        """See `Codec.decode_many`; JSON never stalls."""
        done: list[Decoded | RecordError] = []
        for record in records:
            try:
                done.append(self.decode(record))
            except RecordError as error:
                done.append(error)
        return done

    def encode(self, topic: str, value: object) -> bytes:
        """See `Codec.encode`."""
        try:
            text = json.dumps(_plain(value, "$"), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            return text.encode()
        except UnicodeEncodeError:
            raise ValueError("a string holds a lone surrogate, which UTF-8 does not have") from None
        except RecursionError:
            raise ValueError("the value is nested too deeply") from None

    def _type_of(self, record: Record, value: Any) -> str:
        rule = self._type
        if isinstance(rule, str):
            return rule
        if isinstance(rule, FromHeader):
            return (record.header(rule.name) or b"").decode("utf-8", "replace")
        found: Any = value
        for name in rule.name.split("."):
            found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) else ""


def _loaded(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_object, parse_float=_finite)
    except UnicodeDecodeError:
        raise _undecodable(f"not UTF-8 ({len(raw)} bytes)") from None
    except json.JSONDecodeError as error:
        raise _undecodable(f"not JSON: {error.msg} at character {error.pos} of {len(raw)} bytes") from None
    except RecursionError:
        raise _undecodable(f"nested too deeply ({len(raw)} bytes)") from None
    except ValueError:
        # Python's limit on the digits of an int (4,300).
        raise _undecodable(f"a number of too many digits ({len(raw)} bytes)") from None


def _undecodable(text: str) -> RecordError:
    return RecordError(Reason.UNDECODABLE, f"JSON: {text}")


def _no_constant(name: str) -> Any:
    raise _undecodable(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _undecodable("a number beyond what a double holds")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _undecodable("a key comes twice in one object")
    return made


def _check_text(value: Any, allow_nul: bool) -> None:
    """Raise RecordError, with the path, where text holds a lone surrogate or a NUL."""
    waiting: list[tuple[str, Any]] = [("$", value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, str):
            _check_string(item, path, allow_nul)
        elif isinstance(item, dict):
            for key, inner in cast("dict[str, Any]", item).items():
                _check_string(key, f"a key of {path}", allow_nul)
                waiting.append((f"{path}.{key}"[:200], inner))
        elif isinstance(item, list):
            waiting.extend((f"{path}[{index}]", inner) for index, inner in enumerate(cast("list[Any]", item)))


def _check_string(text: str, path: str, allow_nul: bool) -> None:
    shown = path.encode("unicode_escape").decode()
    if not allow_nul and "\0" in text:
        raise _undecodable(f"a NUL character, which PostgreSQL cannot hold, at {shown}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _undecodable(f"a lone surrogate at {shown}") from None


def _plain(value: Any, path: str) -> Any:
    """What `json` can write, of what a handler may publish. Raises ValueError with the path."""
    if value is None or isinstance(value, str | int):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, dict):
        return {_key(key, path): _plain(item, f"{path}.{key}") for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(cast("Sequence[Any]", value))]
    if isinstance(value, pydantic.BaseModel):
        fields = type(value).model_fields
        return {f.serialization_alias or n: _plain(getattr(value, n), f"{path}.{n}") for n, f in fields.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), f"{path}.{f.name}") for f in dataclasses.fields(value)}
    return _scalar(value, path)


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{path} has a key that is no string")
    return key


def _scalar(value: Any, path: str) -> Any:
    for kind, write in _SCALARS.items():
        if isinstance(value, kind):
            return write(value, path)
    raise ValueError(f"{path} is a {type(value).__name__}, which has no JSON form here")


def _number(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{path} is not finite, and JSON has no such number")
    return value


def _decimal(value: Decimal, path: str) -> str:
    if not value.is_finite():
        raise ValueError(f"{path} is not finite")
    return str(value)


def _datetime(value: datetime.datetime, path: str) -> str:
    if value.utcoffset() is None:
        raise ValueError(f"{path} is a datetime without a zone: it would be guessed at")
    return value.isoformat()


_SCALARS: Final[dict[type, Callable[[Any, str], Any]]] = {
    float: _number,
    Decimal: _decimal,
    bytes: lambda value, path: base64.b64encode(value).decode(),
    datetime.datetime: _datetime,
    datetime.date: lambda value, path: value.isoformat(),
    datetime.time: lambda value, path: value.isoformat(),
    uuid.UUID: lambda value, path: str(value),
    enum.Enum: lambda value, path: value.value,
}
"""What each other type is written as; a datetime is a date too, so it stands first."""
