"""Every command line of every runbook, carried out as it stands on its page, on a letter or a case of that reason.

A worker runs beside it. Only the letter's number and the topic's name are put in.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.services.topics import Topic
from tests.support import running
from tests.support.cli import ROOT, Ended, environment
from tests.support.desk import letters
from tests.support.pages import page
from tests.support.review_desk import ReviewDesk
from tests.support.running import RunningWorker, Stage, reader
from tidegate.consumers import App, Scope, header
from tidegate.dlq.burial import Burial
from tidegate.dlq.fates import REVIEW, UNKNOWN_EFFECT
from tidegate.dlq.runbooks import WORDS, runbook_of
from tidegate.inbox import failure
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failure_rows import Place, Verdict, unknown
from tidegate.inbox.handlers import RESERVED, known_handlers
from tidegate.inbox.identity import digest16, payload_hash8
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.tables import tables

HANDLER: Final = "send-invoice"
REACHED_NO_HANDLER: Final = {"undecodable", "unknown_schema", "schema_incompatible", "unmatched", "no_key"}

EVENTS: Final = """
import os
from tidegate.consumers import App, Json, Scope, header

app = App("shop", owner="tests")
billing = app.consumer(
    os.environ["NAME"], topics=[os.environ["TOPIC"]], codec=Json(), event_id=header("id"),
    scope=Scope(tenant=header("tenant")),
)

@billing.projection("send-invoice", breaker=None)
async def send_invoice(events, tx):
    pass
"""


@dataclass
class Ward:
    """A shop whose events are dead or in doubt for one reason after the other, and an operator with the page."""

    stage: Stage
    worker: RunningWorker
    graveyard: Graveyard
    consumer: str
    topic: str
    shell: asyncio.subprocess.Process
    offsets: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def prepare(self, word: str) -> int:
        """One letter or case of this reason, and no other; its number."""
        tables_ = ("failure", "outbox", "parked_key", "effect")
        await self.stage.execute(*[f"DELETE FROM tidegate.{name}" for name in tables_])
        if word in (REVIEW, UNKNOWN_EFFECT):
            return await self._case(word)
        handler = RESERVED if word in REACHED_NO_HANDLER else HANDLER
        event = self._event(None if word == "tombstone" else b'{"n": 1}', None if word == "no_key" else b"k")
        burial = Burial(self.consumer, self.graveyard.clock)
        place = Place(self.graveyard.handlers[handler], 0 if handler == RESERVED else 1, 0)
        (number,) = await self.graveyard.put([burial.bury(place, handler, event, Dead(Reason(word), "it was so"))])
        return number

    async def _case(self, word: str) -> int:
        call = None
        if word == UNKNOWN_EFFECT:
            desk = ReviewDesk(self.graveyard)
            call = await desk.effect("order-1", owner=HANDLER, consumer=self.consumer)
        place, verdict = Place(self.graveyard.handlers[HANDLER], 1, 0), Verdict(word, "nobody knows")
        event, now = self._event(b'{"n": 1}', b"k"), self.graveyard.clock.now()
        row = unknown(place, event, verdict, attempts=1, now=now, effect_id=call)
        async with self.graveyard.db.transaction() as conn:
            (put,) = await failure.put(conn, self.graveyard.t, [row])
        return put.id

    def _event(self, value: bytes | None, key: bytes | None) -> Event[None]:
        offset = next(self.offsets)
        record = Record(self.topic, 0, offset, key, value, (("id", b"o-%d" % offset), ("tenant", b"acme")), 5, 1)
        return Event(
            None, record, event_id=digest16(b"test", b"%d" % offset), id_text=f"o-{offset}",
            payload_hash=payload_hash8(value), tenant="acme",
        )  # fmt: skip

    async def types(self, line: str, number: int) -> Ended:
        """What stands on the page, with this letter's number and this topic's name."""
        words = [{"17": str(number), "shop.orders": self.topic}.get(word, word) for word in shlex.split(line)]
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(json.dumps({"words": words[1:], "token": ""}).encode() + b"\n")
        code, out, err = json.loads(await self.shell.stdout.readline())
        return Ended(code, out, err)

    async def settles(self) -> None:
        """Nothing is queued any more."""

        async def none_waits() -> bool:
            return await self.stage.value("SELECT count(*) FROM tidegate.failure WHERE state = 'queued'") == 0

        await self.worker.until(none_waits)


@pytest.fixture
async def stage(migrated_url: str, kafka_bootstrap: str) -> AsyncIterator[Stage]:
    """Where the worker runs."""
    async with running.stage(migrated_url, kafka_bootstrap) as built:
        yield built


@pytest.fixture
async def ward(stage: Stage, topic: Topic, tmp_path: Path) -> AsyncIterator[Ward]:
    """The worker in this process, the operator in another one."""
    app = _app(orders := topic(partitions=1))
    letters(app, topic)
    (consumer,) = app.consumers
    worker = await stage.ready(app)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "events.py").write_text(EVENTS)
    (tmp_path / "value.json").write_text('{"n": 2}')
    (tmp_path / "value.bin").write_bytes(b'{"n": 3}')
    variables = {
        "TIDEGATE_DATABASE_URL": stage.url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap,
        "NAME": consumer, "TOPIC": orders, "PYTHONPATH": ":".join([str(tmp_path), str(ROOT), *sys.path]),
    }  # fmt: skip
    shell = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.typed_commands", "--one-by-one", cwd=tmp_path,
        env=environment(variables), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**22,
    )  # fmt: skip
    database = Database(stage.url, member="test", settings=DatabaseSettings(pool_max=2, tx_pool_max=1))
    try:
        async with database.transaction() as conn:
            handlers = await known_handlers(conn, tables(), consumer)
        yield Ward(stage, worker, Graveyard(database, tables(), handlers), consumer, orders, shell)
    finally:
        shell.kill()
        await shell.wait()
        await database.close()


def _app(orders: str) -> App:
    """What `EVENTS` declares, for the worker."""
    app = reader(orders, scope=Scope(tenant=header("tenant")))
    (consumer,) = app.consumers.values()

    async def send_invoice(events: object, tx: object) -> None:
        pass

    consumer.projection(HANDLER, breaker=None)(send_invoice)
    return app


SAYS: Final = {
    "dlq groups": r"\b{reason}\b",
    "dlq list": r"{number} +dead +{reason}\b",
    "dlq list --state queued": "no letters",
    "dlq show": r"\b{reason}\b",
    "dlq replay": r"would replay 1 letter\b",
    "dlq replay --yes": r"replayed 1 letter\b",
    "dlq replay --yes --wait": r"replayed 1 letter\b[\s\S]*succeeded +1\b",
    "dlq discard --yes": r"discarded 1 letter\b",
    "dlq edit --yes": r"repaired {number}: n\b",
    "review list": r"{number} +{reason}\b|nothing waits",
    "review show": r"tidegate review resolve {number} --",
    "review resolve": r"resolved 1: {number}\b",
    "breakers list": "no breaker ever opened",
    "explain": "send-invoice is a projection",
    "check": "",
}
"""What a command's answer has in it where it did what its page says."""


