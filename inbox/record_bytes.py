"""A record's headers as bytes and back, exactly: order, repeats, null values, names that are no UTF-8. No IO.

Layout: a byte of format, a count, then for each header a name and a value; each behind its length, four bytes in
network order; the length -1 is a null value.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from .event import Header, Headers

_FORMAT: Final = 1
_NULL: Final = -1
_COUNT: Final = struct.Struct(">BI")
_LENGTH: Final = struct.Struct(">i")

EMPTY: Final = _COUNT.pack(_FORMAT, 0)
"""No headers."""


def encode_headers(headers: Headers) -> bytes:
    """The headers' bytes. A name may hold any str, lone surrogates included."""
    parts = [_COUNT.pack(_FORMAT, len(headers))]
    for name, value in headers:
        if value is None:
            parts += (_named(name), _NOTHING)
        elif (length := len(value)) < _SHORT:
            parts += (_named(name), _LENGTHS[length], value)
        else:
            parts += (_named(name), _LENGTH.pack(length), value)
    return b"".join(parts)


def encode_header(header: Header) -> bytes:
    """One of them, as it stands among the others."""
    return encode_headers((header,))[_COUNT.size :]


NAMES_MAX: Final = 1_000
"""Names that are remembered as bytes: each letter has the same forty."""


@lru_cache(NAMES_MAX)
def _named(name: str) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


_NOTHING: Final = _LENGTH.pack(_NULL)

_SHORT: Final = 256
"""Nearly every value is shorter: the bytes of such lengths are looked up, which takes half of what packing takes."""

_LENGTHS: Final = tuple(_LENGTH.pack(length) for length in range(_SHORT))


def decode_headers(data: bytes) -> Headers:
    """The headers that `encode_headers` was given.

    Raises:
        ValueError: `data` is not whole, or of a later format.
    """
    try:
        format_, count = _COUNT.unpack_from(data)
        if format_ != _FORMAT:
            raise ValueError(f"headers are in format {format_}, this release reads {_FORMAT}")
        headers, end = _decode(data, count)
    except struct.error as error:
        raise ValueError("headers are cut short") from error
    if end != len(data):
        raise ValueError("headers are not whole")
    return headers


def _decode(data: bytes, count: int) -> tuple[Headers, int]:
    """Written out in one piece: a letter has forty headers, and each of them would be two calls."""
    headers: list[Header] = []
    at, whole, length_of = _COUNT.size, len(data), _LENGTH.unpack_from
    for _ in range(count):
        (length,) = length_of(data, at)
        start, at = at + _LENGTH.size, at + _LENGTH.size + length
        if length < 0:
            raise ValueError("a header has no name")
        (length,) = length_of(data, at)
        name = data[start:at].decode("utf-8", "surrogatepass")
        start = at = at + _LENGTH.size
        if length == _NULL:
            headers.append((name, None))
            continue
        at += length
        if length < 0 or at > whole:
            raise ValueError("headers are cut short")
        headers.append((name, data[start:at]))
    return tuple(headers), at
