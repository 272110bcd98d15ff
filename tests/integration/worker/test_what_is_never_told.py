"""What no letter, row, log line, metric, probe or listing tells: values of events, parameters, passwords, tokens."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pydantic
import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.cli import tidegate
from tests.support.desk import Do, at_desk, letters
from tests.support.running import RunningWorker, Sent, Stage, reader
from tidegate.consumers import Context, Event, RetryPolicy, TransientError
from tidegate.consumers import logs as product_logs
from tidegate.consumers.settings import Log
from tidegate.dlq.letter_headers import OUR_NAMES
from tidegate.inbox.errors import FatalError, RecordError
from tidegate.inbox.outcome import Reason

QUICK: Final = RetryPolicy(attempts_max=2, base_s=0.001, cap_s=0.002)

CARD, NAME, MAIL = "4111-test-card", "Mustermann", "erika@example.org"
PASSWORD, TOKEN, USER_TOKEN, NOTE, CAUSE = "pw123secret", "tok-9f8e7d", "ghp-abcdef123456", "note-5555", "cause-6666"
DSN = f"postgresql://till:{PASSWORD}@db.internal/cards"
URL = f"https://{USER_TOKEN}@api.internal/v1/pay?sig={TOKEN}&card={CARD}"
NUMBER = "4111111111111111"
"""Of a record whose bytes do not show it, as in Avro: in the payload of this test it does not stand."""
MARKERS: Final = (CARD, NAME, MAIL, PASSWORD, TOKEN, USER_TOKEN, NOTE, CAUSE, NUMBER)
PAYLOAD = {"card": CARD, "name": NAME, "mail": MAIL}


class Mute(Exception):
    """Its text raises another with a secret in it."""

    def __str__(self) -> str:
        raise ValueError(DSN)


class Loud(Exception):
    """Ten megabytes, the beginning and the end of which are not for everybody."""

    def __str__(self) -> str:
        return f"{DSN} {CARD} " + "x" * 10_000_000 + DSN


def noted() -> Exception:
    error = ValueError("refused")
    error.add_note(f"the note says {NOTE} and {CARD}")
    return error


def caused() -> Exception:
    error = ValueError(f"cannot pay: {CARD}")
    error.__cause__ = RuntimeError(f"{CAUSE} {DSN}")
    return error


class Account(pydantic.BaseModel, extra="forbid"):
    """What a handler checks; keys of its map and names that it does not know are the payload's."""

    balances: dict[str, int]


def invalid() -> Exception:
    with pytest.raises(pydantic.ValidationError) as failed:
        Account.model_validate({"balances": {CARD: "x"}, MAIL: 1, f"password={PASSWORD}": 2, NUMBER: 3})
    return failed.value


RAISED: Final[dict[str, Callable[[], BaseException]]] = {
    "text": lambda: ValueError(f"card {CARD} of {NAME} <{MAIL}> is refused"),
    "arguments": lambda: ValueError("refused", {"card": CARD}, CARD, MAIL),
    "repr": lambda: KeyError(PAYLOAD["card"]),
    "dsn": lambda: RuntimeError(f"cannot reach {DSN}"),
    "pairs": lambda: RuntimeError(f"host=db user=till password={PASSWORD} dbname=cards"),
    "url": lambda: RuntimeError(f"Client error '401 Unauthorized' for url '{URL}'"),
    "header": lambda: RuntimeError(f"Authorization: Bearer {TOKEN}-{TOKEN}"),
    "noted": noted,
    "caused": caused,
    "group": lambda: ExceptionGroup("several", [ValueError(DSN), ValueError(CARD)]),
    "group-of-one": lambda: ExceptionGroup("one", [RuntimeError(f"{DSN} {CARD}")]),
    "mute": Mute,
    "loud": Loud,
    "invalid": invalid,
    "number": lambda: ValueError(f"card {NUMBER} is refused"),
    "own-error": lambda: RecordError(Reason.REJECTED, f"card {NUMBER} is refused"),
    "transient": lambda: TransientError(f"try again: {DSN} {URL}"),
    "no-exception": lambda: SystemExit(DSN),
}
"""How a handler fails, by the id of its event."""


