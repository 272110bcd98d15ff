"""A field's default out of a schema's JSON, as the bytes that a writer would have written. No IO.

Read back by the field's own reader it has the runtime type that any written value has (bytes, not text; a Decimal), and
one that does not fit its type is found when the schema is loaded.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from .schemas import (
    MISSING,
    Array,
    EnumType,
    FixedType,
    Map,
    Node,
    Primitive,
    RecordType,
    Schema,
    SchemaError,
    Union,
    described,
)


def check_defaults(schema: Schema) -> None:
    """Raise SchemaError where a field's default does not fit its type."""
    for named in schema.names.values():
        if isinstance(named, RecordType):
            for field in named.fields:
                if field.default is not MISSING:
                    default_bytes(schema, field.type, field.default, f"{named.name}.{field.name}")


def default_bytes(schema: Schema, node: Node, value: Any, where: str) -> bytes:
    """The binary form of a JSON default.

    Raises:
        SchemaError: it does not fit the type.
    """
    out = bytearray()
    try:
        _write(schema, node, value, where, out)
    except RecursionError:
        raise SchemaError(f"the default of {where} has no end") from None
    return bytes(out)


def varint(value: int) -> bytes:
    """Avro's zig-zag variable-length form of a 64-bit number."""
    rest = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _write(schema: Schema, node: Node, value: Any, where: str, out: bytearray) -> None:
    resolved = schema.resolve(node)
    if isinstance(resolved, Primitive):
        _write_primitive(resolved, value, where, out)
    elif isinstance(resolved, Union):
        _write_union(schema, resolved, value, where, out)
    elif isinstance(resolved, RecordType) and isinstance(value, dict):
        _write_record(schema, resolved, cast("dict[str, Any]", value), where, out)
    elif isinstance(resolved, EnumType) and value in resolved.symbols:
        out += varint(resolved.symbols.index(value))
    elif isinstance(resolved, FixedType) and isinstance(value, str) and len(value) == resolved.size:
        out += _latin1(value, where)
    elif isinstance(resolved, Array) and isinstance(value, list):
        _write_blocks(
            schema, resolved.items, [("", item) for item in cast("list[Any]", value)], where, out, keyed=False
        )
    elif isinstance(resolved, Map) and isinstance(value, dict):
        _write_blocks(schema, resolved.values, list(cast("dict[str, Any]", value).items()), where, out, keyed=True)
    else:
        raise SchemaError(f"the default of {where} is no {described(resolved)}")


def _write_union(schema: Schema, union: Union, value: Any, where: str, out: bytearray) -> None:
    """The first branch that takes the value. Up to Avro 1.11 it had to be the first of all, since 1.12 any may."""
    for index, branch in enumerate(union.branches):
        try:
            body = default_bytes(schema, branch, value, where)
        except SchemaError:
            continue
        out += varint(index) + body
        return
    raise SchemaError(f"the default of {where} fits no branch of its union")


def _write_record(schema: Schema, record: RecordType, value: dict[str, Any], where: str, out: bytearray) -> None:
    for field in record.fields:
        given = value.get(field.name, field.default)
        if given is MISSING:
            raise SchemaError(f"the default of {where} lacks {field.name}")
        _write(schema, field.type, given, f"{where}.{field.name}", out)


def _write_blocks(
    schema: Schema, node: Node, pairs: list[tuple[str, Any]], where: str, out: bytearray, *, keyed: bool
) -> None:
    if pairs:
        out += varint(len(pairs))
    for key, item in pairs:
        if keyed:
            encoded = key.encode()
            out += varint(len(encoded)) + encoded
        _write(schema, node, item, where, out)
    out.append(0)


def _write_primitive(node: Primitive, value: Any, where: str, out: bytearray) -> None:
    kind = node.kind
    if kind == "null" and value is None:
        return
    if kind == "boolean" and isinstance(value, bool):
        out.append(value)
    elif kind in ("int", "long") and isinstance(value, int) and not isinstance(value, bool):
        out += _number(value, 31 if kind == "int" else 63, where)
    elif kind in ("float", "double") and isinstance(value, int | float) and not isinstance(value, bool):
        out += struct.pack("<f" if kind == "float" else "<d", value)
    elif kind in ("float", "double") and value in ("NaN", "Infinity", "-Infinity"):
        out += struct.pack("<f" if kind == "float" else "<d", float(value))
    elif kind == "bytes" and isinstance(value, str):
        encoded = _latin1(value, where)
        out += varint(len(encoded)) + encoded
    elif kind == "string" and isinstance(value, str):
        encoded = value.encode()
        out += varint(len(encoded)) + encoded
    else:
        raise SchemaError(f"the default of {where} is no {described(node)}")


def _number(value: int, bits: int, where: str) -> bytes:
    if not -(1 << bits) <= value < 1 << bits:
        raise SchemaError(f"the default of {where} is out of range")
    return varint(value)


def _latin1(value: str, where: str) -> bytes:
    """Bytes stand in a schema's JSON as text whose code points are the bytes."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise SchemaError(f"the default of {where} has a code point beyond U+00FF, which no byte is") from None
