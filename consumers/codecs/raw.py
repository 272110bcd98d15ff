"""The raw codec: a record's bytes are its value. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from ...inbox.errors import RecordError
from ...inbox.event import Record
from .codec import CodecSettings, Decoded


@final
class Raw:
    """Declares that values stay bytes. All of them have the type `type`, empty by default."""

    def __init__(self, type: str = "") -> None:
        self._type = type

    def open(self, settings: CodecSettings) -> RawCodec:
        """See `CodecSpec.open`."""
        return RawCodec(self._type)


@final
class RawCodec:
    """The codec that `Raw` declares."""

    def __init__(self, type: str) -> None:
        self._type = type

    def types(self, types: Iterable[type]) -> None:
        """Nothing is made into an instance here."""

    def decode(self, record: Record) -> Decoded:
        """The bytes as they came."""
        return Decoded(record.value or b"", self._type)

    def decode_many(self, records: Sequence[Record]) -> list[Decoded | RecordError]:
        """The bytes as they came, for each record."""
        return [self.decode(record) for record in records]

    def encode(self, topic: str, value: object) -> bytes:
        """The bytes as they are given. Raises ValueError for anything else."""
        if not isinstance(value, bytes):
            raise ValueError(f"the raw codec writes bytes, not {type(value).__name__}")
        return value
