"""A schema that a header names by id or GUID: handled where the registry can be asked for it, else said by name."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from confluent_kafka import schema_registry as registry_module
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry import avro as avro_module
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support.avro import body, record, record_schema
from tests.support.scripted_registry import HTML, Answer, ScriptedRegistry, answer, running, schema_answer
from tidegate.consumers.codecs.avro import Avro, AvroCodec
from tidegate.consumers.codecs.codec import CodecSettings, CodecStalled, Decoded
from tidegate.consumers.codecs.framing import ID_HEADER
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import RecordError
from tidegate.inbox.event import Headers, Record
from tidegate.inbox.outcome import Reason

THING = record_schema("shop.Thing", {"n": "int"})
confluent_avro: Any = avro_module
header_serializer = cast(Any, registry_module).header_schema_id_serializer
"""Neither is typed."""

GUID = "89791762-2336-4186-9674-299b90a802e2"
ROUTE = f"/schemas/guids/{GUID}"
NO_ROUTE = answer({"error_code": 404, "message": "HTTP 404 Not Found"}, 404)


@dataclass(frozen=True)
class Thing:
    n: int


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with running() as registry:
        yield registry


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def opened(urls: Sequence[str], clock: ManualClock, timeout_s: float = 2, **more: Any) -> AvroCodec:
    return Avro(types=[Thing]).open(CodecSettings(registry=urls, timeout_s=timeout_s, clock=clock, **more))


@contextlib.contextmanager
def client_of(url: str) -> Generator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": url})
    yield client
    client.close()


def answered(codec: AvroCodec, clock: ManualClock, records: Sequence[Record]) -> Sequence[object]:
    """As a worker does: a registry that does not answer in time (a real one, on a busy machine) is asked again."""
    for _ in range(4):
        with contextlib.suppress(CodecStalled):
            return codec.decode_many(records)
        clock.advance(60)
    return codec.decode_many(records)


def by_guid(guid: str = GUID, value: bytes = b"\x0a") -> Record:
    """A record as the client's own code writes it: magic byte, sixteen bytes, in the header."""
    return record(value, ((ID_HEADER, SchemaId("AVRO", guid=guid).guid_to_bytes()),))


def test_what_the_clients_own_serializer_writes_is_read(registry: ScriptedRegistry, clock: ManualClock) -> None:
    """Bytes and header as Confluent's serializer makes them, the schema looked up by its GUID, once.

    Case: B28
    Parts: real (HTTP on loopback, Confluent's serializer), fake (the registry's answers)
    Red when: AvroCodec._plan asks by_id for every key
    """
    text = json.dumps(THING)
    registered = answer({"id": 7, "guid": GUID, "version": 1, "subject": "things-value", "schema": text})
    registry.standing = {"/subjects/things-value": registered, "/subjects/things-value/versions": registered}
    registry.standing |= {"/subjects/things-value/versions/latest": registered, ROUTE: schema_answer(THING, guid=GUID)}
    headers: list[tuple[str, str | bytes | None]] = []
    with client_of(registry.url) as client:
        serialize = confluent_avro.AvroSerializer(client, text, conf={"schema.id.serializer": header_serializer})
        written = serialize({"n": 5}, SerializationContext("things", MessageField.VALUE, headers))
    assert written == body(THING, {"n": 5})
    codec = opened([registry.url], clock)
    decoded = codec.decode_many([record(written, cast("Headers", tuple(headers)))] * 3)
    assert [thing.value for thing in decoded if isinstance(thing, Decoded)] == [Thing(5)] * 3
    assert registry.asked.count(ROUTE) == 1


def test_a_guid_that_the_registry_does_not_have_is_an_unknown_schema_after_all_patience(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    """Registries lag behind producers: the partition waits first, as for an id.

    Case: B28, B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry.by_guid lets _NotFoundError end as _no_guids does
    """
    codec = opened([registry.url], clock, missing_tries=2, missing_grace_s=1.0)
    with pytest.raises(CodecStalled):
        codec.decode_many([by_guid()])
    clock.advance(1.0)
    (error,) = codec.decode_many([by_guid()])
    assert isinstance(error, RecordError)
    assert error.reason is Reason.UNKNOWN_SCHEMA
    codec.decode_many([by_guid()])
    assert len(registry.asked) == 2


def test_a_registry_without_guids_says_so_at_once_and_is_asked_seldom(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    """It answers for ids and knows no such request for GUIDs: unsupported_framing, one question in a minute.

    Case: B28
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry.by_guid forgets to raise _no_guids_until_s
    """
    registry.standing = {ROUTE: NO_ROUTE}
    codec = opened([registry.url], clock, missing_ttl_s=60.0)
    errors = codec.decode_many([by_guid(), by_guid()])
    assert [str(error).partition(":")[0] for error in errors] == ["unsupported_framing"] * 2
    assert [path.partition("?")[0] for path in registry.asked] == [ROUTE, f"/schemas/ids/{2**31 - 1}"]
    clock.advance(60.0)
    registry.standing = {ROUTE: schema_answer(THING)}
    (decoded,) = codec.decode_many([by_guid()])
    assert isinstance(decoded, Decoded)


@pytest.mark.parametrize("route", [NO_ROUTE, Answer(404, b"<html>no such page</html>", "text/html"), HTML])
def test_a_proxy_that_knows_no_registry_is_a_registry_that_is_away(
    registry: ScriptedRegistry, clock: ManualClock, route: Answer
) -> None:
    """Nobody says in a registry's words that it is one: no record is dead for that.

    Case: B28, B29
    Parts: real (HTTP on loopback), fake (the proxy's answers)
    Red when: registry._check_alive does nothing
    """
    registry.standing = {ROUTE: route, f"/schemas/ids/{2**31 - 1}": Answer(404, b"<html/>", "text/html")}
    with pytest.raises(CodecStalled):
        opened([registry.url], clock).decode_many([by_guid()])


def test_a_real_registry_serves_ids_of_headers_and_says_that_it_has_no_guids(
    registry_url: str, clock: ManualClock
) -> None:
    """Apicurio has ids and no look-up by GUID: the one is handled, the other is an explicit unsupported_framing.

    Case: B28
    Parts: real (Apicurio over its Confluent-compatible API)
    Red when: registry._NO_ROUTE leaves out 404
    """
    subject = f"t{uuid.uuid4().hex}-value"
    with client_of(registry_url) as client:
        schema_id = client.register_schema(subject, Schema(json.dumps(THING), "AVRO"))
    told = SchemaId("AVRO", schema_id=schema_id).id_to_bytes()
    assert SchemaId("AVRO").from_bytes(io.BytesIO(told)).read() == b""
    codec = opened([registry_url], clock, timeout_s=20)
    handled, refused = answered(codec, clock, [record(b"\x0a", ((ID_HEADER, told),)), by_guid()])
    assert isinstance(handled, Decoded)
    assert handled.value == Thing(5)
    assert isinstance(refused, RecordError)
    assert (refused.reason, str(refused).partition(":")[0]) == (Reason.UNDECODABLE, "unsupported_framing")