def _said(words: list[str], reason: str, number: int) -> str:
    """The pattern for a command line."""
    verb = " ".join(words[1:2] if words[1] in ("explain", "check") else words[1:3])
    options = {"queued": "--state queued", "--yes": "--yes", "--wait": "--wait"}
    said = SAYS[" ".join([verb, *[text for word, text in options.items() if word in words]])]
    return said.format(reason=reason, number=number)


@pytest.mark.timeout(300)
async def test_every_command_of_every_runbook_does_what_its_page_says(ward: Ward) -> None:
    """On a letter of a tenant, so that whose letters are meant has to be said; a dry run shows, `--yes` does it.

    Case: B42
    Parts: real (PostgreSQL, Kafka, process)
    Red when: docs/runbooks/conflict.md's replay does not say --all-tenants
    """
    problems: list[str] = []
    done = 0
    for word in sorted(WORDS):
        for line in page(runbook_of(word)).command_lines():
            number = await ward.prepare(word)
            ended = await ward.types(line, number)
            if ended.code or not re.search(_said(shlex.split(line), word, number), ended.out):
                problems.append(f"{runbook_of(word)}: {line}\n  ended with {ended.code}\n{ended.out}{ended.err}")
            await ward.settles()
            done += 1
    assert not problems, "\n".join(problems)
    assert done > 4 * len(WORDS), "each page has its commands"


async def test_the_letters_of_the_ward_are_of_every_reason(ward: Ward) -> None:
    """What the test above relies on: each reason has its row, dead with a letter or in doubt without one."""
    for word in sorted(WORDS):
        number = await ward.prepare(word)
        async with ward.graveyard.db.transaction() as conn:
            found = (await conn.execute(sa.text("SELECT id, reason, state FROM tidegate.failure"))).one()
        assert tuple(found) == (number, word, "unknown" if word in (REVIEW, UNKNOWN_EFFECT) else "dead")
