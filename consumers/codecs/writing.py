"""Writers of Avro's binary form: strict, so that what is written is what was meant. No IO.

Nothing is converted on the quiet: a field too many or too few, a number out of range, a naive datetime, or a value that
fits more than one branch of a union is a ValueError. A branch can be named: (full name or type, value).
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast, final

import pydantic

from . import logical
from .defaults import default_bytes, varint
from .mapping import full_name_of, is_instance, named_pair, type_name
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
    Union,
    described,
    pick_name,
)

Write: TypeAlias = Callable[[Any, bytearray], None]

_RANGES: Final[Mapping[str, range]] = {"int": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}


def writer_of(schema: Schema, full_name: str) -> Write:
    """The writer of values called `full_name` (full or short) by a schema whose root is that type or a union with it.

    Raises:
        ValueError: the schema has no such type at its top.
    """
    write = _Writing(schema)
    root = schema.resolve(schema.root)
    if isinstance(root, Union):
        return lambda value, out: write.branch(root, full_name, value, full_name, out)
    if isinstance(root, RecordType | EnumType | FixedType) and pick_name([root.name], full_name):
        return lambda value, out: write.node(schema.root, value, root.name, out)
    raise ValueError(f"the schema for {full_name} is one of {described(root)}")


@final
class _Writing:
    """Writes by one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def node(self, node: Node, value: Any, where: str, out: bytearray) -> None:
        resolved = self._schema.resolve(node)
        if isinstance(resolved, Primitive):
            _primitive(resolved, value, where, out)
        elif isinstance(resolved, RecordType):
            self._record(resolved, value, where, out)
        elif isinstance(resolved, Union):
            self._union(resolved, value, where, out)
        elif isinstance(resolved, EnumType):
            _enum(resolved, value, where, out)
        elif isinstance(resolved, FixedType):
            _fixed(resolved, value, where, out)
        elif isinstance(resolved, Array):
            self._array(resolved, value, where, out)
        else:
            self._map(resolved, value, where, out)

    def branch(self, union: Union, name: str, value: Any, where: str, out: bytearray) -> None:
        """Write the branch called `name`."""
        names = [self._branch_name(branch) for branch in union.branches]
        picked = pick_name(names, name)
        if picked is None:
            raise ValueError(f"{where} has no branch {name} in {union}")
        index = names.index(picked)
        out += varint(index)
        self.node(union.branches[index], value, where, out)

    def _branch_name(self, branch: Node) -> str:
        resolved = self._schema.resolve(branch)
        if isinstance(resolved, Array | Map):
            return "array" if isinstance(resolved, Array) else "map"
        return resolved.kind if isinstance(resolved, Primitive) else described(resolved)

    def _union(self, union: Union, value: Any, where: str, out: bytearray) -> None:
        named = named_pair(value)
        if named is not None:
            return self.branch(union, named[0], named[1], where, out)
        fitting = [index for index, branch in enumerate(union.branches) if self._takes(branch, value)]
        if len(fitting) != 1:
            raise ValueError(
                f"{where} takes a {type_name(value)} in {len(fitting)} of the branches {union}: "
                "name the branch, as (name, value)"
            )
        out += varint(fitting[0])
        self.node(union.branches[fitting[0]], value, where, out)
        return None

    def _takes(self, node: Node, value: Any) -> bool:
        """Whether a value may stand in a branch: by its type, not by trying."""
        resolved = self._schema.resolve(node)
        if isinstance(resolved, RecordType):
            return isinstance(value, dict) or (
                is_instance(value) and pick_name([resolved.name], full_name_of(value.__class__)) is not None
            )
        if isinstance(resolved, EnumType):
            return _symbol(value) in resolved.symbols
        if isinstance(resolved, Array):
            return isinstance(value, list | tuple | set | frozenset)
        if isinstance(resolved, Map):
            return isinstance(value, dict)
        if isinstance(resolved, Primitive | FixedType):
            return _takes_scalar(resolved, value)
        return False

    def _record(self, record: RecordType, value: Any, where: str, out: bytearray) -> None:
        given = _fields_of(value, where)
        unknown = given.keys() - {field.name for field in record.fields}
        if unknown:
            raise ValueError(f"{where} has fields that {record.name} does not have: {', '.join(sorted(unknown))}")
        for field in record.fields:
            place = f"{where}.{field.name}"
            if field.name in given:
                self.node(field.type, given[field.name], place, out)
            elif field.default is not MISSING:
                out += default_bytes(self._schema, field.type, field.default, place)
            else:
                raise ValueError(f"{place} is missing, and has no default")

    def _array(self, array: Array, value: Any, where: str, out: bytearray) -> None:
        if not isinstance(value, list | tuple | set | frozenset):
            raise ValueError(f"{where} needs a list, not {type_name(value)}")
        items = cast("list[Any]", value)
        if items:
            out += varint(len(items))
        for item in items:
            self.node(array.items, item, f"{where}[]", out)
        out.append(0)

    def _map(self, node: Map, value: Any, where: str, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} needs a dict, not {type_name(value)}")
        pairs = cast("dict[Any, Any]", value)
        if pairs:
            out += varint(len(pairs))
        for key, item in pairs.items():
            _primitive(Primitive("string"), key, f"a key of {where}", out)
            self.node(node.values, item, f"{where}{{}}", out)
        out.append(0)


