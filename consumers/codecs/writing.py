"""What fastavro writes, prepared so that what is written is what was meant. No IO.

fastavro turns values into bytes, strictly; but it takes the host's zone for a naive datetime, a double too large for a
float, an int of 40 bits for an int, and the branch of a union that looks alike. So nothing is left to guess: instances
become dicts, defaults are filled in, each union's branch is named, and what cannot be written exactly is a ValueError.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import io
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast, final

import fastavro
import pydantic
from fastavro.validation import validate

from . import logical
from .mapping import full_name_of, is_instance, named_pair, type_name
from .schemas import (
    DEFAULT,
    PRIMITIVES,
    Named,
    Node,
    Schema,
    SchemaError,
    described,
    kind_of,
    logical_of,
    name_of,
    pick_name,
)

Write: TypeAlias = Callable[[Any], bytes]


def writer_of(schema: Schema, full_name: str) -> Write:
    """The writer of values called `full_name` (full or short) by a schema whose root is that type or a union with it.

    It raises ValueError for what it cannot write exactly.

    Raises:
        ValueError: the schema has no such type at its top.
    """
    root, prepare, write = schema.resolve(schema.root), Preparation(schema), _writer(schema, schema.root)
    if isinstance(root, list):
        return lambda value: write(partial(prepare.branch, root, full_name, value, full_name))
    if isinstance(root, str) or not pick_name([name_of(root)], full_name):
        raise ValueError(f"the schema for {full_name} is one of {described(root)}")
    return lambda value: write(partial(prepare.node, root, value, root["name"]))


def check_defaults(schema: Schema) -> None:
    """Raise SchemaError where a field's default does not fit its type."""
    for name, named in schema.names.items():
        for field in named.get("fields", ()):
            if DEFAULT in field:
                default_bytes(schema, field["type"], field[DEFAULT], f"{name}.{field['name']}")


def default_bytes(schema: Schema, node: Node, value: Any, where: str) -> bytes:
    """The binary form of a default out of a schema's JSON: read back, it has the type of any written value.

    Raises:
        SchemaError: it does not fit the type.
    """
    prepare = Preparation(schema, from_json=True)
    try:
        return _writer(schema, node)(lambda: prepare.node(node, value, f"the default of {where}"))
    except ValueError as error:
        raise SchemaError(str(error)) from None


def _writer(schema: Schema, node: Node) -> Callable[[Callable[[], Any]], bytes]:
    """Writes what a function prepares. A record of one field has that field's bytes: so fastavro writes any node."""
    record = {"type": "record", "name": "_tidegate_root", "fields": [{"name": "root", "type": node}]}
    form = fastavro.parse_schema(record, dict(schema.names))

    def write(prepared: Callable[[], Any]) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, form, {"root": prepared()}, strict=True)
        except UnicodeEncodeError:
            raise ValueError("a string holds a lone surrogate, which UTF-8 does not have") from None
        except RecursionError:
            raise ValueError("a value without an end, or nested too deeply") from None
        return out.getvalue()

    return write


