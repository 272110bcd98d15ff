"""A record's headers as bytes and back, exactly: order, repeats, null values, names that are no UTF-8. No IO.

Layout: a byte of format, a count, then for each header a name and a value; each behind its length, four bytes in
network order; the length -1 is a null value.
"""

from __future__ import annotations

import struct
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
    parts += [encode_header(header) for header in headers]
    return b"".join(parts)


def encode_header(header: Header) -> bytes:
    """One of them, as it stands among the others."""
    name, value = header
    named = _prefixed(name.encode("utf-8", "surrogatepass"))
    return named + (_LENGTH.pack(_NULL) if value is None else _prefixed(value))


def _prefixed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


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
    headers: list[Header] = []
    at = _COUNT.size
    for _ in range(count):
        name, at = _chunk(data, at)
        value, at = _chunk(data, at)
        if name is None:
            raise ValueError("a header has no name")
        headers.append((name.decode("utf-8", "surrogatepass"), value))
    return tuple(headers), at


def _chunk(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length == _NULL:
        return None, at
    if length < 0 or at + length > len(data):
        raise ValueError("headers are cut short")
    return data[at : at + length], at + length
