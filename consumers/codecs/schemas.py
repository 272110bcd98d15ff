"""Avro schemas in fastavro's parsed form, every named type once, by full name, its uses by reference. No IO.

fastavro resolves names and namespaces. Here is what it lacks: one name table over a schema and its references, in which
a type that several of them spell out is one type if they agree (a diamond, an inlined copy) and a `SchemaError` if they
do not, where fastavro takes the last; and checks that it leaves out. What is wrong with a schema is never a record's
fault.

A node is a primitive's name, a named type's full name, a list (a union) or a dict (`type` and what belongs to it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import fastavro
from fastavro.schema import SchemaParseException, UnknownType, fullname

Named: TypeAlias = dict[str, Any]
Node: TypeAlias = str | list[Any] | Named

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

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

DEFAULT: Final = "tidegate.default"
"""The key of a field's default. By its own name fastavro would check it, and refuse good ones (0 for a double)."""


class SchemaError(Exception):
    """The schema itself is wrong or contradicts itself. No record is at fault, and no record may die of it."""


class UndefinedNameError(SchemaError):
    """`name` is used, and neither the schema nor its references define it."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"neither the schema nor its references define {name}")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema and the table of every named type in it."""

    root: Node
    names: Mapping[str, Named] = field(repr=False)

    def resolve(self, node: Node) -> Node:
        """The node itself, or the type that it names."""
        return self.names[node] if isinstance(node, str) and node not in PRIMITIVES else node


def kind_of(node: Node) -> str:
    """A resolved node's kind: one of the primitives, `union`, `array`, `map`, `record`, `enum` or `fixed`."""
    if isinstance(node, list):
        return "union"
    return node if isinstance(node, str) else node["type"]


def logical_of(node: Node) -> str | None:
    """The logical type that has a meaning here."""
    return node.get("logicalType") if isinstance(node, dict) else None


def name_of(node: Node) -> str:
    """A type's full name, or its kind where it has none; so branches of a union are called."""
    return node["name"] if isinstance(node, dict) and "name" in node else kind_of(node)


def aliases_of(node: Named) -> frozenset[str]:
    """The full names by which a named type is known too."""
    space, dot, _ = node["name"].rpartition(".")
    return frozenset(alias if "." in alias else space + dot + alias for alias in node.get("aliases", ()))


def described(node: Node) -> str:
    """A type in words, for messages."""
    if isinstance(node, list):
        return f"[{', '.join(map(described, node))}]"
    if isinstance(node, str):
        return node
    if node.get("logicalType") == "decimal":
        return f"decimal({node['precision']},{node['scale']})"
    if node["type"] in ("array", "map"):
        return f"{node['type']} of {described(node.get('items') or node['values'])}"
    return node.get("name") or node["logicalType"]


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


def parse(text: str, references: Iterable[str] = ()) -> Schema:
    """Parse a schema (JSON text) and, in the same name table, those that it refers to, each after its own references.

    Raises:
        UndefinedNameError: a name that none of them defined before its use.
        SchemaError: not JSON, not Avro, or one name with two meanings.
    """
    names: dict[str, Named] = {}
    root: Node = "null"
    try:
        for each in (*references, text):
            root = _added(_checked(_json(each)), names)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    return Schema(root, names)


def root_names(text: str) -> frozenset[str]:
    """The full names of the named types at a schema's top, without a look at what they refer to."""
    try:
        root = _checked(_json(text))
    except (SchemaError, RecursionError):
        return frozenset()
    branches = root if isinstance(root, list) else [root]
    return frozenset(_given_name(branch) for branch in branches) - PRIMITIVES - {"array", "map"}


def _given_name(node: Node) -> str:
    """The name by which a definition gives itself, or a use; a kind where there is none."""
    return fullname(node) if isinstance(node, dict) and "name" in node else kind_of(node)


def _json(text: str) -> Any:
    # A primitive may stand there bare (`string`), as Java's parser allows.
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError:
        raise SchemaError("the schema is not JSON") from None


def _added(given: Node, names: dict[str, Named]) -> Node:
    """A schema in fastavro's form; its named types join the table."""
    if isinstance(given, list):
        return [_added(branch, names) for branch in given]
    found: dict[str, Any] = dict(names)
    parsed = _parsed(given, found)
    for name, full in found.items():
        definition = {
            **full,
            **({"fields": [_flat_field(item) for item in full["fields"]]} if "fields" in full else {}),
        }
        known = names.setdefault(name, definition)
        if known != definition:
            raise SchemaError(f"two different definitions of {name}: {_difference(known, definition)}")
    return _flat(parsed)


def _parsed(given: Node, found: dict[str, Any]) -> Any:
    borrowed: dict[str, str] = {}
    while True:
        try:
            parsed = fastavro.parse_schema(given, found)
        except UnknownType as error:
            # A bare name means one of its own namespace, else one of none, as for Java's parser.
            name = str(cast("Any", error).name)
            bare = short_name(name)
            if bare not in found or name in borrowed:
                raise UndefinedNameError(name) from None
            borrowed[name], found[name] = bare, found[bare]
        except (SchemaParseException, ArithmeticError) as error:
            raise SchemaError(str(error)) from None
        else:
            found.update({name: found[bare] for name, bare in borrowed.items()})
            return parsed


