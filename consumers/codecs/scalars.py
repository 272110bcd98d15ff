"""What one value becomes: promotions, logical types and enums, from writer to reader to class. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from ...inbox.errors import RecordError
from ...inbox.outcome import Reason
from . import logical, wire
from .mapping import Mismatch, converter_to, shown
from .schemas import Named, Node, described, kind_of, logical_of, short_name
from .wire import Read

SKIP: Final = object()
"""Asked for by nobody: read past, without a look at logical types, so that a bad value there harms nobody."""


_PYTHON_TYPES: Final[Mapping[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "fixed": bytes,
}
_PROMOTIONS: Final[Mapping[tuple[str, str], Callable[[Any], Any] | None]] = {
    ("int", "long"): None,
    ("int", "float"): float,
    ("int", "double"): float,
    ("long", "float"): float,
    ("long", "double"): float,
    ("float", "double"): None,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}
"""Source: Avro 1.12 specification, "Schema Resolution"."""


def same_name(writer: Named, reader: Named) -> bool:
    """By the unqualified name or an alias. Source: Avro 1.12 specification, "Schema Resolution"."""
    return short_name(writer["name"]) in {short_name(name) for name in (reader["name"], *reader.get("aliases", ()))}


def is_same(writer: Node, reader: Node) -> bool:
    """The same type, as far as its name and kind say. Both are resolved."""
    if isinstance(writer, dict) and isinstance(reader, dict) and "name" in writer and "name" in reader:
        return writer["type"] == reader["type"] and same_name(writer, reader)
    return kind_of(writer) == kind_of(reader)


def is_promoted(writer: Node, reader: Node) -> bool:
    """A primitive that the reader's primitive can hold."""
    return (kind_of(writer), kind_of(reader)) in _PROMOTIONS


def scalar_reader(writer: Node, reader: Node, accepts: Any, where: str) -> Read:
    """The reader of a primitive or fixed value. Raises Mismatch where it cannot become what is asked for."""
    kind = kind_of(writer)
    if accepts is SKIP and kind == "string":
        # Text that nobody asked for needs not be text.
        return wire.read_bytes
    read = wire.PRIMITIVE_READERS.get(kind) or wire.fixed_reader(cast("Named", writer)["size"])
    if accepts is SKIP:
        return read
    _check_scalars(writer, reader, where)
    promote = _PROMOTIONS.get((kind, kind_of(reader)))
    read = read if promote is None else wire.converted(read, promote)
    for convert, given in _offers(reader, where):
        try:
            finish = converter_to(accepts, given)
        except Mismatch:
            continue
        for step in (convert, finish):
            read = read if step is None else wire.converted(read, step)
        return read
    raise Mismatch(f"{where} is {described(reader)}, and {shown(accepts)} does not take that")


def _offers(reader: Node, where: str) -> list[tuple[Callable[[Any], Any] | None, type]]:
    """What the value can be had as, best first: the logical type, the base type, an int as a float."""
    base = _PYTHON_TYPES[kind_of(reader)]
    logical_type = logical_of(reader)
    if logical_type is not None:
        return [(logical.converter(reader, where), logical.TYPES[logical_type]), (None, base)]
    return [(None, base), (float, float)] if base is int else [(None, base)]


def _check_scalars(writer: Node, reader: Node, where: str) -> None:
    same = is_same(writer, reader) or is_promoted(writer, reader)
    if isinstance(writer, dict) and isinstance(reader, dict):
        same = same and writer.get("size") == reader.get("size")
        if "logicalType" in writer and "logicalType" in reader:
            same = same and all(writer.get(key) == reader.get(key) for key in ("logicalType", "precision", "scale"))
    if not same:
        raise Mismatch(f"{where} is {described(writer)} as written, {described(reader)} as read")


def symbol_reader(writer: Named, reader: Named, accepts: Any, where: str) -> Read:
    """The reader of an enum. Raises Mismatch where symbols cannot become what is asked for."""
    if accepts is SKIP:
        return wire.enum_reader(writer["symbols"], where)
    finish = asked(lambda asked: converter_to(asked, str), accepts, where)
    return wire.enum_reader([_symbol(symbol, reader, finish, where) for symbol in writer["symbols"]], where)


def _symbol(symbol: str, reader: Named, finish: Callable[[Any], Any] | None, where: str) -> Any:
    """What a written symbol becomes; a RecordError where it becomes nothing."""
    known = symbol if symbol in reader["symbols"] else reader.get("default")
    if known is None:
        return RecordError(
            Reason.SCHEMA_INCOMPATIBLE,
            f"{where} has the symbol {symbol}, which the reader's {reader['name']} does not have",
        )
    try:
        return known if finish is None else finish(known)
    except RecordError as error:
        return RecordError(error.reason, f"{where} has the symbol {symbol}: {error}")


def asked(ask: Callable[[Any], Any], accepts: Any, where: str) -> Any:
    """What `ask` says about an annotation, with the place in its Mismatch."""
    try:
        return ask(accepts)
    except Mismatch as mismatch:
        raise Mismatch(f"{where}: {mismatch}") from None
