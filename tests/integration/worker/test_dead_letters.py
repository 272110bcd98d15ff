"""Dead letters on the real broker, for each reason that there is: the record byte for byte, and every header."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.services.topics import Topic
from tests.support import avro
from tests.support.cli import tidegate
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import Avro, Context, Record, RecordError, RetryPolicy, Scope, TransientError, header
from tidegate.dlq.letter_headers import DERIVED_HEADERS, LETTER_HEADERS, SHARE_GROUP_HEADERS, SHARE_GROUP_PREFIX
from tidegate.inbox.outcome import Reason

QUICK = RetryPolicy(attempts_max=2, base_s=0.001, cap_s=0.002)
WITHOUT_EXCEPTION = {
    "undecodable",
    "unknown_schema",
    "schema_incompatible",
    "tombstone",
    "unmatched",
    "no_key",
    "conflict",
}
OF_THE_HANDLER = {"tombstone", "rejected", "exhausted", "timeout", "conflict"}
SOMETIMES = {"traceparent", "tenant", "brand", "schema-id", "claim", "claim-bytes", "claim-left-out"}
OWN = (("trace", b"\xff\x00"), ("trace", None), ("", b""), ("tidegate-reason", b"pretended"), ("who", b"acme"))
"""Headers that are not text, empty, repeated, null; one that pretends to be ours; and one that names the tenant."""


async def act(command: Do, ctx: Context) -> None:
    """As the event says."""
    match command.says.get("do"):
        case "reject":
            raise ValueError("not for this customer")
        case "exhaust":
            raise TransientError("never")
        case "hang":
            await asyncio.Event().wait()
        case _:
            await write(command, ctx)


async def test_each_reason_has_its_letter_byte_for_byte(stage: Stage, topic: Topic) -> None:
    """Key, value and headers are the record's own whatever they hold; what we add says all that the format promises.

    Case: B33
    Parts: real (Kafka, PostgreSQL)
    Red when: letter.py `_written` puts `letter.value or b""` into the letter
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name, unmatched="dead", require_key=True, scope=Scope(tenant=header("who")))
    at_desk(app, act, retry=QUICK, deadline_s=0.2)
    dead = letters(app, topic)
    binary = b"\xff\x00\x80k"
    sent = {
        "undecodable": Sent("1", b"\x00{", key=binary, headers=OWN),
        "tombstone": Sent("2", None, key=binary, headers=OWN, type=None),
        "unmatched": Sent("3", {"n": 1}, key=b"", headers=OWN, type="Other"),
        "no_key": Sent("4", {"n": 1}, key=None, headers=OWN),
        "rejected": Sent("5", {"do": "reject"}, key=binary, headers=OWN),
        "exhausted": Sent("6", {"do": "exhaust"}, key=binary, headers=OWN),
        "timeout": Sent("7", {"do": "hang"}, key=binary, headers=OWN),
    }
    first = Sent("8", {"n": 1}, key=binary, headers=OWN)
    sent["conflict"] = Sent("8", {"n": 2}, key=binary, headers=OWN)
    records = [*list(sent.values())[:-1], first, sent["conflict"]]
    await stage.send(name, *records)
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=len(sent))
    source = {record.offset: record for record in await stage.read(name, len(records))}
    found = [one_letter(letter, source, worker.consumer) for letter in await stage.read(dead, len(sent))]
    assert sorted(found) == sorted(sent)


def one_letter(letter: Record, source: dict[int, Record], consumer: str) -> str:
    """Check one letter against its record; its reason."""
    headers = dict(letter.headers)
    told = {name: (value or b"").decode() for name, value in letter.headers if name.startswith(("tidegate-", "__dlq."))}
    record = source[int(told["tidegate-origin-offset"])]
    assert (letter.key, letter.value) == (record.key, record.value)
    kept = tuple((n, v) for n, v in record.headers if n != "tidegate-reason")
    assert letter.headers[: len(kept)] == kept
    assert headers["tidegate-consumer"] == consumer.encode()
    reason = told["tidegate-reason"]
    left_out = {"tidegate-" + suffix for suffix in SOMETIMES - {"tenant"}}
    if reason in WITHOUT_EXCEPTION:
        left_out |= {"tidegate-exception-type", "tidegate-stack-digest"}
    if b"acme" not in {value for _, value in record.headers}:
        left_out.add("tidegate-tenant")
    else:
        assert told["tidegate-tenant"] == "acme"
    promised = {h.name for h in LETTER_HEADERS} | {name for name, _ in DERIVED_HEADERS}
    promised |= {SHARE_GROUP_PREFIX + suffix for suffix, _ in SHARE_GROUP_HEADERS}
    assert set(told) >= promised - left_out, promised - left_out - set(told)
    assert (told["tidegate-origin-topic"], told["tidegate-origin-partition"]) == (record.topic, "0")
    assert told["tidegate-origin-timestamp"] == str(record.timestamp_ms)
    assert told["tidegate-attempts"] == ("2" if reason in {"exhausted", "timeout"} else "1")
    assert told["tidegate-handler"] == ("do" if reason in OF_THE_HANDLER else "")
    assert json.loads(told["tidegate-replay"])["reason"] == reason
    return reason


