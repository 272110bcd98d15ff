"""Decoding plans: writer's schema, reader's schema and classes, worked out once into one composed reader. No IO.

Everything that can be known from schemas and classes is decided here, before the first record: promotions, aliases,
defaults (already of the runtime type), which fields nobody asked for, which class a record becomes. What cannot work
for any record is a `Mismatch` here; what cannot work for some (a null where the class takes none, a symbol that the
reader lacks) becomes a reader that refuses just those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from ...inbox.errors import RecordError
from ...inbox.outcome import Reason
from . import wire
from .mapping import (
    ANY,
    DICT,
    Classes,
    ClassField,
    Mismatch,
    Shape,
    builder,
    checked,
    list_of,
    shape_of,
    takes_in_order,
    values_of,
)
from .scalars import SKIP, asked, is_promoted, is_same, scalar_reader, symbol_reader
from .schemas import DEFAULT, PRIMITIVES, Named, Node, Schema, aliases_of, described, kind_of, name_of
from .source import SchemaKey
from .wire import Read
from .writing import default_bytes

_SCALARS: Final = PRIMITIVES | {"fixed"}


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """How records of one schema id are read. For a union at the top `branches` has a plan for each of its branches."""

    schema_id: SchemaKey
    type: str
    read: Read
    branches: tuple[Plan, ...] = ()


def plan(schema_id: SchemaKey, writer: Schema, readers: Mapping[str, Schema], classes: Classes) -> Plan:
    """The plan for a writer's schema; a branch that cannot be read as asked has one that refuses its records."""
    root = writer.resolve(writer.root)
    if isinstance(root, list):
        branches = tuple(_branch(schema_id, writer, branch, readers, classes) for branch in root)
        return Plan(schema_id, "", wire.read_long, branches)
    return _branch(schema_id, writer, writer.root, readers, classes)


def _branch(schema_id: SchemaKey, writer: Schema, node: Node, readers: Mapping[str, Schema], classes: Classes) -> Plan:
    reader = _reader_for(name_of(writer.resolve(node)), readers) or writer
    target = node if reader is writer else reader.root
    name = name_of(reader.resolve(target))
    try:
        read = Compiler(writer, reader, classes).read(node, target, ANY, name)
    except Mismatch as mismatch:
        read = wire.refusing(Reason.SCHEMA_INCOMPATIBLE, f"schema {schema_id} cannot be read as {name}: {mismatch}")
    return Plan(schema_id, name, read)


def _reader_for(name: str, readers: Mapping[str, Schema]) -> Schema | None:
    """The declared reader's schema for a record: by its full name, else by an alias."""
    if name in readers:
        return readers[name]
    for declared, reader in readers.items():
        if name in aliases_of(reader.names[declared]):
            return reader
    return None


