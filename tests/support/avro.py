"""Avro for tests: schemas in a directory, bodies written by fastavro, records in Confluent framing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fastavro

from tidegate.consumers.codecs.avro import Avro, AvroCodec
from tidegate.consumers.codecs.codec import CodecSettings, Decoded
from tidegate.inbox.clock import Clock, ManualClock
from tidegate.inbox.errors import RecordError
from tidegate.inbox.event import Headers, Record

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "OrderPlaced",
    "namespace": "shop",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "order_id", "type": "string"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def record_schema(name: str, fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A record with fields of these types."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()], **more}


def save(directory: Path, schemas: Mapping[int, Any]) -> None:
    """Put schemas into a directory, under their ids."""
    for schema_id, schema in schemas.items():
        (directory / f"{schema_id}.avsc").write_text(json.dumps(schema))


def opened(
    directory: Path,
    schemas: Mapping[int, Any],
    types: Iterable[type] = (),
    readers: Iterable[Any] = (),
    clock: Clock | None = None,
) -> AvroCodec:
    """The codec over a directory with these schemas."""
    save(directory, schemas)
    return Avro(str(directory), types=types, schemas=readers).open(CodecSettings(clock=clock or ManualClock()))


def body(schema: Any, value: Any, references: Iterable[Any] = ()) -> bytes:
    """What fastavro writes."""
    names: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(reference, names)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, names), value)
    return out.getvalue()


def varint(value: int) -> bytes:
    """A number in Avro's form."""
    return body("long", value)


def record(value: bytes, headers: Headers = (), offset: int = 0) -> Record:
    """A record with this value."""
    return Record("shop.orders", 0, offset, b"k", value, headers)


def framed(schema_id: int, content: bytes) -> Record:
    """A record in Confluent framing."""
    return record(b"\0" + schema_id.to_bytes(4, "big") + content)


def one(codec: AvroCodec, schema_id: int, content: bytes) -> Decoded | RecordError:
    """What both ways of decoding make of a body; they have to agree."""
    made = framed(schema_id, content)
    (many,) = codec.decode_many([made])
    try:
        alone: Decoded | RecordError = codec.decode(made)
    except RecordError as error:
        alone = error
    if isinstance(many, RecordError):
        assert isinstance(alone, RecordError)
        assert (many.reason, str(many)) == (alone.reason, str(alone))
    else:
        assert isinstance(alone, Decoded)
        assert (repr(many.value), many.type, many.schema_id) == (repr(alone.value), alone.type, alone.schema_id)
    return many


def value_of(codec: AvroCodec, schema_id: int, content: bytes) -> Any:
    """The value of a body that can be decoded."""
    decoded = one(codec, schema_id, content)
    assert isinstance(decoded, Decoded), str(decoded)
    return decoded.value


def refusal_of(codec: AvroCodec, schema_id: int, content: bytes) -> RecordError:
    """The error of a body that cannot be decoded."""
    error = one(codec, schema_id, content)
    assert isinstance(error, RecordError), repr(error)
    return error
