"""Avro in the Confluent wire format: framed bytes become values, each schema worked out once, no record decoded twice.

A schema that cannot be used (not Avro, contradicts itself, refers to what nobody defines) is nobody's record's fault:
the partition waits as it does for a registry that is away. A schema that a declared reader or class cannot take is
`schema_incompatible`, for each record of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from ...inbox.errors import ConfigurationError, DependencyError, RecordError
from ...inbox.event import Record
from ...inbox.outcome import Reason
from . import framing
from .codec import REGISTRY, CodecSettings, CodecStalled, Decoded
from .directory import SchemaDirectory
from .mapping import Classes, full_name_of, is_instance, named_pair, type_name
from .plans import Plan, plan
from .schemas import Schema, SchemaError, name_of, parse, pick_name
from .source import SchemaKey, SchemaSource, SchemaText
from .wire import FAULTS
from .writing import Write, check_defaults, writer_of


@final
class Avro:
    """Declares Avro in the Confluent wire format.

    Args:
        registry: URLs of a registry or the path of a directory of `.avsc` files; without it the settings say where.
        types: payload classes besides those that handlers name.
        schemas: the application's own schemas (JSON text, or the parsed JSON), each a record's. What is read is
            resolved to them, and what is written is written with them.
    """

    def __init__(
        self,
        registry: str | Sequence[str] | None = None,
        types: Iterable[type] = (),
        schemas: Iterable[str | Mapping[str, Any]] = (),
    ) -> None:
        self._registry = (registry,) if isinstance(registry, str) else registry
        self._types = tuple(types)
        self._schemas = tuple(text if isinstance(text, str) else json.dumps(text) for text in schemas)

    def open(self, settings: CodecSettings) -> AvroCodec:
        """See `CodecSpec.open`."""
        declared = _declared(self._schemas)
        source = _source(self._registry or settings.registry, settings)
        codec = AvroCodec(source, declared, settings)
        codec.types(self._types)
        codec.warm(settings.warm_ids)
        return codec


def _declared(schemas: tuple[str, ...]) -> dict[str, tuple[str, Schema]]:
    """The application's schemas by the full name of their record; each may use those before it."""
    declared: dict[str, tuple[str, Schema]] = {}
    for text in schemas:
        try:
            schema = parse(text, [earlier for earlier, _ in declared.values()])
            check_defaults(schema)
        except SchemaError as error:
            raise ConfigurationError.of(
                "codec", f"a schema of Avro(schemas=...): {error}", "correct the schema"
            ) from None
        name = name_of(schema.resolve(schema.root))
        if name not in schema.names:
            raise ConfigurationError.of(
                "codec", "a schema of Avro(schemas=...) has no name", "declare records, one by one"
            )
        declared[name] = (text, schema)
    return declared


def _source(where: Sequence[str], settings: CodecSettings) -> SchemaSource:
    urls = [url.strip() for item in where for url in item.split(",") if url.strip()]
    if not urls:
        raise ConfigurationError.of(
            "registry.url",
            "Avro needs schemas, and nothing says where they are",
            "set TIDEGATE_REGISTRY_URL to the registry's URL or to a directory of .avsc files",
        )
    if all(url.startswith(("http://", "https://")) for url in urls):
        # Here, not above: the HTTP client is as long in importing as all else here, and a directory needs none of it.
        from .registry import SchemaRegistry

        return SchemaRegistry(urls, settings)
    if len(urls) > 1:
        raise ConfigurationError.of(
            "registry.url", "more than one place, and not all are URLs", "name URLs, or one directory"
        )
    return SchemaDirectory(Path(urls[0].removeprefix("file://")), settings.clock)