def _fields_of(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if isinstance(value, pydantic.BaseModel):
        fields = type(value).model_fields
        return {(item.serialization_alias or name): getattr(value, name) for name, item in fields.items()}
    if dataclasses.is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    raise ValueError(f"{where} needs a dict or an instance, not {type_name(value)}")


def _symbol(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _takes_scalar(node: Primitive | FixedType, value: Any) -> bool:
    if node.logical is not None:
        return type(value) is logical.TYPES[node.logical]
    if isinstance(node, FixedType):
        return isinstance(value, bytes) and len(value) == node.size
    if node.kind in _RANGES:
        return isinstance(value, int) and not isinstance(value, bool) and value in _RANGES[node.kind]
    expected = {"null": type(None), "boolean": bool, "string": str, "bytes": bytes}.get(node.kind, float)
    return isinstance(value, expected)


def _enum(node: EnumType, value: Any, where: str, out: bytearray) -> None:
    symbol = _symbol(value)
    if symbol not in node.symbols:
        raise ValueError(f"{where} is none of the symbols of {node.name}")
    out += varint(node.symbols.index(symbol))


def _fixed(node: FixedType, value: Any, where: str, out: bytearray) -> None:
    if node.logical is not None and not isinstance(value, bytes):
        value = logical.raw_value(node, value, where)
    if not isinstance(value, bytes) or len(value) != node.size:
        raise ValueError(f"{where} needs {node.size} bytes")
    out += value


def _primitive(node: Primitive, value: Any, where: str, out: bytearray) -> None:
    if node.logical is not None:
        value = logical.raw_value(node, value, where)
        node = Primitive(node.kind)
    kind = node.kind
    if kind in ("float", "double") and isinstance(value, int) and not isinstance(value, bool):
        value = _as_float(value, where)
    if not _takes_scalar(node, value):
        raise ValueError(f"{where} needs {kind}, not {_what(value)}")
    _put(kind, value, where, out)


def _put(kind: str, value: Any, where: str, out: bytearray) -> None:
    """A value whose type was checked."""
    if kind == "boolean":
        out.append(value)
    elif kind in _RANGES:
        out += varint(value)
    elif kind in ("float", "double"):
        out += _packed("<f" if kind == "float" else "<d", value, where)
    elif kind in ("bytes", "string"):
        encoded: bytes = value if kind == "bytes" else _utf8(value, where)
        out += varint(len(encoded)) + encoded


def _what(value: Any) -> str:
    return f"{type_name(value)} out of range" if type(value) is int else type_name(value)


def _as_float(value: int, where: str) -> float:
    number = float(value) if abs(value) <= 2**53 else None
    if number is None:
        raise ValueError(f"{where} is an int that a double does not hold exactly")
    return number


def _packed(form: str, value: float, where: str) -> bytes:
    try:
        return struct.pack(form, value)
    except OverflowError:
        raise ValueError(f"{where} is too large for a float") from None


def _utf8(value: str, where: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds a lone surrogate, which UTF-8 does not have") from None
