"""A letter's value as an operator reads and repairs it: by its consumer's codec, else by what its bytes say they are.

Reading never fails: what cannot be decoded is shown in hex, with the reason. A repaired value is taken only where the
codec reads it, so that a typing mistake is told at once and not by the next dead letter. Messages hold no payload.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast, final

import pydantic

from ..dlq.looking import ReadValue, ValueRefused
from ..dlq.masking import EVERYTHING
from ..inbox.errors import DependencyError, RecordError
from ..inbox.event import Record
from .app import Consumer
from .codecs import framing
from .codecs.avro import Avro, AvroCodec
from .codecs.avro_text import as_text, from_text, masking_of
from .codecs.codec import Codec, CodecSettings
from .codecs.json import Json, JsonCodec

_PLAIN: Final = (str, bool, int, type(None))


@final
class LetterValues:
    """Reads values for `show`, and makes repaired ones for `edit`. Codecs are opened when first needed.

    Args:
        consumers: the app's, where one was named: their codecs and `mask=` count.
        settings: where schemas are found.
    """

    def __init__(self, settings: CodecSettings, consumers: Mapping[str, Consumer] | None = None) -> None:
        self._settings = settings
        self._consumers = consumers or {}
        self._codecs: dict[str, Codec] = {}

    def read(self, consumer: str, record: Record) -> ReadValue:
        """What the value says, and which of it is declared harmless. A tombstone is None, in the form `tombstone`."""
        if record.value is None:
            return ReadValue("tombstone", None)
        codec = self._codec(consumer, record)
        if codec is None:
            return _in_hex(record.value, "no app was named, and it is neither framed nor JSON")
        try:
            decoded = codec.decode(record)
            masking = masking_of(codec.written_with(record)) if isinstance(codec, AvroCodec) else EVERYTHING
        except (RecordError, DependencyError) as error:
            return _in_hex(record.value, str(error))
        known = self._consumers.get(consumer)
        return ReadValue(
            _form(codec, decoded.type), plain(decoded.value), masking if known is None else masking.over(known.mask)
        )

    def text(self, consumer: str, record: Record) -> str:
        """The value as text that `repaired` takes back. Raises ValueRefused where there is no such text."""
        codec, value = self._codec(consumer, record), record.value or b""
        try:
            if isinstance(codec, AvroCodec):
                codec.decode(record)  # what our own reader refuses is never given to another
                return as_text(codec.written_with(record), value[_body_at(record) :])
            if isinstance(codec, JsonCodec):
                return json.dumps(json.loads(value), indent=2, ensure_ascii=False) + "\n"
        except (RecordError, DependencyError, ValueError) as error:
            raise ValueRefused(f"it cannot be shown as text ({error}): give its bytes with --value-file") from None
        raise ValueRefused("its codec has no text form: give its bytes with --value-file")

    def repaired(self, consumer: str, record: Record, text: str) -> bytes:
        """The bytes of an edited text, in the schema that the value was written with. Raises ValueRefused."""
        codec, value = self._codec(consumer, record), record.value or b""
        try:
            if isinstance(codec, AvroCodec):
                return value[: _body_at(record)] + from_text(codec.written_with(record), text)
            return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")).encode()
        except (RecordError, DependencyError) as error:
            raise ValueRefused(str(error)) from None
        except ValueError as error:
            raise ValueRefused(f"it does not fit its schema: {_said(error)}") from None

    def check(self, consumer: str, record: Record, value: bytes) -> ReadValue:
        """The repaired value as the handler's codec reads it. Raises ValueRefused where it does not."""
        replaced = Record(
            record.topic, record.partition, record.offset, record.key, value, record.headers,
            record.timestamp_ms, record.timestamp_type,
        )  # fmt: skip
        codec = self._codec(consumer, replaced)
        if codec is None:
            raise ValueRefused("nothing says what its bytes must be: name the app, whose codec can check it")
        try:
            self._typed(consumer, codec).decode(replaced)
        except (RecordError, DependencyError) as error:
            raise ValueRefused(f"the codec does not take it: {error}") from None
        return self.read(consumer, replaced)

    def _typed(self, consumer: str, codec: Codec) -> Codec:
        """The codec with the classes that handlers ask for: what a handler could not read is refused here."""
        known = self._consumers.get(consumer)
        if known is None:
            return codec
        typed = known.codec.open(self._settings)
        typed.types(known.payload_types())
        return typed

    def _codec(self, consumer: str, record: Record) -> Codec | None:
        known = self._consumers.get(consumer)
        if known is not None:
            if consumer not in self._codecs:
                self._codecs[consumer] = known.codec.open(self._settings)
            return self._codecs[consumer]
        if self._settings.registry and _is_framed(record):
            if "" not in self._codecs:
                self._codecs[""] = Avro().open(self._settings)
            return self._codecs[""]
        return Json().open(self._settings) if _is_json(record.value or b"") else None


def _is_framed(record: Record) -> bool:
    value = record.value or b""
    return framing.header_key(record) is not None or (len(value) >= framing.PREFIX_BYTES and value[0] == framing.MAGIC)


def _body_at(record: Record) -> int:
    return 0 if framing.header_key(record) is not None else framing.PREFIX_BYTES


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _in_hex(value: bytes, why: str) -> ReadValue:
    return ReadValue("bytes", value.hex(), problem=why)


def _form(codec: Codec, type_name: str) -> str:
    kind = "avro" if isinstance(codec, AvroCodec) else "json" if isinstance(codec, JsonCodec) else "codec"
    return f"{kind} {type_name}".rstrip()


def _said(error: ValueError) -> str:
    """Where JSON is wrong, without what stands there; our own messages name paths and types only."""
    return f"{error.msg} (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else str(error)


def plain(value: Any) -> Any:
    """A decoded value as what JSON knows; what it has no form for becomes text."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, pydantic.BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return str(value)
