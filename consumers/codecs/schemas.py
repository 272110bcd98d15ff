"""Avro schemas as values: every named type once, by full name, its uses by reference. No IO.

`parse` takes a schema and the schemas that it refers to, in any order of need. A type that several of them spell out is
one type if they agree (a diamond, an inlined copy) and a `SchemaError` if they do not. That is an error of the schema,
never of a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast, final

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {"time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"}
        | {"local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"}
    ),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal", "uuid"}),
    "string": frozenset({"uuid"}),
}
"""The logical types that get a meaning here; any other is ignored, as the Avro specification asks."""

DIGITS_MAX: Final = 131_072
"""Digits of a decimal: what PostgreSQL's numeric holds before the point."""


class SchemaError(Exception):
    """The schema itself is wrong or contradicts itself. No record is at fault, and no record may die of it."""


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""No default is declared; None is a default."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the eight primitive types, perhaps with a logical type on it."""

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return described(self)


@dataclass(frozen=True, slots=True)
class Ref:
    """The use of a named type."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items."""

    items: Node

    def __str__(self) -> str:
        return f"array of {self.items}"


@dataclass(frozen=True, slots=True)
class Map:
    """Values by string keys."""

    values: Node

    def __str__(self) -> str:
        return f"map of {self.values}"


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types; the value says which."""

    branches: tuple[Node, ...]

    def __str__(self) -> str:
        return f"[{', '.join(str(branch) for branch in self.branches)}]"


Node: TypeAlias = Primitive | Ref | Array | Map | Union


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record; `default` is the schema's JSON as it stands."""

    name: str
    type: Node
    default: Any = MISSING
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RecordType:
    """A record, by its full name."""

    name: str
    fields: tuple[Field, ...]
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum, by its full name."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FixedType:
    """So many bytes, by their full name."""

    name: str
    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    aliases: frozenset[str] = frozenset()


