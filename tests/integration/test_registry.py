"""The schema registry: away is never unknown, unknown is asked for once in a while, and what is known keeps flowing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from tests.support.avro import body, framed, record_schema, refusal_of, value_of
from tests.support.scripted_registry import (
    HTML,
    NOT_FOUND,
    RESET,
    SILENCE,
    Answer,
    ScriptedRegistry,
    answer,
    running,
    schema_answer,
)
from tidegate.consumers.codecs.avro import Avro, AvroCodec
from tidegate.consumers.codecs.codec import CodecSettings, CodecStalled, Decoded
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import ConfigurationError, DependencyError, RecordError
from tidegate.inbox.outcome import Reason

THING = record_schema("shop.Thing", {"n": "int"})
GOOD = schema_answer(THING)


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


def opened(urls: Sequence[str], clock: ManualClock, **more: Any) -> AvroCodec:
    return Avro(types=[Thing]).open(CodecSettings(registry=urls, timeout_s=0.5, clock=clock, **more))


def stalls(codec: AvroCodec, schema_id: int = 7) -> str:
    """Assert that a record of this schema stalls, after the good ones before it; the cause in words."""
    with pytest.raises(CodecStalled) as stalled:
        codec.decode_many([framed(schema_id, b"\x0a"), framed(schema_id, b"\x0a")])
    assert stalled.value.done == []
    assert isinstance(stalled.value.cause, DependencyError)
    assert stalled.value.cause.dependency == "schema-registry"
    return str(stalled.value)


@pytest.mark.parametrize(
    "failure",
    [
        answer({"error_code": 50001, "message": "store"}, 500),
        RESET,
        HTML,
        SILENCE,
        answer({"error_code": 429, "message": "slow down"}, 429),
        answer({"error_code": 40101, "message": "Unauthorized"}, 401),
        answer({"error_code": 40301, "message": "Forbidden"}, 403),
        Answer(404, b"<html>no such page</html>", "text/html"),
        answer({"message": "no Route matched with those values"}, 404),
        Answer(404, b""),
        Answer(200, b"<html>log in, please</html>", "text/html"),
        answer([1, 2]),
        answer({"unexpected": True}),
        answer({"schema": 5}),
        Answer(200, b""),
    ],
    ids=str,
)
def test_a_registry_that_is_away_pauses_and_dead_letters_nothing(
    registry: ScriptedRegistry, clock: ManualClock, failure: Answer | str
) -> None:
    """No connection, silence, 5xx, 429, 401, a proxy's 404, HTML: all of it is the registry away, never a bad record.

    Case: B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry._ask takes any 404 for an answer about the id, or lets ValueError through
    """
    registry.script = [failure]
    registry.standing["/schemas/ids/7"] = GOOD
    codec = opened([registry.url], clock)
    assert "cannot be asked" in stalls(codec)
    clock.advance(1)
    assert value_of(codec, 7, b"\x0a") == Thing(5)


def test_an_outage_with_several_faces_ends_with_every_record_decoded(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    """500, then a reset, then a proxy's HTML, then the schema: nothing is dead, nothing is skipped.

    Case: B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry._AWAY lacks httpx.HTTPError
    """
    registry.script = [answer({"error_code": 50001}, 500), RESET, HTML, GOOD]
    codec = opened([registry.url], clock)
    for _ in range(3):
        stalls(codec)
        clock.advance(1)
    results = codec.decode_many([framed(7, b"\x02"), framed(7, b"\x04")])
    assert [result.value for result in results if isinstance(result, Decoded)] == [Thing(1), Thing(2)]
    assert len(registry.asked) == 4


def test_an_id_that_turns_up_within_the_grace_was_never_unknown(registry: ScriptedRegistry, clock: ManualClock) -> None:
    """404 five times and then the schema, within the grace period: no record is dead.

    Case: B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry._not_found counts the tries only, and forgets the grace period
    """
    registry.script = [*[NOT_FOUND] * 5, GOOD]
    codec = opened([registry.url], clock, missing_tries=5, missing_grace_s=30)
    for _ in range(5):
        assert "does not have schema 7 yet" in stalls(codec)
        clock.advance(5)
    assert value_of(codec, 7, b"\x0a") == Thing(5)


def test_an_id_that_never_turns_up_is_unknown_and_asked_for_once_in_a_while(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    """404 for ever: after tries and grace each record is dead, with one request for the id in each ttl.

    Case: B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry._check_missing does not look at ask_at_s (a request for each record)
    """
    codec = opened([registry.url], clock, missing_tries=3, missing_grace_s=12, missing_ttl_s=60)
    for _ in range(3):
        stalls(codec)
        stalls(codec)
        clock.advance(5)
    asked_before = len(registry.asked)
    for _ in range(4):
        results = codec.decode_many([framed(7, b"\x0a")] * 50)
        assert {str(result) for result in results} == {"the schema registry has no schema 7"}
        assert all(isinstance(result, RecordError) and result.reason is Reason.UNKNOWN_SCHEMA for result in results)
        clock.advance(59.9)
        codec.decode_many([framed(7, b"\x0a")])
        clock.advance(0.1)
    assert len(registry.asked) - asked_before == 4
    assert asked_before == 3


def test_a_schema_that_is_registered_later_is_found_after_the_ttl(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    codec = opened([registry.url], clock, missing_tries=1, missing_grace_s=0, missing_ttl_s=60)
    assert refusal_of(codec, 7, b"\x0a").reason is Reason.UNKNOWN_SCHEMA
    registry.standing["/schemas/ids/7"] = GOOD
    assert refusal_of(codec, 7, b"\x0a").reason is Reason.UNKNOWN_SCHEMA
    clock.advance(60)
    assert value_of(codec, 7, b"\x0a") == Thing(5)


def test_known_ids_keep_flowing_through_an_outage(registry: ScriptedRegistry, clock: ManualClock) -> None:
    """What was loaded at start needs no registry; the run ends where an id comes that is not known.

    Case: B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: Avro.open leaves out the warm start
    """
    registry.standing["/schemas/ids/7"] = GOOD
    codec = opened([registry.url], clock, warm_ids=[7, 8])
    registry.standing.clear()
    registry.script = [HTML] * 10
    clock.advance(100)
    with pytest.raises(CodecStalled) as stalled:
        codec.decode_many([framed(7, b"\x02"), framed(7, b"\x02\x02"), framed(9, b""), framed(7, b"\x02")])
    first, second = stalled.value.done
    assert isinstance(first, Decoded)
    assert isinstance(second, RecordError)


def test_a_failing_registry_is_not_hammered(registry: ScriptedRegistry, clock: ManualClock) -> None:
    registry.script = [HTML] * 10
    codec = opened([registry.url], clock)
    for schema_id in (7, 7, 8, 9):
        stalls(codec, schema_id)
    assert len(registry.asked) == 1
    clock.advance(1)
    stalls(codec)
    assert len(registry.asked) == 2


def test_several_urls_are_tried_and_the_one_that_answers_is_kept(clock: ManualClock) -> None:
    """The second URL answers where the first does not, and is asked first from then on.

    Case: B29
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry._ask looks at the first of the clients only
    """
    with running() as broken, running() as sound:
        broken.script = [HTML] * 10
        sound.standing = {"/schemas/ids/7": GOOD, "/schemas/ids/8": GOOD}
        codec = opened([f"{broken.url},{sound.url}"], clock)
        assert value_of(codec, 7, b"\x0a") == Thing(5)
        assert value_of(codec, 8, b"\x0a") == Thing(5)
        assert (len(broken.asked), len(sound.asked)) == (1, 2)


def test_a_registry_that_nobody_listens_for_is_away(clock: ManualClock) -> None:
    with running() as registry:
        gone = registry.url
    assert "cannot be asked" in stalls(opened([gone], clock))


def test_references_are_followed_once_and_a_missing_one_is_no_records_fault(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    """A diamond of references costs one request for each schema; one that is gone stalls.

    Case: B27
    Parts: real (HTTP on loopback), fake (the registry's answers)
    Red when: registry._follow does not remember what it has seen
    """
    address = record_schema("shop.Address", {"street": "string"})
    order = record_schema("shop.Order", {"to": "shop.Address"})
    invoice = record_schema("shop.Invoice", {"to": "shop.Address"})
    root = record_schema("shop.Root", {"order": "shop.Order", "invoice": "shop.Invoice"})

    def to(name: str) -> dict[str, Any]:
        return {"name": f"shop.{name}", "subject": name.lower(), "version": 1}

    registry.standing = {
        "/schemas/ids/1": schema_answer(root, [to("Order"), to("Invoice")]),
        "/subjects/order/versions/1": schema_answer(order, [to("Address")]),
        "/subjects/invoice/versions/1": schema_answer(invoice, [to("Address")]),
        "/subjects/address/versions/1": schema_answer(address),
        "/schemas/ids/2": schema_answer(root, [to("Gone")]),
    }
    codec = opened([registry.url], clock)
    assert value_of(codec, 1, b"\x02a\x02b") == {"order": {"to": {"street": "a"}}, "invoice": {"to": {"street": "b"}}}
    assert len(registry.asked) == 4
    assert "does not have version 1 of gone" in stalls(codec, 2)


def test_a_schema_of_another_kind_is_incompatible(registry: ScriptedRegistry, clock: ManualClock) -> None:
    registry.standing["/schemas/ids/7"] = schema_answer({}, schemaType="JSON")
    error = refusal_of(opened([registry.url], clock), 7, b"{}")
    assert error.reason is Reason.SCHEMA_INCOMPATIBLE
    assert "of type JSON" in str(error)


def test_what_is_written_goes_by_the_topics_subject(registry: ScriptedRegistry, clock: ManualClock) -> None:
    codec = opened([registry.url], clock)
    with pytest.raises(ValueError, match="no schema under the subject shop"):
        codec.encode("shop.things", Thing(5))
    registry.standing["/subjects/shop.things-value/versions/latest"] = schema_answer(THING, id=7, version=1)
    assert codec.encode("shop.things", Thing(5)) == b"\0\0\0\0\7\x0a"
    registry.script = [HTML]
    with pytest.raises(DependencyError):
        codec.encode("shop.others", Thing(5))


def test_wrong_settings_are_configuration_errors(clock: ManualClock) -> None:
    for urls, more in (
        ([], {}),
        (["/no/such/directory"], {}),
        (["http://a", "/tmp"], {}),
        (["http://a"], {"registry_client": {"no.such.key": "x"}}),
        (["http://a"], {"registry_client": {"basic.auth.user.info": "secret-without-colon"}}),
    ):
        with pytest.raises(ConfigurationError) as error:
            opened(urls, clock, **more)
        assert "secret" not in str(error.value)


# ------------------------------------------------------------------------------------------- a real registry


def test_a_real_registry_serves_what_was_registered(registry_url: str, clock: ManualClock) -> None:
    """Schemas with references, an unknown id, and writing by subject, on a real registry.

    Case: B27, B29
    Parts: real (Apicurio over its Confluent-compatible API)
    Red when: registry._NOT_FOUND_CODES leaves out 40403, or registry._with_references follows nothing
    """
    name = f"t{uuid.uuid4().hex}"
    client = SchemaRegistryClient({"url": registry_url})
    part = record_schema(f"{name}.Part", {"x": "int"})
    client.register_schema(f"{name}-part", Schema(json.dumps(part), "AVRO"))
    whole = record_schema(f"{name}.Whole", {"one": f"{name}.Part", "two": f"{name}.Part"})
    reference = SchemaReference(f"{name}.Part", f"{name}-part", 1)
    schema_id = client.register_schema(f"{name}-value", Schema(json.dumps(whole), "AVRO", [reference]))
    client.close()

    codec = opened([registry_url], clock, missing_tries=2, missing_grace_s=1)
    value = {"one": {"x": 1}, "two": {"x": 2}}
    content = body(whole, value, [part])
    assert value_of(codec, schema_id, content) == value
    assert codec.encode(name, (f"{name}.Whole", value)) == framed(schema_id, content).value
    assert "yet (asked 1 times)" in stalls(codec, 2_000_000_000)
    clock.advance(1)
    assert refusal_of(codec, 2_000_000_000, b"").reason is Reason.UNKNOWN_SCHEMA


def test_a_declared_schema_is_found_under_the_topics_subject(registry_url: str, clock: ManualClock) -> None:
    name = f"t{uuid.uuid4().hex}"
    first = record_schema(f"{name}.Thing", {"n": "int"})
    second = {**first, "fields": [*first["fields"], {"name": "note", "type": "string", "default": ""}]}
    client = SchemaRegistryClient({"url": registry_url})
    ids = [client.register_schema(f"{name}-value", Schema(json.dumps(schema), "AVRO")) for schema in (first, second)]
    client.close()
    codec = Avro(schemas=[first]).open(CodecSettings(registry=[registry_url], clock=clock))
    assert codec.encode(name, (f"{name}.Thing", {"n": 5})) == framed(ids[0], b"\x0a").value
    latest = Avro().open(CodecSettings(registry=[registry_url], clock=clock))
    assert latest.encode(name, (f"{name}.Thing", {"n": 5})) == framed(ids[1], b"\x0a\x00").value
    with pytest.raises(ValueError, match="not the declared schema"):
        Avro(schemas=[record_schema(f"{name}.Thing", {"m": "int"})]).open(
            CodecSettings(registry=[registry_url], clock=clock)
        ).encode(name, (f"{name}.Thing", {"m": 5}))