async def fail(command: Do, ctx: Context) -> None:
    """As the id says; two of them by the database itself."""
    if command.id == "integrity":
        await ctx.tx.execute(text("INSERT INTO public.card VALUES (:card)"), {"card": CARD})
    elif command.id == "data":
        await ctx.tx.execute(text("SELECT CAST(:card AS int)"), {"card": CARD})
    elif command.id == "wrapped":
        try:
            await ctx.tx.execute(text("INSERT INTO public.card VALUES (:card)"), {"card": CARD})
        except Exception as error:
            raise ValueError(f"cannot save {command.says}: {error}") from error
    else:
        raise RAISED[command.id]()


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The product's own logs, every one of them, with the messages of exceptions."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    out = io.StringIO()
    product_logs.configure(Log(format="json", level="debug", exception_messages=True), out)
    yield out
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


async def test_no_sink_tells_what_an_exception_carries(stage: Stage, topic: Topic, stream: io.StringIO) -> None:
    """Markers in texts, arguments, causes, notes, groups, parameters, addresses and 10 MB: nobody is told any of them.

    Case: B38
    Parts: real (Kafka, PostgreSQL, the command line)
    Red when: secrets_in_text.py's without_secrets leaves out the query strings, or without_values the names
    """
    await stage.execute(
        "CREATE TABLE public.card (number text PRIMARY KEY)", f"INSERT INTO public.card VALUES ('{CARD}')"
    )
    name = topic(partitions=1)
    app = reader(name)
    at_desk(app, fail, retry=QUICK)
    (consumer,) = app.consumers.values()

    @consumer.projection("view", retry=QUICK)
    async def view(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        raise ValueError(f"cannot show {events[0].value} of {DSN}")

    dead = letters(app, topic)
    ids = [*RAISED, "integrity", "data", "wrapped"]
    await stage.send(name, *[Sent(id_, PAYLOAD, key=id_.encode()) for id_ in ids])
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2 * len(ids))
    told = await everything_told(stage, worker, dead, 2 * len(ids))
    assert await worker.stop() == 0
    told["logs"] = stream.getvalue()
    assert "event_dead" in told["logs"]
    assert "balances.*: int_parsing" in told["rows"]
    assert {(where, marker) for where, said in told.items() for marker in MARKERS if marker in said} == set()


async def everything_told(stage: Stage, worker: RunningWorker, dead: str, n: int) -> dict[str, str]:
    """What each sink says; of a letter only what is ours."""
    found = await stage.read(dead, n)
    ours = [(name, value) for letter in found for name, value in letter.headers if name in OUR_NAMES]
    told = {
        "letters": repr(ours),
        "rows": repr(await stage.rows("SELECT reason, message, exception_type, stack_digest FROM tidegate.failure")),
        "audit": repr(await stage.rows("SELECT act, actor, details FROM tidegate.audit")),
        "metrics": worker.metrics.exposition().decode(),
        "readyz": repr(worker.board.ready()),
    }
    numbers = [row[0] for row in await stage.rows("SELECT id FROM tidegate.failure ORDER BY id")]
    listings = [("list",), ("list", "--json"), ("groups",), ("groups", "--json")]
    listings += [("show", str(numbers[0])), ("show", str(numbers[-1]), "--json")]
    for arguments in listings:
        ended = await asyncio.to_thread(tidegate, "dlq", *arguments, variables={"TIDEGATE_DATABASE_URL": stage.url})
        assert ended.code == 0, ended.err
        told[" ".join(arguments)] = ended.out + ended.err
    return told


async def test_a_fatal_error_with_a_secret_is_told_without_it(stage: Stage, topic: Topic, stream: io.StringIO) -> None:
    """A handler may stop the process; its words pass the same door as all others.

    Case: B38
    Parts: real (Kafka, PostgreSQL)
    Red when: worker.py's `full_message(fatal)` becomes `str(fatal)`
    """
    name = topic(partitions=1)
    app = reader(name)

    async def stop(command: Do, ctx: Context) -> None:
        raise FatalError(f"cannot reach {DSN} for {NUMBER}", fix=f"look at {URL}")

    at_desk(app, stop)
    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    assert isinstance(await worker.ends(), FatalError)
    told = stream.getvalue() + str(worker.board.fatal) + repr(worker.board.live(30))
    assert "db.internal" in str(worker.board.fatal)
    assert [marker for marker in MARKERS if marker in told] == []
