"""Identities that a repeat finds again: event ids, payload hashes, outbox ids. No IO; nothing here is random.

Every id is 16 bytes of BLAKE2b over length-prefixed parts, so that no two different lists of parts share an encoding
and an id of 6,000 characters takes as little room in an index as one of six.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

_LONG: Final = struct.Struct(">q").unpack

ID_BYTES = 16
"""128 bits: among 10^12 ids the chance of a single collision is below 10^-14."""


def length_prefixed(parts: tuple[bytes, ...]) -> bytes:
    """All parts in one, so that no two different lists of parts give the same."""
    return b"".join([len(part).to_bytes(4, "big") + part for part in parts])


def digest16(kind: bytes, *parts: bytes) -> bytes:
    """The 16-byte digest of `parts`, in a name space of its own for each `kind`."""
    return hashlib.blake2b(length_prefixed((kind, *parts)), digest_size=ID_BYTES).digest()


def event_prefix(topic: str, type_name: str, tenant: bytes) -> bytes:
    """The part of an event's identity that many events share: cache it and pass it to `event_id16`."""
    return length_prefixed((b"event", topic.encode(), type_name.encode(), tenant))


def event_id16(prefix: bytes, id_bytes: bytes) -> bytes:
    """The key under which an event is claimed: its declared id within (topic, type, tenant)."""
    return hashlib.blake2b(prefix + id_bytes, digest_size=ID_BYTES).digest()


def event_ids16(prefix: bytes, ids: Iterable[bytes]) -> list[bytes]:
    """`event_id16` of many ids with one prefix."""
    blake2b = hashlib.blake2b
    return [blake2b(prefix + id_bytes, digest_size=ID_BYTES).digest() for id_bytes in ids]


def payload_hashes8(values: Iterable[bytes]) -> list[int]:
    """`payload_hash8` of many values."""
    blake2b, long = hashlib.blake2b, _LONG
    return [long(blake2b(value, digest_size=8).digest())[0] for value in values]


def position_id16(topic: str, incarnation: int, partition: int, offset: int) -> bytes:
    """The identity of a record that is known by its position only."""
    place = b"%d/%d/%d" % (incarnation, partition, offset)
    return digest16(b"position", topic.encode(), place)


def attempt_id16(event_id: bytes, *replay: bytes) -> bytes:
    """What a forced or repaired run of an event is claimed by: `replay` says which run or which repair it is."""
    return digest16(b"attempt", event_id, *replay)


def payload_hash8(value: bytes | None) -> int:
    """A signed 64-bit hash of the value, telling a repeat from a conflict. A tombstone is not an empty value."""
    if value is None:
        return 0
    found: int = _LONG(hashlib.blake2b(value, digest_size=8).digest())[0]
    return found


def key_hash16(key: bytes) -> bytes:
    """The fixed-size stand-in for a record key in an index."""
    return hashlib.blake2b(_KEY + len(key).to_bytes(4, "big") + key, digest_size=ID_BYTES).digest()


_KEY: Final = length_prefixed((b"key",))


def outbox_id16(handler: str, operation: str, topic: str, key: bytes | None, name: str, ordinal: int) -> bytes:
    """The id of an outgoing record, the same after any repeat of what made it."""
    key_part = b"\x00" if key is None else b"\x01" + key
    return digest16(
        b"outbox", handler.encode(), operation.encode(), topic.encode(), key_part, name.encode(), b"%d" % ordinal
    )
