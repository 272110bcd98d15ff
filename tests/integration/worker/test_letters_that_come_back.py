"""Letters whose rows are gone come back out of their topic: to the consumer that is configured, and nobody else."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.cli import Ended, tidegate
from tests.support.desk import letters
from tests.support.running import RunningWorker, Sent, Stage, note, table_of
from tidegate.consumers import App, Event, Json, Scope, header

APP = """
import os
from tidegate.consumers import App, Json, Scope, header
app = App("tests", owner="tests")
consumer = app.consumer(os.environ["NAME"], topics=[os.environ["TOPIC"]], codec=Json(), event_id=header("id"),
                        scope=Scope(tenant=header("tenant")))

@consumer.projection("rows", breaker=None)
async def rows(events, tx):
    pass
"""


class Shop:
    """A consumer with a projection whose events are ill or not, its dead-letter topic, and an operator."""

    def __init__(self, stage: Stage, topic: Topic, folder: Path) -> None:
        self.stage = stage
        self.ill = {"a", "b", "c"}
        self.source = topic(partitions=2)
        self.name = f"c-{self.source}"[:80]
        self.app = App("tests", owner="tests")
        scope = Scope(tenant=header("tenant"))
        self.consumer = self.app.consumer(
            self.name, topics=[self.source], codec=Json(), event_id=header("id"), scope=scope
        )
        self.consumer.projection("rows", breaker=None)(self.rows)
        self.letters = letters(self.app, topic)
        (folder / "shop_app.py").write_text(APP)
        self.variables = {
            "TIDEGATE_DATABASE_URL": stage.url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap,
            "PYTHONPATH": str(folder),
            "NAME": self.name,
            "TOPIC": self.source,
        }

    async def rows(self, events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        """Refuse what is ill."""
        if any(event.id_text in self.ill for event in events):
            raise ValueError("ill")
        await note(events, tx)

    async def types(self, *arguments: str) -> Ended:
        """`tidegate dlq replay ...`."""
        given = ("dlq", "replay", "--app", "shop_app:app", "--reason", "restored", *arguments)
        return await asyncio.to_thread(tidegate, *given, variables=self.variables)

    async def told(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and JSON."""
        ended = await self.types(*arguments, "--json")
        assert ended.out, ended.err
        return ended.code, json.loads(ended.out)

    async def bury(self, *ids: str) -> RunningWorker:
        """Letters on the topic, and their rows and claims forgotten, as a database that was put back has it."""
        await table_of(self.stage)
        worker = await self.stage.start(self.app)
        await self.stage.send(
            self.source, *[Sent(id_, {"n": n}, key=b"k-" + id_.encode()) for n, id_ in enumerate(ids)]
        )
        await worker.until_counted("outbox_published", "delivered", n=len(ids))
        await self.stage.execute("DELETE FROM tidegate.failure", "DELETE FROM tidegate.outbox")
        return worker

    async def effects(self) -> list[str]:
        """Ids in the table."""
        return [row[0] for row in await self.stage.rows("SELECT id FROM public.effect ORDER BY id")]


