"""Where an event's identity and scope come from: rules that are declared, never guessed. No IO."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FromHeader:
    """The value of the header `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class FromField:
    """A field of the decoded value; `name` may be a dotted path."""

    name: str


@dataclass(frozen=True, slots=True)
class FromCloudEvent:
    """CloudEvents `source` and `id`, from the binary content mode's `ce_source` and `ce_id` headers."""


@dataclass(frozen=True, slots=True)
class FromPosition:
    """Topic, incarnation, partition and offset. A producer's duplicates are not caught, as `tidegate check` says."""


EventIdRule = FromHeader | FromField | FromCloudEvent | FromPosition


def header(name: str) -> FromHeader:
    """Take it from the header `name`."""
    return FromHeader(name)


def field(name: str) -> FromField:
    """Take it from the field `name` of the decoded value (a dotted path goes deeper)."""
    return FromField(name)


def cloudevents() -> FromCloudEvent:
    """Take it from CloudEvents' `source` and `id`."""
    return FromCloudEvent()


def position() -> FromPosition:
    """Take it from the record's position in Kafka."""
    return FromPosition()


@dataclass(frozen=True, slots=True)
class Scope:
    """Which headers carry tenant and brand. Naming a header here *is* the declaration that it is trusted."""

    tenant: FromHeader | None = None
    brand: FromHeader | None = None
