"""What one value becomes: promotions, logical types and enums, from writer to reader to class. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...inbox.errors import RecordError
from ...inbox.outcome import Reason
from . import logical, wire
from .mapping import Mismatch, converter_to, shown
from .schemas import Array, EnumType, FixedType, Map, NamedType, Primitive, RecordType, Union, described, short_name
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

Resolved = Primitive | Array | Map | Union | NamedType


def same_name(writer: NamedType, reader: NamedType) -> bool:
    """By the unqualified name or an alias. Source: Avro 1.12 specification, "Schema Resolution"."""
    aliases = reader.aliases | {short_name(alias) for alias in reader.aliases}
    return (
        short_name(writer.name) == short_name(reader.name)
        or writer.name in aliases
        or short_name(writer.name) in aliases
    )


def is_same(writer: Resolved, reader: Resolved) -> bool:
    """The same type, as far as its name and kind say."""
    if isinstance(writer, Primitive) and isinstance(reader, Primitive):
        return writer.kind == reader.kind
    if isinstance(writer, RecordType | EnumType | FixedType) and isinstance(reader, RecordType | EnumType | FixedType):
        return type(writer) is type(reader) and same_name(writer, reader)
    return type(writer) is type(reader)


def is_promoted(writer: Resolved, reader: Resolved) -> bool:
    """A primitive that the reader's primitive can hold."""
    return isinstance(writer, Primitive) and isinstance(reader, Primitive) and (writer.kind, reader.kind) in _PROMOTIONS


def scalar_reader(writer: Primitive | FixedType, reader: Primitive | FixedType, accepts: Any, where: str) -> Read:
    """The reader of a primitive or fixed value. Raises Mismatch where it cannot become what is asked for."""
    read = wire.fixed_reader(writer.size) if isinstance(writer, FixedType) else wire.PRIMITIVE_READERS[writer.kind]
    if accepts is SKIP:
        # Text that nobody asked for needs not be text.
        return wire.read_bytes if writer == Primitive("string") else read
    _check_scalars(writer, reader, where)
    promote = _PROMOTIONS.get((_kind(writer), _kind(reader)))
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


def _offers(reader: Primitive | FixedType, where: str) -> list[tuple[Callable[[Any], Any] | None, type]]:
    """What the value can be had as, best first: the logical type, the base type, an int as a float."""
    base = _PYTHON_TYPES[_kind(reader)]
    offers: list[tuple[Callable[[Any], Any] | None, type]] = [(None, base)]
    if reader.logical is not None:
        offers.insert(0, (logical.converter(reader, where), logical.TYPES[reader.logical]))
    elif base is int:
        offers.append((float, float))
    return offers


def _check_scalars(writer: Primitive | FixedType, reader: Primitive | FixedType, where: str) -> None:
    same = is_same(writer, reader) or is_promoted(writer, reader)
    if isinstance(writer, FixedType) and isinstance(reader, FixedType):
        same = same and writer.size == reader.size
    if writer.logical is not None and reader.logical is not None:
        same = same and writer.logical == reader.logical
        same = same and (writer.precision, writer.scale) == (reader.precision, reader.scale)
    if not same:
        raise Mismatch(f"{where} is {described(writer)} as written, {described(reader)} as read")


def _kind(node: Primitive | FixedType) -> str:
    return "fixed" if isinstance(node, FixedType) else node.kind


def symbol_reader(writer: EnumType, reader: EnumType, accepts: Any, where: str) -> Read:
    """The reader of an enum. Raises Mismatch where symbols cannot become what is asked for."""
    if accepts is SKIP:
        return wire.enum_reader(writer.symbols, where)
    finish = asked(lambda asked: converter_to(asked, str), accepts, where)
    return wire.enum_reader([_symbol(symbol, reader, finish, where) for symbol in writer.symbols], where)


def _symbol(symbol: str, reader: EnumType, finish: Callable[[Any], Any] | None, where: str) -> Any:
    """What a written symbol becomes; a RecordError where it becomes nothing."""
    known = symbol if symbol in reader.symbols else reader.default
    if known is None:
        return RecordError(
            Reason.SCHEMA_INCOMPATIBLE,
            f"{where} has the symbol {symbol}, which the reader's {reader.name} does not have",
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