@final
class AvroCodec:
    """The codec that `Avro` declares. Safe to use from several threads: what it caches never changes."""

    def __init__(
        self, source: SchemaSource, declared: Mapping[str, tuple[str, Schema]], settings: CodecSettings
    ) -> None:
        self._source = source
        self._declared = declared
        self._readers = {name: schema for name, (_, schema) in declared.items()}
        self._settings = settings
        self._classes = Classes()
        self._plans: dict[bytes, Plan] = {}
        self._unusable: dict[SchemaKey, tuple[float, DependencyError]] = {}
        self._writes: dict[tuple[str, str], tuple[bytes, Write, float]] = {}

    def types(self, types: Iterable[type]) -> None:
        """See `Codec.types`."""
        self._classes = Classes([*self._classes, *types])
        self._plans.clear()

    def warm(self, schema_ids: Iterable[int]) -> None:
        """Load schemas ahead of their first record. One that cannot be had now is asked for again when it is needed."""
        for schema_id in schema_ids:
            try:
                self._plan(framing.prefix(schema_id))
            except (RecordError, DependencyError):
                continue

    def decode(self, record: Record) -> Decoded:
        """See `Codec.decode`."""
        value = record.value or b""
        try:
            told = framing.header_key(record)
            if told is not None:
                return _decoded(self._plan(told), value, 0)
            known = self._plans.get(value[: framing.PREFIX_BYTES]) or self._plan(framing.prefix_key(value))
            return _decoded(known, value, framing.PREFIX_BYTES)
        except FAULTS as error:
            raise _malformed(error, value) from None

    def decode_many(self, records: Sequence[Record]) -> list[Decoded | RecordError]:
        """See `Codec.decode_many`."""
        done: list[Decoded | RecordError] = []
        plans, prefix_bytes = self._plans, framing.PREFIX_BYTES
        for record in records:
            # The hot loop of the product: what `decode` does, with no call that most records can do without.
            value = record.value or b""
            known = plans.get(value[:prefix_bytes])
            try:
                if known is None or known.branches or framing.header_key(record) is not None:
                    done.append(self.decode(record))
                    continue
                content, end = known.read(value, prefix_bytes)
                if end != len(value):
                    raise _wrong_length(known, value, end)
                done.append(Decoded(content, known.type, known.schema_id))
            except RecordError as error:
                done.append(error)
            except FAULTS as error:
                done.append(_malformed(error, value))
            except DependencyError as cause:
                raise CodecStalled(done, cause) from cause
        return done

    def encode(self, topic: str, value: object) -> bytes:
        """See `Codec.encode`. A dict comes as (full name, dict), so that nothing is guessed."""
        name, content = _named(value)
        prefix, write = self._writer(topic, name)
        return prefix + write(content)

    def written_with(self, record: Record) -> SchemaText:
        """The schema that a framed value was written with, as it was registered. See `SchemaSource` for errors."""
        told = framing.header_key(record)
        return self._text(framing.schema_key(framing.prefix_key(record.value or b"") if told is None else told))

    def _text(self, key: SchemaKey) -> SchemaText:
        return self._source.by_id(key) if isinstance(key, int) else self._source.by_guid(key)

    def _plan(self, key: bytes) -> Plan:
        """The plan for the schema that a prefix or a header names, from memory or from the source.

        See `framing.schema_key` and `SchemaSource` for what it raises.
        """
        known = self._plans.get(key)
        if known is not None:
            return known
        schema_id = framing.schema_key(key)
        self._check_usable(schema_id)
        text = self._text(schema_id)
        if text.kind != "AVRO":
            raise RecordError(Reason.SCHEMA_INCOMPATIBLE, f"schema {schema_id} is of type {text.kind}, not AVRO")
        made = plan(schema_id, self._parsed(schema_id, text), self._readers, self._classes)
        _bounded(self._plans, self._settings.schemas_max)
        self._plans[key] = made
        return made

    def _parsed(self, schema_id: SchemaKey, text: SchemaText) -> Schema:
        try:
            return parse(text.text, text.references)
        except SchemaError as error:
            unusable = DependencyError(REGISTRY, f"schema {schema_id} cannot be used: {error}")
            _bounded(self._unusable, self._settings.schemas_max)
            self._unusable[schema_id] = (self._settings.clock.monotonic_s() + self._settings.missing_ttl_s, unusable)
            raise unusable from None

    def _check_usable(self, schema_id: SchemaKey) -> None:
        until_s, error = self._unusable.get(schema_id, (0.0, None))
        if error is not None and self._settings.clock.monotonic_s() < until_s:
            raise error

    def _writer(self, topic: str, name: str) -> tuple[bytes, Write]:
        now_s = self._settings.clock.monotonic_s()
        known = self._writes.get((topic, name))
        if known is not None and now_s < known[2]:
            return known[0], known[1]
        declared = self._declared.get(pick_name(self._declared, name) or "")
        schema_id, text = self._source.for_writing(topic, name, declared[0] if declared else None)
        write = writer_of(self._parsed(schema_id, text), name)
        _bounded(self._writes, self._settings.schemas_max)
        self._writes[(topic, name)] = (framing.prefix(schema_id), write, now_s + self._settings.missing_ttl_s)
        return framing.prefix(schema_id), write


def _decoded(known: Plan, value: bytes, at: int) -> Decoded:
    if known.branches:
        index: int
        index, at = known.read(value, at)
        if not 0 <= index < len(known.branches):
            raise RecordError(Reason.UNDECODABLE, f"a union index beyond the {len(known.branches)} branches")
        known = known.branches[index]
    content, at = known.read(value, at)
    if at != len(value):
        raise _wrong_length(known, value, at)
    return Decoded(content, known.type, known.schema_id)


def _wrong_length(known: Plan, value: bytes, end: int) -> RecordError:
    return RecordError(
        Reason.UNDECODABLE,
        f"by its schema {known.schema_id} the value ends at byte {end}, and it has {len(value)} bytes",
    )


def _malformed(error: Exception, value: bytes) -> RecordError:
    if isinstance(error, RecursionError):
        return RecordError(Reason.UNDECODABLE, f"nested too deeply ({len(value)} bytes)")
    if isinstance(error, UnicodeDecodeError):
        return RecordError(Reason.UNDECODABLE, f"a string is not UTF-8 ({len(value)} bytes)")
    return RecordError(Reason.UNDECODABLE, f"the value ends in the middle of a field ({len(value)} bytes)")


def _named(value: object) -> tuple[str, Any]:
    """The full name of a value, and the value."""
    named = named_pair(value)
    if named is not None:
        return named
    if not is_instance(value):
        raise ValueError(f"a {type_name(value)} has no full name: give (full name, dict), or an instance of a class")
    return full_name_of(value.__class__), value


def _bounded(cache: dict[Any, Any], size_max: int) -> None:
    """Make room for one more: the oldest goes first."""
    while len(cache) >= size_max:
        cache.pop(next(iter(cache)), None)
