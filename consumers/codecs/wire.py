"""Readers of Avro's binary form: each takes (body, position) and gives (value, next position). No IO.

They never trust a length. A position only grows, and the caller compares the last one with the body's length: so a
string that is cut off needs no check of its own, and a wrong length can reach no neighbour. Whatever they meet they
raise RecordError or one of `FAULTS`, nothing else. Unlike in fastavro nothing negative is taken for an index or a
length, no count makes items out of nothing, and readers are composed once for each schema.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from ...inbox.errors import RecordError
from ...inbox.outcome import Reason

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

FAULTS: Final = (IndexError, UnicodeDecodeError, struct.error, OverflowError, RecursionError)
"""What a malformed body makes readers raise, besides RecordError."""

NOTHING_MAX: Final = 128
"""Items of one array that take no bytes at all (nulls). Without a limit ten bytes would ask for 2^60 of them."""

_FLOAT: Final = struct.Struct("<f").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


def undecodable(text: str) -> NoReturn:
    """Raise the RecordError of a malformed body."""
    raise RecordError(Reason.UNDECODABLE, text)


def read_null(body: bytes, at: int) -> tuple[None, int]:
    """No bytes at all."""
    return None, at


def read_boolean(body: bytes, at: int) -> tuple[bool, int]:
    """One byte, 0 or 1."""
    byte = body[at]
    if byte > 1:
        undecodable("a boolean is neither 0 nor 1")
    return byte == 1, at + 1


def read_long(body: bytes, at: int) -> tuple[int, int]:
    """Zig-zag, seven bits a byte, the lowest first, at most 64 bits."""
    raw = body[at]
    at += 1
    if raw > 127:
        raw &= 127
        shift = 7
        while True:
            byte = body[at]
            at += 1
            raw |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                undecodable("a number of more than 64 bits")
        if raw >> 64:
            undecodable("a number of more than 64 bits")
    return (raw >> 1) ^ -(raw & 1), at


def read_int(body: bytes, at: int) -> tuple[int, int]:
    """As `read_long`, at most 32 bits."""
    value, at = read_long(body, at)
    if not _INT_MIN <= value <= _INT_MAX:
        undecodable("an int of more than 32 bits")
    return value, at


def read_float(body: bytes, at: int) -> tuple[float, int]:
    """Four bytes, IEEE 754, little-endian."""
    return _FLOAT(body, at)[0], at + 4


def read_double(body: bytes, at: int) -> tuple[float, int]:
    """Eight bytes, IEEE 754, little-endian."""
    return _DOUBLE(body, at)[0], at + 8


def read_length(body: bytes, at: int) -> tuple[int, int]:
    """A number that is not negative."""
    length, at = read_long(body, at)
    if length < 0:
        undecodable("a negative length")
    return length, at


def read_bytes(body: bytes, at: int) -> tuple[bytes, int]:
    """A length, and so many bytes."""
    length, at = read_length(body, at)
    end = at + length
    return body[at:end], end


def read_string(body: bytes, at: int) -> tuple[str, int]:
    """A length, and so many bytes of UTF-8."""
    length = body[at]
    if length & 0x81:
        length, at = read_length(body, at)
        end = at + length
    else:
        # One byte, not negative: most strings of most events.
        at += 1
        end = at + (length >> 1)
    return body[at:end].decode(), end


PRIMITIVE_READERS: Final[dict[str, Read]] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": read_int,
    "long": read_long,
    "float": read_float,
    "double": read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def fixed_reader(size: int) -> Read:
    """Exactly `size` bytes."""

    def read(body: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        return body[at:end], end

    return read


def enum_reader(values: Sequence[Any], where: str) -> Read:
    """One of `values` by its index; where a RecordError stands, its like is raised."""
    values = tuple(values)
    count = len(values)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(body, at)
        if not 0 <= index < count:
            undecodable(f"an enum index beyond the {count} symbols at {where}")
        value = values[index]
        if isinstance(value, RecordError):
            raise RecordError(value.reason, str(value))
        return value, at

    return read


def converted(read_raw: Read, convert: Callable[[Any], Any]) -> Read:
    """What `read_raw` reads, through `convert`."""

    def read(body: bytes, at: int) -> tuple[Any, int]:
        raw, at = read_raw(body, at)
        return convert(raw), at

    return read


def refusing(reason: Reason, text: str) -> Read:
    """Raises a RecordError whenever it is reached."""

    def read(body: bytes, at: int) -> NoReturn:
        raise RecordError(reason, text)

    return read


def union_reader(branches: Sequence[Read], where: str) -> Read:
    """The branch that the index in front of the value names."""
    branches = tuple(branches)
    count = len(branches)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(body, at)
        if not 0 <= index < count:
            undecodable(f"a union index beyond the {count} branches at {where}")
        return branches[index](body, at)

    return read


def optional_reader(read_value: Read, null_index: int, where: str) -> Read:
    """A union of null and one other: the commonest one, and its index is a single byte."""
    null_byte, value_byte = (0, 2) if null_index == 0 else (2, 0)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        byte = body[at]
        if byte == value_byte:
            return read_value(body, at + 1)
        if byte != null_byte:
            undecodable(f"a union index beyond the 2 branches at {where}")
        return None, at + 1

    return read


def _block(body: bytes, at: int) -> tuple[int, int]:
    """The count in front of a block of items, and where the items start; 0 ends the array or map."""
    count, at = read_long(body, at)
    if count < 0:
        size, at = read_length(body, at)
        if size > len(body) - at:
            undecodable("a block beyond the end")
        count = -count
    return count, at


def array_reader(read_item: Read, *, takes_bytes: bool) -> Read:
    """Items in blocks. `takes_bytes` is False where an item may take no byte at all."""

    def read(body: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        append = items.append
        while True:
            count, at = _block(body, at)
            if count == 0:
                return items, at
            if count > (len(body) - at if takes_bytes else NOTHING_MAX - len(items)):
                undecodable("more items than the bytes can hold")
            for _ in range(count):
                item, at = read_item(body, at)
                append(item)

    return read


def map_reader(read_value: Read) -> Read:
    """Pairs in blocks; a key that comes again replaces the earlier one, as in Avro's own libraries."""

    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        pairs: dict[str, Any] = {}
        while True:
            count, at = _block(body, at)
            if count == 0:
                return pairs, at
            if count > len(body) - at:
                undecodable("more pairs than the bytes can hold")
            for _ in range(count):
                key, at = read_string(body, at)
                pairs[key], at = read_value(body, at)

    return read


def record_reader(reads: Sequence[Read], build: Callable[[list[Any]], Any]) -> Read:
    """The fields in their order, handed to `build` as one list."""
    reads = tuple(reads)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        append = values.append
        for read_field in reads:
            value, at = read_field(body, at)
            append(value)
        return build(values), at

    return read


def instance_reader(reads: Sequence[Read], make: Callable[..., Any]) -> Read:
    """The fields in their order, as the arguments of `make`: `record_reader` with a call less, for most records."""
    reads = tuple(reads)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        append = values.append
        for read_field in reads:
            value, at = read_field(body, at)
            append(value)
        return make(*values), at

    return read