@final
class _Late:
    """A record's reader that is used (by the record itself, say) before it is made."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        self.read: Read = wire.read_null

    def __call__(self, body: bytes, at: int) -> tuple[Any, int]:
        return self.read(body, at)


@final
class Compiler:
    """Composes readers for one pair of schemas. `where` names the place in messages, as `Record.field`."""

    def __init__(self, writer: Schema, reader: Schema, classes: Classes) -> None:
        self._writer = writer
        self._reader = reader
        self._classes = classes
        self._records: dict[tuple[str, str, Any], Read] = {}

    def read(self, written: Node, target: Node, accepts: Any, where: str) -> Read:
        """The reader that turns what `written` describes into what `target` describes, as `accepts` asks for it.

        Raises:
            Mismatch: that cannot work for any record.
        """
        writer = self._writer.resolve(written)
        if isinstance(writer, list):
            return self._union(writer, target, accepts, where)
        if accepts is SKIP:
            return self._one(writer, writer, SKIP, where)
        return self._one(writer, self._choose(writer, target, where), accepts, where)

    def _choose(self, writer: Node, target: Node, where: str) -> Node:
        """The branch of the reader's union that takes what was written: the same type before a promotion."""
        reader = self._reader.resolve(target)
        if not isinstance(reader, list):
            return reader
        branches = [self._reader.resolve(branch) for branch in reader]
        for fits in (is_same, is_promoted):
            for branch in branches:
                if fits(writer, branch):
                    return branch
        raise Mismatch(f"{where} is {described(writer)} as written, and none of {described(reader)} takes it")

    def _one(self, writer: Node, reader: Node, accepts: Any, where: str) -> Read:
        kind, wanted = kind_of(writer), kind_of(reader)
        if kind in _SCALARS and wanted in _SCALARS:
            return scalar_reader(writer, reader, accepts, where)
        if isinstance(writer, dict) and isinstance(reader, dict) and is_same(writer, reader):
            compose = {"record": self._record, "enum": symbol_reader, "array": self._array, "map": self._map}[kind]
            return compose(writer, reader, accepts, where)
        raise Mismatch(f"{where} is {described(writer)} as written, {described(reader)} as read")

    def _map(self, writer: Named, reader: Named, accepts: Any, where: str) -> Read:
        value = SKIP if accepts is SKIP else asked(values_of, accepts, where)
        return wire.map_reader(self.read(writer["values"], reader["values"], value, f"{where}{{}}"))

    def _union(self, writer: list[Any], target: Node, accepts: Any, where: str) -> Read:
        reads: list[Read] = []
        problems: list[str] = []
        several = sum(kind_of(self._writer.resolve(branch)) == "record" for branch in writer) > 1
        for branch in writer:
            try:
                read = self.read(branch, target, accepts, where)
                reads.append(self._named(branch, read, accepts) if several else read)
            except Mismatch as mismatch:
                problems.append(str(mismatch))
                reads.append(wire.refusing(Reason.SCHEMA_INCOMPATIBLE, str(mismatch)))
        if problems and len(problems) == len(reads):
            raise Mismatch("; ".join(problems))
        if len(reads) == 2 and wire.read_null in reads:
            null = reads.index(wire.read_null)
            return wire.optional_reader(reads[1 - null], null, where)
        return wire.union_reader(reads, where)

    def _named(self, branch: Node, read: Read, accepts: Any) -> Read:
        """A dict has no type; where several records may stand, it comes as (full name, dict)."""
        resolved = self._writer.resolve(branch)
        name = name_of(resolved)
        if accepts is SKIP or kind_of(resolved) != "record" or shape_of(accepts, name, self._classes).cls is not None:
            return read
        return wire.converted(read, lambda value: (name, value))

    def _array(self, writer: Named, reader: Named, accepts: Any, where: str) -> Read:
        item, made = (SKIP, None) if accepts is SKIP else asked(list_of, accepts, where)
        read_item = self.read(writer["items"], reader["items"], item, f"{where}[]")
        read = wire.array_reader(read_item, takes_bytes=self._takes_bytes(writer["items"], frozenset()))
        return read if made is None else wire.converted(read, checked(made, where))

    def _takes_bytes(self, node: Node, inside: frozenset[str]) -> bool:
        """True where a value takes at least one byte."""
        resolved = self._writer.resolve(node)
        if isinstance(resolved, dict) and resolved["type"] == "record":
            name, within = resolved["name"], inside | {resolved["name"]}
            return name not in inside and any(self._takes_bytes(field["type"], within) for field in resolved["fields"])
        return resolved["size"] > 0 if isinstance(resolved, dict) and "size" in resolved else resolved != "null"

    def _record(self, writer: Named, reader: Named, accepts: Any, where: str) -> Read:
        shape = DICT
        if accepts is not SKIP:
            shape = asked(lambda accepted: shape_of(accepted, reader["name"], self._classes), accepts, where)
        key = (writer["name"], reader["name"], SKIP if accepts is SKIP else shape.cls)
        if key not in self._records:
            late = _Late()
            self._records[key] = late
            try:
                late.read = self._fields(writer, reader, shape, skipped=accepts is SKIP)
            except Mismatch:
                del self._records[key]
                raise
            self._records[key] = late.read
        return self._records[key]

    def _fields(self, writer: Named, reader: Named, shape: Shape, *, skipped: bool) -> Read:
        reads: list[Read] = []
        names: list[str | None] = []
        for given in writer["fields"]:
            wanted = _counterpart(given, reader)
            read, name = self._field(given, wanted, shape, f"{reader['name']}.{given['name']}", skipped=skipped)
            reads.append(read)
            names.append(name)
        if skipped:
            return wire.record_reader(reads, lambda values: None)
        for wanted in reader["fields"]:
            name = wanted["name"]
            if name in names or not _is_asked(shape, name):
                continue
            if (read := self._absent(wanted, shape, f"{reader['name']}.{name}")) is not None:
                reads.append(read)
                names.append(name)
        _check_required(shape, names, reader["name"])
        if shape.cls is not None and takes_in_order(shape, names):
            return wire.instance_reader(reads, shape.make)
        return wire.record_reader(reads, builder(shape, names))

    def _field(
        self, given: Named, wanted: Named | None, shape: Shape, where: str, *, skipped: bool
    ) -> tuple[Read, str | None]:
        """The reader of a written field, and the name under which its value is kept (None: it is not)."""
        if skipped or wanted is None or not _is_asked(shape, wanted["name"]):
            return self.read(given["type"], given["type"], SKIP, where), None
        field = _asked_field(shape, wanted["name"])
        return self._as_asked(given["type"], wanted["type"], field, shape, where), wanted["name"]

    def _as_asked(self, written: Node, target: Node, field: ClassField | None, shape: Shape, where: str) -> Read:
        if field is None:
            return self.read(written, target, ANY, where)
        try:
            return self.read(written, target, field.accepts, where)
        except Mismatch:
            if not shape.checks_itself:
                raise
            return self.read(written, target, ANY, where)

    def _absent(self, wanted: Named, shape: Shape, where: str) -> Read | None:
        """The reader's default for a field that was not written; None where the class has a default of its own."""
        field = _asked_field(shape, wanted["name"])
        if DEFAULT not in wanted:
            if field is not None and not field.required:
                return None
            raise Mismatch(f"{where} was not written, and the reader's schema has no default for it")
        body = default_bytes(self._reader, wanted["type"], wanted[DEFAULT], where)
        own = Compiler(self._reader, self._reader, self._classes)
        return _constant(own._as_asked(wanted["type"], wanted["type"], field, shape, where), body, where)


def _constant(read: Read, default: bytes, where: str) -> Read:
    """Reads the same value without looking at the body: a fresh one each time, for it may be a list."""
    try:
        read(default, 0)
    except RecordError as error:
        raise Mismatch(f"the default of {where}: {error}") from None

    def read_default(body: bytes, at: int) -> tuple[Any, int]:
        return read(default, 0)[0], at

    return read_default


def _is_asked(shape: Shape, name: str) -> bool:
    return shape.fields is None or name in shape.fields


def _asked_field(shape: Shape, name: str) -> ClassField | None:
    return None if shape.fields is None else shape.fields[name]


def _check_required(shape: Shape, names: list[str | None], record: str) -> None:
    missing = [name for name, field in (shape.fields or {}).items() if field.required and name not in names]
    if missing and shape.cls is not None:
        raise Mismatch(f"{shape.cls.__name__} needs {', '.join(missing)}, which {record} does not have")


def _counterpart(given: Named, reader: Named) -> Named | None:
    """The reader's field for a written one: by name, else by the reader's alias."""
    name = given["name"]
    same = (field for field in reader["fields"] if field["name"] == name)
    return next(same, None) or next((field for field in reader["fields"] if name in field.get("aliases", ())), None)