def _flat(node: Any) -> Any:
    """A node with named types as their names."""
    if isinstance(node, list):
        return [_flat(branch) for branch in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    given = cast("dict[str, Any]", node)
    return given.get("name") or {k: _flat(v) if k in ("items", "values") else v for k, v in given.items()}


def _flat_field(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "type": _flat(item["type"])}


def _difference(one: Named, other: Named) -> str:
    """Where two definitions of a name part, in a few words."""
    for mine, theirs in zip(one.get("fields", ()), other.get("fields", ()), strict=False):
        if mine != theirs:
            return f"field {mine['name']}: {described(mine['type'])} in one, {described(theirs['type'])} in the other"
    return "they do not agree"


# ------------------------------------------------------------------------------------ what fastavro does not check


def _checked(given: Any) -> Node:
    """A schema reduced to what has a meaning. Nesting that Python refuses ends here, before compiled code gets it."""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return _union([_checked(branch) for branch in cast("list[Any]", given)])
    if not isinstance(given, dict):
        raise SchemaError(f"a schema is a name, a list or an object, not {type(given).__name__}")
    schema = cast("dict[str, Any]", given)
    kind = schema.get("type")
    if kind == "array":
        return {"type": kind, "items": _checked(_required(schema, "items"))}
    if kind == "map":
        return {"type": kind, "values": _checked(_required(schema, "values"))}
    if kind in ("record", "error"):
        return {**_named(schema), "type": "record", "fields": _fields(schema)}
    if kind == "enum":
        return {**_named(schema, "default"), "symbols": _symbols(schema)}
    if kind == "fixed":
        return {**_named(schema), "size": _size(schema), **_logical(schema)}
    if isinstance(kind, str) and kind in PRIMITIVES:
        return {"type": kind, **logical} if (logical := _logical(schema)) else kind
    return _checked(kind)


def _union(branches: list[Node]) -> Node:
    kinds = [_given_name(node) for node in branches]
    if not branches or "union" in kinds or len(set(kinds)) != len(kinds):
        raise SchemaError(f"a union needs different branches and none that is a union: [{', '.join(kinds)}]")
    return branches


def _named(schema: dict[str, Any], *more: str) -> Named:
    name = _required(schema, "name")
    space = schema.get("namespace")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(space, str | None):
        raise SchemaError(f"{name!r} is no name of a {schema['type']}")
    kept = {key: schema[key] for key in ("type", "name", *more) if key in schema}
    return {**kept, **({} if space is None else {"namespace": space}), **_aliases(schema)}


def _fields(record: dict[str, Any]) -> list[dict[str, Any]]:
    fields: dict[str, dict[str, Any]] = {}
    for item in _list(record, "fields"):
        if not isinstance(item, dict):
            raise SchemaError(f"a field of {record['name']} is not an object")
        given = cast("dict[str, Any]", item)
        name = _required(given, "name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in fields:
            raise SchemaError(f"a field of {record['name']} has the name {name!r}, which is none or another field's")
        default = {DEFAULT: given["default"]} if "default" in given else {}
        fields[name] = {"name": name, "type": _checked(_required(given, "type")), **_aliases(given), **default}
    return list(fields.values())


def _aliases(schema: dict[str, Any]) -> dict[str, Any]:
    aliases = [str(alias) for alias in _list({"aliases": schema.get("aliases") or []}, "aliases")]
    return {"aliases": aliases} if aliases else {}


def _required(schema: dict[str, Any], key: str) -> Any:
    if key not in schema:
        raise SchemaError(f"{schema.get('name') or schema.get('type') or 'the schema'} has no {key!r}")
    return schema[key]


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    given = _required(schema, key)
    if not isinstance(given, list):
        raise SchemaError(f"{key} are not a list")
    return cast("list[Any]", given)


def _symbols(schema: dict[str, Any]) -> list[Any]:
    symbols = _list(schema, "symbols")
    if not symbols:
        raise SchemaError(f"enum {schema['name']} has no symbols")
    return symbols


def _size(schema: dict[str, Any]) -> int:
    size = _required(schema, "size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise SchemaError(f"the size of fixed {schema['name']} is not a number of bytes")
    return size


def _logical(schema: dict[str, Any]) -> dict[str, Any]:
    """The properties of a logical type; none where it has no meaning here."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or logical not in LOGICAL.get(schema["type"], ()):
        return {}
    if logical != "decimal":
        return {} if logical == "uuid" and schema.get("size", 16) != 16 else {"logicalType": logical}
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    sound = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= DIGITS_MAX
    if not sound or not precision:
        raise SchemaError(f"a decimal of precision {precision!r} and scale {scale!r}")
    return {"logicalType": logical, "precision": precision, "scale": scale}
