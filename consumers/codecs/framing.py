"""The Confluent wire format: what names a value's schema, and where its body begins. No IO.

Most values carry a prefix: one zero byte, four bytes of schema id, the body. Newer producers send a bare body, and the
header `__value_schema_id` holds a zero byte and the id, or a one and the sixteen bytes of the schema's GUID. The header
counts where there is one, whatever the value looks like. Messages name the first byte and the length, never more.
"""

from __future__ import annotations

import uuid

from ...inbox.errors import RecordError
from ...inbox.event import Record
from ...inbox.outcome import Reason
from .source import SchemaKey

PREFIX_BYTES = 5
GUID_BYTES = 17
MAGIC = 0
MAGIC_GUID = 1
ID_HEADER = "__value_schema_id"
"""Source: Confluent's `HeaderSchemaIdSerializer` and `SchemaId`."""


def header_key(record: Record) -> bytes | None:
    """What the header says of the schema; None where there is no such header, or nothing in it."""
    for name, value in record.headers:
        if name == ID_HEADER:
            return value
    return None


def prefix_key(value: bytes) -> bytes:
    """The five bytes before the body.

    Raises:
        RecordError: `undecodable`, where the value is not framed so.
    """
    if len(value) < PREFIX_BYTES:
        raise RecordError(
            Reason.UNDECODABLE,
            f"framing: {_shape(value)} is shorter than the {PREFIX_BYTES} bytes of magic and schema id",
        )
    if value[0] != MAGIC:
        raise RecordError(
            Reason.UNDECODABLE, f"framing: unknown magic byte, {_shape(value)}; a framed value starts with 0x00"
        )
    return value[:PREFIX_BYTES]


def schema_key(key: bytes) -> SchemaKey:
    """The schema's id, or its GUID as text, out of a prefix or a header.

    Raises:
        RecordError: `undecodable`: it is neither.
    """
    if len(key) == PREFIX_BYTES and key[0] == MAGIC:
        return int.from_bytes(key[1:], "big")
    if len(key) == GUID_BYTES and key[0] == MAGIC_GUID:
        return str(uuid.UUID(bytes=key[1:]))
    raise RecordError(
        Reason.UNDECODABLE,
        f"unsupported_framing: the header {ID_HEADER} holds neither a schema id nor a GUID ({_shape(key)})",
    )


def schema_id(record: Record) -> int | None:
    """The schema's id, where the record tells one.

    Raises:
        RecordError: it is not framed.
    """
    told = header_key(record)
    key = schema_key(prefix_key(record.value or b"") if told is None else told)
    return key if isinstance(key, int) else None


def prefix(schema_id: int) -> bytes:
    """The five bytes before a body."""
    return b"\0" + schema_id.to_bytes(4, "big")


def _shape(value: bytes) -> str:
    if not value:
        return "an empty value"
    return f"first byte 0x{value[0]:02x}, length {len(value)}"