async def test_letters_whose_rows_are_gone_are_put_back_and_run_once(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """A dry run first; then each once; the next replay finds them handled; nothing came to the source topic.

    Case: B39, B40
    Parts: real (PostgreSQL, Kafka, process)
    Red when: dlq/adoptions.py's _obstacle does not look at known.claims
    """
    shop = Shop(stage, topic, tmp_path)
    worker = await shop.bury("a", "b", "c")
    shop.ill.clear()
    assert await shop.told("--from-topic", shop.letters, "--all") == (0, {
        "dry_run": True, "place": f"topic {shop.letters} of cluster {await cluster(shop)}, for {shop.source}",
        "read": 3, "replayed": 3, "skipped": {}, "refused": {},
        "by": {"reason": {"rejected": 3}, "exception": {"ValueError": 3},
               "handler": {"rows": 3}, "tenant": {"-": 3}, "hour": {}},
    })  # fmt: skip
    assert await stage.failures() == []
    code, told = await shop.told("--from-topic", shop.letters, "--all", "--yes", "--wait", "--wait-s", "20")
    assert (code, told["read"], told["replayed"], told["outcomes"]["succeeded"]) == (0, 3, 3, 3)
    assert await shop.effects() == ["a", "b", "c"]
    code, told = await shop.told("--from-topic", shop.letters, "--all", "--yes")
    assert (code, told["replayed"], told["causes"]) == (1, 0, {"it was handled already": 3})
    code, again = await shop.told("resume", str(told["replay"]))
    assert again["read"] == 3
    assert await shop.effects() == ["a", "b", "c"]
    assert sum((await stage.checkpoints("rows")).values()) == 3
    assert await worker.stop() == 0


async def cluster(shop: Shop) -> str:
    """What the cluster calls itself, as the operator is told."""
    ended = await shop.types("--from-topic", shop.letters, "--all")
    return ended.err.split("cluster ")[1].split(":")[0]


async def test_a_letters_headers_choose_no_target(stage: Stage, topic: Topic, tmp_path: Path) -> None:
    """Another topic, another consumer, a handler that there is not, another tenant, an undecodable one, one that was
    replayed too often: all refused, nothing produced, and the exit code says so. Only what agrees with the
    configuration comes back.

    Case: B42, B39
    Parts: real (PostgreSQL, Kafka, process)
    Red when: dlq/adopting.py's _not_ours does not compare origin_topic
    """
    shop = Shop(stage, topic, tmp_path)
    worker = await shop.bury("a")
    shop.ill.clear()
    (letter,) = await stage.read(shop.letters, 1)
    ours = dict(letter.headers)

    def forged(id_: str, **changed: bytes) -> Sent:
        headers = {**ours, "id": id_.encode(), **{"tidegate-" + k.replace("_", "-"): v for k, v in changed.items()}}
        return Sent(None, {"n": 1}, type=None, headers=tuple(headers.items()))

    await stage.send(
        shop.letters,
        forged("x-topic", origin_topic=b"payments"),
        forged("x-consumer", consumer=b"somebody-else"),
        forged("x-handler", handler=b"drop-everything"),
        forged("x-often", replay_count=b"2"),
        Sent(None, b"\xff", type=None, headers=tuple({**ours, "id": b"x-bytes"}.items())),
    )
    code, told = await shop.told("--from-topic", shop.letters, "--all", "--yes", "--wait", "--wait-s", "20")
    assert (code, told["read"], told["replayed"], told["refused"]) == (1, 6, 1, 5)
    assert told["causes"] == {
        "its header names another topic than the one whose letters these are": 1,
        "its header names another consumer": 1,
        "it is of a handler that the app does not have": 1,
        "it was replayed 2 times already: repair the cause, or force it (--force)": 1,
        "it is no event: undecodable": 1,
    }
    assert await shop.effects() == ["a"]
    for arguments in (
        ("--from-topic", shop.source, "--all"),
        ("--from-topic", shop.letters, "--topic", "payments"),
        ("--from-topic", shop.letters.replace("-", "."), "--all"),
        ("--from-topic", shop.letters, "--all", "--cluster", "another"),
    ):
        refused = await shop.types(*arguments)
        assert (refused.code, refused.out) == (78, ""), arguments
    assert await worker.stop() == 0


async def test_letters_of_other_tenants_are_not_counted_among_the_refused(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """An operator of acme: of another tenant's letters nothing is told, neither of good ones nor of those that are
    undecodable, forged, replayed too often or too large; nor of those that have no tenant.

    Case: B42, B38
    Parts: real (PostgreSQL, Kafka, process)
    Red when: dlq/adoptions.py's _read asks the permit of candidates only
    """
    shop = Shop(stage, topic, tmp_path)
    worker = await shop.bury("a")
    shop.ill.clear()
    ours = dict((await stage.read(shop.letters, 1))[0].headers)

    def of(tenant: str, id_: str, value: Any = None, **changed: bytes) -> Sent:
        scope = {"tenant": tenant.encode(), "tidegate-tenant": tenant.encode()}
        ours_too = {f"tidegate-{name.replace('_', '-')}": text for name, text in changed.items()}
        headers = {**ours, "id": id_.encode(), **scope, **ours_too}
        return Sent(None, value or {"n": 1}, type=None, headers=tuple(headers.items()))

    await stage.send(
        shop.letters,
        *[letter for tenant in ("acme", "other") for letter in (
            of(tenant, f"{tenant}-good"),
            of(tenant, f"{tenant}-topic", origin_topic=b"payments"),
            of(tenant, f"{tenant}-bytes", b"\xff"),
            of(tenant, f"{tenant}-often", replay_count=b"2"),
        )],
        of("other", "other-large", claim_left_out=b"value,headers"),
    )  # fmt: skip
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[grant]]\nwho = ["os:{getpass.getuser()}"]\nrole = "operator"\ntenants = ["acme"]\n')
    shop.variables["TIDEGATE_PERMISSION_POLICY_FILE"] = str(policy)
    code, plan = await shop.told("--from-topic", shop.letters, "--tenant", "acme")
    assert (code, plan["read"], plan["replayed"], sum(plan["refused"].values())) == (1, 4, 1, 3)
    yes = ("--from-topic", shop.letters, "--tenant", "acme", "--yes", "--wait", "--wait-s", "20")
    code, told = await shop.told(*yes)
    assert (code, told["read"], told["replayed"], told["refused"]) == (1, 4, 1, 3)
    assert set(told["causes"].values()) == {1}
    assert await shop.effects() == ["acme-good"]
    code, whole = await shop.told("--from-topic", shop.letters, "--all", "--all-tenants", "--yes")
    assert (code, whole["read"], whole["skipped"]) == (1, 4, 1), "all of those that are theirs"
    lines = await stage.rows("SELECT tenant, details->>'filter' FROM tidegate.audit WHERE act = 'dlq_replay'")
    assert [line[0] for line in lines] == ["acme", "acme"], "theirs too, so that they see what they did"
    assert await worker.stop() == 0


async def test_half_written_letters_are_refused_or_come_back_once(stage: Stage, topic: Topic, tmp_path: Path) -> None:
    """Each header of a letter missing, each with bytes that mean nothing, each with numbers that no column takes: no
    letter stops the others, all of them are counted, and what comes back does so once.

    Case: B39, B42
    Parts: real (PostgreSQL, Kafka, process)
    Red when: dlq/adopting.py's _record_of takes a partition that the source does not have
    """
    shop = Shop(stage, topic, tmp_path)
    worker = await shop.bury("a")
    shop.ill.clear()
    ours = dict((await stage.read(shop.letters, 1))[0].headers)
    written = [name for name in ours if name != "id"]
    halves = {f"without {name}": {key: value for key, value in ours.items() if key != name} for name in written}
    halves |= {f"spoiled {name}": {**ours, name: b"\xff\x00-1"} for name in written}
    halves |= {f"{name}={number}": {**ours, name: b"%d" % number} for name in written for number in (-1, 2**63 - 1)}
    halves |= {
        "far away": {**ours, "tidegate-origin-partition": b"99", "tidegate-origin-offset": b"9223372036854775808"}
    }
    await stage.send(
        shop.letters,
        *[Sent(None, {"n": 1}, type=None, headers=tuple({**headers, "id": id_.encode()}.items()))
          for id_, headers in halves.items()],
    )  # fmt: skip
    given = ("--from-topic", shop.letters, "--all", "--all-tenants", "--yes", "--wait", "--wait-s", "20")
    code, told = await shop.told(*given)
    assert (code, told["read"]) == (1, 1 + len(halves))
    assert told["replayed"] + told["skipped"] + told["refused"] == told["read"]
    assert sum(told["causes"].values()) == told["skipped"] + told["refused"]
    assert told["outcomes"]["succeeded"] == told["replayed"] > len(halves) // 2, told
    effects = await shop.effects()
    assert len(effects) == len(set(effects)) == told["replayed"]
    _, again = await shop.told(*given)
    assert (again["read"], again["replayed"]) == (told["read"], 0)
    assert await worker.stop() == 0


async def test_a_letter_that_says_it_was_tried_more_often_than_can_be_counted_dies_like_any_other(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """One more try of it is a number that its column takes, so its row comes to an end.

    Case: B42
    Parts: real (PostgreSQL, Kafka, process)
    Red when: dlq/letter_headers.py bounds `attempts` by what a column of longs holds
    """
    shop = Shop(stage, topic, tmp_path)
    worker = await shop.bury("a")
    ours = dict((await stage.read(shop.letters, 1))[0].headers)
    headers = {**ours, "id": b"b", "tidegate-attempts": b"%d" % (2**63 - 1)}
    spring = (("kafka_dlt-original-topic", shop.source.encode()), ("retry_topic-attempts", b"\x7f" + b"\xff" * 7))
    await stage.send(
        shop.letters, Sent(None, type=None, headers=tuple(headers.items())), Sent("c", type=None, headers=spring)
    )
    given = ("--from-topic", shop.letters, "--handler", "rows", "--yes", "--wait", "--wait-s", "20")
    code, told = await shop.told(*given)
    assert (code, told["replayed"], told["outcomes"]["dead_again"]) == (1, 3, 3)
    tried = await stage.rows("SELECT id_text, attempts FROM tidegate.failure ORDER BY id_text")
    assert tried == [("a", 2), ("b", 1_000_001), ("c", 1_000_001)]
    assert await worker.stop() == 0


async def test_what_the_database_refuses_is_told_without_the_statement(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """By class, state and names: neither SQL nor what was to be written, and no word of an address that is right.

    Case: B42
    Parts: real (PostgreSQL, Kafka, process)
    Red when: consumers/cli/database_errors.py's _cause_of gives `error`
    """
    shop = Shop(stage, topic, tmp_path)
    worker = await shop.bury("a")
    await worker.stop()
    given = ("--from-topic", shop.letters, "--all", "--yes")
    await stage.execute("ALTER TABLE tidegate.failure ADD CONSTRAINT none_comes_back CHECK (origin <> 'letter')")
    refused = await shop.types(*given)
    assert (refused.code, refused.out) == (70, "")
    assert refused.err.splitlines()[-1] == (
        "database: it refuses what was to be written: CheckViolationError, SQLSTATE 23514, constraint none_comes_back,"
        " table failure. Fix: nothing of this step was written; report this line, and go round what it was about by a"
        " filter"
    )
    await stage.execute("ALTER TABLE tidegate.failure RENAME COLUMN stack_digest TO digest")
    missing = await shop.types(*given)
    assert (missing.code, missing.out) == (70, "")
    assert missing.err.splitlines()[-1] == (
        'database: column "stack_digest" of relation "failure" does not exist. Fix: check database.url, that PostgreSQL'
        " answers there, and this role's rights"
    )


async def test_letters_of_other_systems_come_to_the_handlers_that_take_them(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """Spring's and Kafka Streams' letters, out of a topic that the operator says whose it is.

    Case: B42
    Parts: real (PostgreSQL, Kafka, process)
    Red when: dlq/adopting.py's _handler_of gives letter.handler for every format
    """
    shop = Shop(stage, topic, tmp_path)
    shop.ill.clear()
    await table_of(stage)
    worker = await stage.ready(shop.app)
    foreign = topic(partitions=1)
    spring = (
        ("kafka_dlt-original-topic", shop.source.encode()),
        ("kafka_dlt-original-partition", (1).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", (77).to_bytes(8, "big")),
        ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.ListenerExecutionFailedException"),
    )
    streams = (("__streams.errors.exception", b"java.lang.RuntimeException"), ("__streams.errors.topic", b"payments"))
    await stage.send(
        foreign, Sent("spring", {"n": 1}, headers=spring), Sent("streams", {"n": 2}, headers=streams), Sent("bare")
    )
    code, told = await shop.told(
        "--from-topic", foreign, "--topic", shop.source, "--handler", "rows", "--yes", "--wait", "--wait-s", "20"
    )
    assert (code, told["read"], told["replayed"]) == (1, 3, 2)
    assert await shop.effects() == ["bare", "spring"]
    code, told = await shop.told("--from-topic", foreign, "--topic", shop.source, "--yes", "--wait")
    await worker.until_counted("dedup_hits", "rows", n=2)
    assert await shop.effects() == ["bare", "spring"]
    assert await worker.stop() == 0
