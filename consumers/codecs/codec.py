"""What every codec promises: bytes become a typed value or a `RecordError`, and a registry that is away only stalls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from ...inbox.clock import Clock, SystemClock
from ...inbox.errors import DependencyError, RecordError
from ...inbox.event import Record
from .source import SchemaKey

REGISTRY = "schema-registry"
"""The dependency's name in errors, health and metrics."""


@final
class Decoded:
    """A record's value, its type's full name ("" where it has none) and, for framed records, what names its schema."""

    __slots__ = ("schema_id", "type", "value")

    def __init__(self, value: Any, type: str, schema_id: SchemaKey | None = None) -> None:
        self.value = value
        self.type = type
        self.schema_id = schema_id

    def __repr__(self) -> str:
        return f"Decoded({self.type or '?'}, schema_id={self.schema_id})"


class CodecStalled(Exception):
    """The run ended early: the record at index `len(done)` cannot be told good or bad before `cause` is over."""

    def __init__(self, done: list[Decoded | RecordError], cause: DependencyError) -> None:
        self.done = done
        self.cause = cause
        super().__init__(str(cause))


class Codec(Protocol):
    """Bytes to values and back. Tombstones never get here: a record's value is bytes, empty ones included."""

    def types(self, types: Iterable[type]) -> None:
        """Declare the payload types of the application; records whose full name matches one become instances of it."""
        ...

    def decode(self, record: Record) -> Decoded:
        """Decode one record.

        Raises:
            RecordError: no retry can help it.
            DependencyError: the registry is away, or the schema is not known yet.
        """
        ...

    def decode_many(self, records: Sequence[Record]) -> list[Decoded | RecordError]:
        """Decode records in their order, one result for each.

        Raises:
            CodecStalled: the registry is away, or a schema is not known yet; it carries the results so far.
        """
        ...

    def encode(self, topic: str, value: object) -> bytes:
        """Encode a value for a topic.

        Raises:
            ValueError: the value cannot be written without a guess (a naive datetime, an ambiguous union, a missing or
                unknown field, a number out of range).
            DependencyError: the registry is away.
        """
        ...


class CodecSpec(Protocol):
    """A codec as an application declares it: no IO before `open`."""

    def open(self, settings: CodecSettings) -> Codec:
        """Make the codec ready for use. Raises ConfigurationError."""
        ...


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """What the machine's configuration says about codecs; the declarations in the code say the rest."""

    registry: Sequence[str] = ()
    """URLs of one Confluent-compatible registry, tried in order, or the path of one directory of `.avsc` files."""
    registry_client: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Further keys of confluent-kafka's `SchemaRegistryClient` (`basic.auth.user.info`, `ssl.ca.location`, ...)."""
    timeout_s: float = 3.0
    """For one request. The client thread waits for it, so it stays far below `max.poll.interval.ms`."""
    missing_tries: int = 5
    """A missing schema id is asked for this often before it counts as unknown: registries lag behind producers."""
    missing_grace_s: float = 30.0
    """... and at least this long."""
    missing_ttl_s: float = 60.0
    """How long an unknown schema id is remembered as unknown: one request for each id in this time."""
    ask_again_s: float = 1.0
    """The least time between two requests for a schema that could not be had."""
    schemas_max: int = 1_000
    """Schemas in memory. Topics have a handful of schemas each; beyond this the least recently added ones go."""
    warm_ids: Sequence[int] = ()
    """Schema ids to load at start, so that their records flow though the registry goes away before they come."""
    clock: Clock = field(default_factory=SystemClock)