@final
class Preparation:
    """Prepares values by one schema; with `from_json` the defaults that stand in a schema's JSON."""

    def __init__(self, schema: Schema, *, from_json: bool = False) -> None:
        self._schema = schema
        self._from_json = from_json

    def node(self, node: Node, value: Any, where: str) -> Any:
        """The value as fastavro takes it. Raises ValueError."""
        resolved = self._schema.resolve(node)
        if isinstance(resolved, list):
            return self._first(resolved, value, where) if self._from_json else self._union(resolved, value, where)
        if isinstance(resolved, dict) and resolved["type"] == "record":
            return self._record(resolved, value, where)
        if isinstance(resolved, dict) and resolved["type"] == "array":
            if not isinstance(value, list | tuple | set | frozenset):
                raise ValueError(f"{where} needs a list, not {type_name(value)}")
            return [self.node(resolved["items"], item, f"{where}[]") for item in cast("list[Any]", value)]
        if isinstance(resolved, dict) and resolved["type"] == "map":
            return self._map(resolved, value, where)
        return _json_leaf(resolved, value, where) if self._from_json else _leaf(resolved, value, where)

    def branch(self, union: list[Any], name: str, value: Any, where: str) -> tuple[str, Any]:
        """The value for the branch called `name`. Raises ValueError."""
        branches = {name_of(self._schema.resolve(branch)): branch for branch in union}
        picked = pick_name(branches, name)
        if picked is None:
            raise ValueError(f"{where} has no branch {name} in {described(union)}")
        return picked, self.node(branches[picked], value, where)

    def _union(self, union: list[Any], value: Any, where: str) -> tuple[str, Any]:
        named = named_pair(value)
        if named is not None:
            return self.branch(union, named[0], named[1], where)
        fitting = [branch for branch in union if _takes(self._schema.resolve(branch), value)]
        if len(fitting) != 1:
            raise ValueError(
                f"{where} takes a {type_name(value)} in {len(fitting)} of the branches {described(union)}: "
                "name the branch, as (name, value)"
            )
        return self.branch(union, name_of(self._schema.resolve(fitting[0])), value, where)

    def _first(self, union: list[Any], value: Any, where: str) -> tuple[str, Any]:
        """The first branch that takes a default. Up to Avro 1.11 it had to be the first of all, since 1.12 any may."""
        for branch in union:
            try:
                return name_of(self._schema.resolve(branch)), self.node(branch, value, where)
            except ValueError:
                continue
        raise ValueError(f"{where} fits no branch of its union")

    def _record(self, record: Named, value: Any, where: str) -> dict[str, Any]:
        given = _fields_of(value, where)
        unknown = given.keys() - {field["name"] for field in record["fields"]}
        if unknown:
            raise ValueError(f"{where} has fields that {record['name']} does not have: {', '.join(sorted(unknown))}")
        return {field["name"]: self._field(field, given, f"{where}.{field['name']}") for field in record["fields"]}

    def _field(self, field: dict[str, Any], given: dict[str, Any], where: str) -> Any:
        if field["name"] in given:
            return self.node(field["type"], given[field["name"]], where)
        if DEFAULT not in field:
            raise ValueError(f"{where} is missing, and has no default")
        return Preparation(self._schema, from_json=True).node(field["type"], field[DEFAULT], where)

    def _map(self, node: Named, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{where} needs a dict, not {type_name(value)}")
        pairs = cast("dict[Any, Any]", value)
        if not all(isinstance(key, str) for key in pairs):
            raise ValueError(f"{where} has a key that is no string")
        return {key: self.node(node["values"], item, f"{where}{{}}") for key, item in pairs.items()}


def _fields_of(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if isinstance(value, pydantic.BaseModel):
        fields = type(value).model_fields
        return {(item.serialization_alias or name): getattr(value, name) for name, item in fields.items()}
    if is_instance(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    raise ValueError(f"{where} needs a dict or an instance, not {type_name(value)}")


def _takes(node: Node, value: Any) -> bool:
    """Whether a value may stand in a branch: by its type, not by trying."""
    kind = kind_of(node)
    if kind == "record":
        named = is_instance(value) and pick_name([name_of(node)], full_name_of(value.__class__)) is not None
        return named or isinstance(value, dict)
    if kind == "array":
        return isinstance(value, list | tuple | set | frozenset)
    if kind == "map":
        return isinstance(value, dict)
    return _takes_leaf(node, _symbol(value) if kind == "enum" else value)


def _takes_leaf(node: Node, value: Any) -> bool:
    if (logical_type := logical_of(node)) is not None:
        return type(value) is logical.TYPES[logical_type]
    # To fastavro an int is a float too.
    return isinstance(value, float) if node in ("float", "double") else validate(value, node, raise_errors=False)


def _symbol(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _leaf(node: Node, value: Any, where: str) -> Any:
    """A value of a scalar type, checked."""
    kind = kind_of(node)
    if logical_of(node) is not None and not (kind == "fixed" and isinstance(value, bytes)):
        return logical.writable(node, value, where)
    return _checked(node, _symbol(value) if kind == "enum" else value, where)


def _json_leaf(node: Node, value: Any, where: str) -> Any:
    """A default of a scalar type: bytes stand there as text whose code points are the bytes."""
    kind = kind_of(node)
    if kind in ("bytes", "fixed") and isinstance(value, str):
        value = _latin1(value, where)
    if kind in ("float", "double") and value in ("NaN", "Infinity", "-Infinity"):
        value = float(value)
    return _checked(node, value, where)


def _checked(node: Node, value: Any, where: str) -> Any:
    kind = kind_of(node)
    if kind in ("float", "double") and type(value) in (int, float):
        return _number(kind, value, where)
    if not validate(value, kind if kind in PRIMITIVES else node, raise_errors=False):
        what = f"{type_name(value)} out of range" if type(value) is int else type_name(value)
        raise ValueError(f"{where} needs {name_of(node)}, not {what}")
    return value


def _number(kind: str, value: float, where: str) -> float:
    if isinstance(value, int) and abs(value) > 2**53:
        raise ValueError(f"{where} is an int that a double does not hold exactly")
    if kind == "float" and math.isfinite(value) and math.isinf(ctypes.c_float(value).value):
        raise ValueError(f"{where} is too large for a float")
    return value


def _latin1(value: str, where: str) -> bytes:
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"{where} has a code point beyond U+00FF, which no byte is") from None