ORDER = avro.record_schema("Order", {"id": "string", "n": "int"})
OTHER = avro.record_schema("Order", {"id": "string", "n": {"type": "map", "values": "int"}})


async def test_schemas_that_are_unknown_or_do_not_fit_have_their_letters(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """The id that the frame names stands in a header; the frame itself stays as it is.

    Case: B33
    Parts: real (Kafka, PostgreSQL), a directory of schemas
    Red when: run.py `schema_id_of` returns `lambda _: None` for every codec
    """
    avro.save(tmp_path, {1: ORDER, 2: OTHER})
    name = topic(partitions=1)
    app = reader(name, codec=Avro(str(tmp_path), schemas=[ORDER]))
    (consumer,) = app.consumers.values()
    handled: list[str] = []

    @app.handler(Do)
    async def do(command: Do) -> None:
        handled.append(command.id)

    @consumer.command("do", on="Order")
    def to_do(event: Any) -> Do:
        return Do(event.id_text, event.value)

    dead = letters(app, topic)
    fine = avro.framed(1, avro.body(ORDER, {"id": "a", "n": 1})).value
    strange = avro.framed(2, avro.body(OTHER, {"id": "a", "n": {"x": 1}})).value
    unknown = avro.framed(77, b"\x02a\x02").value
    await stage.send(name, Sent("a", fine), Sent("b", strange), Sent("c", unknown), Sent("d", b"hello"))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=3)
    source = {record.offset: record for record in await stage.read(name, 4)}
    read = await stage.read(dead, 3)
    reasons = [one_letter(letter, source, worker.consumer) for letter in read]
    assert reasons == ["schema_incompatible", "unknown_schema", "undecodable"]
    assert [dict(letter.headers).get("tidegate-schema-id") for letter in read] == [b"2", b"77", None]
    await worker.until_counted("events", "do", "completed", n=1)
    assert handled == ["a"]


CARD, PASSWORD = "4111-test-card", "pw123"


async def test_secrets_of_an_exception_are_in_no_header_log_metric_row_or_list(
    stage: Stage, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parameter of a failed statement, its DETAIL, and an address with a password: nobody is told.

    Case: B38
    Parts: real (Kafka, PostgreSQL, the command line)
    Red when: failure_text.py `safe_message` takes `str(exc)` for `_told_by_names(exc)`
    """
    await stage.execute(
        "CREATE TABLE public.card (number text PRIMARY KEY)", f"INSERT INTO public.card VALUES ('{CARD}')"
    )
    name = topic(partitions=1)
    app = reader(name)

    async def pay(command: Do, ctx: Context) -> None:
        if command.id == "card":
            await ctx.tx.execute(text("INSERT INTO public.card VALUES (:number)"), {"number": CARD})
        raise RecordError(Reason.REJECTED, f"cannot reach postgresql://till:{PASSWORD}@db.internal/cards")

    at_desk(app, pay, retry=QUICK)
    dead = letters(app, topic)
    await stage.send(name, Sent("card", {"number": CARD}), Sent("dsn"))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2)
    headers = repr([letter.headers for letter in await stage.read(dead, 2)])
    rows = repr(await stage.rows("SELECT message, exception_type, stack_digest FROM tidegate.failure"))
    variables = {"TIDEGATE_DATABASE_URL": stage.url}
    listed = await asyncio.to_thread(tidegate, "dlq", "list", variables=variables)
    shown = await asyncio.to_thread(tidegate, "dlq", "show", "1", variables=variables)
    assert await worker.stop() == 0
    told = [headers, rows, listed.out + listed.err, shown.out + shown.err, worker.metrics.exposition().decode()]
    told.append("".join(capsys.readouterr()))
    assert "IntegrityError" in headers
    assert "db.internal" in headers
    assert listed.code == shown.code == 0
    for where in told:
        assert CARD not in where
        assert PASSWORD not in where
