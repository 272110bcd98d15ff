"""The Confluent wire format: one zero byte, four bytes of schema id, the body. No IO.

Newer producers may send a bare body and the schema's id or GUID in the header `__value_schema_id`: that is not
supported yet, and said so. Messages name the first byte and the length, never more of the payload.
"""

from __future__ import annotations

from ...inbox.errors import RecordError
from ...inbox.event import Record
from ...inbox.outcome import Reason

PREFIX_BYTES = 5
MAGIC = 0
ID_HEADER = "__value_schema_id"
"""Source: Confluent's `HeaderSchemaIdSerializer`."""


def has_header_id(record: Record) -> bool:
    """True where the schema's id stands in a header and the value is a bare body."""
    for name, _ in record.headers:  # noqa: SIM110 - a generator costs more than all the rest of it
        if name == ID_HEADER:
            return True
    return False


def schema_id(record: Record) -> int:
    """The id in the record's prefix.

    Raises:
        RecordError: `undecodable`, where the value is not framed so.
    """
    if has_header_id(record):
        raise RecordError(
            Reason.UNDECODABLE,
            f"unsupported_framing: the schema id stands in the header {ID_HEADER}, and only the 5-byte prefix is read "
            f"({_shape(record.value)})",
        )
    value = record.value
    if value is None or len(value) < PREFIX_BYTES:
        raise RecordError(
            Reason.UNDECODABLE,
            f"framing: {_shape(value)} is shorter than the {PREFIX_BYTES} bytes of magic and schema id",
        )
    if value[0] != MAGIC:
        raise RecordError(
            Reason.UNDECODABLE, f"framing: unknown magic byte, {_shape(value)}; a framed value starts with 0x00"
        )
    return int.from_bytes(value[1:PREFIX_BYTES], "big")


def prefix(schema_id: int) -> bytes:
    """The five bytes before a body."""
    return b"\0" + schema_id.to_bytes(4, "big")


def _shape(value: bytes | None) -> str:
    if not value:
        return "an empty value"
    return f"first byte 0x{value[0]:02x}, length {len(value)}"