NamedType: TypeAlias = RecordType | EnumType | FixedType


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema and the table of every named type in it."""

    root: Node
    names: Mapping[str, NamedType] = field(repr=False)

    def resolve(self, node: Node) -> Primitive | Array | Map | Union | NamedType:
        """The node itself, or the type that it names."""
        return self.names[node.name] if isinstance(node, Ref) else node


def described(node: Primitive | Array | Map | Union | Ref | NamedType) -> str:
    """A type in words, for messages."""
    if isinstance(node, Primitive):
        if node.logical == "decimal":
            return f"decimal({node.precision},{node.scale})"
        return node.logical or node.kind
    if isinstance(node, FixedType) and node.logical == "decimal":
        return f"decimal({node.precision},{node.scale}) {node.name}"
    return str(node) if isinstance(node, Ref | Array | Map | Union) else node.name


def short_name(full_name: str) -> str:
    """The last part of a full name."""
    return full_name.rpartition(".")[2]


def pick_name(names: Iterable[str], asked: str) -> str | None:
    """The one of these full names that a full or short name means; None where there is none.

    Raises:
        ValueError: a short name of several.
    """
    known = sorted(set(names))
    if asked in known:
        return asked
    alike = [name for name in known if short_name(name) == asked]
    if len(alike) > 1:
        raise ValueError(f"{asked} may be {' or '.join(alike)}: give the full name (`__avro_name__` of a class)")
    return alike[0] if alike else None


def parse(text: str, references: Iterable[str] = (), *, partial: bool = False) -> Schema:
    """Parse a schema (JSON text) and, in the same name table, those that it refers to (each after its own references).

    With `partial` names may stay undefined: enough to see what a schema defines.

    Raises:
        SchemaError: not JSON, not Avro, an undefined name, or one name with two meanings.
    """
    parsing, root = _parsed(text, references)
    undefined = parsing.undefined()
    if undefined and not partial:
        raise SchemaError(f"neither the schema nor its references define {', '.join(sorted(undefined))}")
    return Schema(root, parsing.names)


def undefined_names(texts: Iterable[str]) -> frozenset[str]:
    """The full names that schemas use and none of them defines. Raises SchemaError as `parse` does."""
    return _parsed("null", texts)[0].undefined()


def _parsed(text: str, references: Iterable[str]) -> tuple[_Parsing, Node]:
    parsing = _Parsing()
    try:
        for reference in references:
            parsing.node(_json(reference), "")
        root = parsing.node(_json(text), "")
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    return parsing, root


def _json(text: str) -> Any:
    # A primitive may stand there bare (`string`), as Java's parser allows.
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError:
        raise SchemaError("the schema is not JSON") from None


@final
class _Parsing:
    """The name table while it fills."""

    def __init__(self) -> None:
        self.names: dict[str, NamedType] = {}
        self._open: set[str] = set()
        self._used: set[str] = set()

    def node(self, schema: Any, space: str) -> Node:
        if isinstance(schema, str):
            return self._name_used(schema, space)
        if isinstance(schema, list):
            return self._union(cast("list[Any]", schema), space)
        if not isinstance(schema, dict):
            raise SchemaError(f"a schema is a name, a list or an object, not {type(schema).__name__}")
        return self._object(cast("dict[str, Any]", schema), space)

    def undefined(self) -> frozenset[str]:
        """The names that were used and not defined."""
        return frozenset(self._used - self.names.keys())

    def _object(self, schema: dict[str, Any], space: str) -> Node:
        kind = schema.get("type")
        if kind in ("record", "error"):
            return self._define(schema, space, self._record)
        if kind == "enum":
            return self._define(schema, space, _enum)
        if kind == "fixed":
            return self._define(schema, space, _fixed)
        if kind == "array":
            return Array(self.node(_required(schema, "items", "an array"), space))
        if kind == "map":
            return Map(self.node(_required(schema, "values", "a map"), space))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return Primitive(kind, *_logical(kind, schema))
        return self.node(kind, space)

    def _name_used(self, name: str, space: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(name)
        qualified = f"{space}.{name}" if space and "." not in name else name
        known = self.names.keys() | self._open
        if qualified not in known and name in known:
            qualified = name
        self._used.add(qualified)
        return Ref(qualified)

    def _union(self, branches: list[Any], space: str) -> Union:
        nodes = tuple(self.node(branch, space) for branch in branches)
        kinds = [node.name if isinstance(node, Ref) else _kind(node) for node in nodes]
        if not nodes or "union" in kinds or len(set(kinds)) != len(kinds):
            raise SchemaError(f"a union needs different branches and none that is a union: [{', '.join(kinds)}]")
        return Union(nodes)

    def _define(self, schema: dict[str, Any], space: str, define: Any) -> Ref:
        name, space = _full_name(schema, space)
        self._open.add(name)
        defined: NamedType = define(name, space, schema)
        known = self.names.setdefault(name, defined)
        if known != defined:
            raise SchemaError(f"two different definitions of {name}: {_difference(known, defined)}")
        return Ref(name)

    def _record(self, name: str, space: str, schema: dict[str, Any]) -> RecordType:
        given = _required(schema, "fields", f"record {name}")
        fields = tuple(self._field(name, item, space) for item in _list(given, f"the fields of {name}"))
        if len({item.name for item in fields}) != len(fields):
            raise SchemaError(f"record {name} has two fields of one name")
        return RecordType(name, fields, _aliases(schema, space))

    def _field(self, record: str, given: Any, space: str) -> Field:
        if not isinstance(given, dict):
            raise SchemaError(f"a field of {record} is not an object")
        schema = cast("dict[str, Any]", given)
        name = _required(schema, "name", f"a field of {record}")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SchemaError(f"a field of {record} has the name {name!r}")
        node = self.node(_required(schema, "type", f"{record}.{name}"), space)
        return Field(name, node, schema.get("default", MISSING), _aliases(schema, ""))


def _kind(node: Node) -> str:
    if isinstance(node, Primitive):
        return node.kind
    return type(node).__name__.lower()


def _required(schema: dict[str, Any], key: str, what: str) -> Any:
    if key not in schema:
        raise SchemaError(f"{what} has no {key!r}")
    return schema[key]


def _list(given: Any, what: str) -> list[Any]:
    if not isinstance(given, list):
        raise SchemaError(f"{what} are not a list")
    return cast("list[Any]", given)


def _full_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """The full name that a definition gives, and the name space inside it."""
    name = _required(schema, "name", f"a {schema['type']}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SchemaError(f"{name!r} is no name of a {schema['type']}")
    own = schema.get("namespace", space)
    own = own if isinstance(own, str) else ""
    full = name if "." in name or not own else f"{own}.{name}"
    return full, full.rpartition(".")[0]


def _aliases(schema: dict[str, Any], space: str) -> frozenset[str]:
    given = [str(alias) for alias in _list(schema.get("aliases") or [], "aliases")]
    return frozenset(alias if "." in alias or not space else f"{space}.{alias}" for alias in given)


def _enum(name: str, space: str, schema: dict[str, Any]) -> EnumType:
    symbols = tuple(str(symbol) for symbol in _list(_required(schema, "symbols", f"enum {name}"), f"symbols of {name}"))
    default = schema.get("default")
    if len(set(symbols)) != len(symbols) or not symbols:
        raise SchemaError(f"enum {name} has no symbols, or one twice")
    if default is not None and default not in symbols:
        raise SchemaError(f"the default of enum {name} is not one of its symbols")
    return EnumType(name, symbols, default, _aliases(schema, space))


def _fixed(name: str, space: str, schema: dict[str, Any]) -> FixedType:
    size = _required(schema, "size", f"fixed {name}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise SchemaError(f"the size of fixed {name} is not a number of bytes")
    logical, precision, scale = _logical("fixed", schema)
    if logical == "uuid" and size != 16:
        logical = None
    return FixedType(name, size, logical, precision, scale, _aliases(schema, space))


def _logical(kind: str, schema: dict[str, Any]) -> tuple[str | None, int, int]:
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or logical not in LOGICAL.get(kind, ()):
        return None, 0, 0
    if logical != "decimal":
        return logical, 0, 0
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if (
        not isinstance(precision, int)
        or not isinstance(scale, int)
        or not 0 <= scale <= precision <= DIGITS_MAX
        or not precision
    ):
        raise SchemaError(f"a decimal of precision {precision!r} and scale {scale!r}")
    return logical, precision, scale


def _difference(one: NamedType, other: NamedType) -> str:
    """Where two definitions of a name part, in a few words."""
    if isinstance(one, RecordType) and isinstance(other, RecordType):
        for mine, theirs in zip(one.fields, other.fields, strict=False):
            if mine != theirs:
                return f"field {mine.name}: {mine.type} in one, {theirs.name}: {theirs.type} in the other"
        return f"{len(one.fields)} fields in one, {len(other.fields)} in the other"
    return "they do not agree"
