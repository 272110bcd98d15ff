"""`tidegate dlq replay` as it is typed: nothing without --yes, Ctrl-C at any time, and exit codes that tell."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.cli import Ended, start, tidegate
from tests.support.running import PATIENCE_S
from tidegate.dlq.grouping import grouped
from tidegate.dlq.letter_headers import REPLAY_COMMAND
from tidegate.dlq.selection import Filter
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.record_bytes import decode_headers
from tidegate.inbox.tables import tables


class Operator:
    """Somebody at the command line of a graveyard."""

    def __init__(self, graveyard: Graveyard, url: str, folder: Path) -> None:
        self.graveyard = graveyard
        self.variables = {"TIDEGATE_DATABASE_URL": url}
        self._log = folder / "replay.log"

    async def types(self, *arguments: str) -> Ended:
        """Run `tidegate dlq replay ...`."""
        return await asyncio.to_thread(tidegate, "dlq", "replay", *arguments, variables=self.variables)

    async def types_at_once(self, *replays: Sequence[str]) -> list[Ended]:
        """Run several; none of them gets to its first letter before each has begun."""
        before = await self.count("count(*) FROM tidegate.replay")
        async with self.graveyard.db.transaction() as conn:
            await conn.execute(sa.text("LOCK TABLE tidegate.failure IN EXCLUSIVE MODE"))
            ended = asyncio.gather(*(self.types(*replay) for replay in replays))
            async with asyncio.timeout(PATIENCE_S):
                while await self.count("count(*) FROM tidegate.replay") - before < len(replays):
                    await asyncio.sleep(0.02)
        return await ended

    async def count(self, what: str) -> int:
        """A number out of the database."""
        async with self.graveyard.db.transaction() as conn:
            return (await conn.execute(sa.text(f"SELECT {what}"))).scalar_one() or 0

    async def headers_of_the_letter(self) -> bytes:
        """As they are stored, of the only letter."""
        async with self.graveyard.db.transaction() as conn:
            return (await conn.execute(sa.text("SELECT headers FROM tidegate.outbox"))).scalar_one()

    async def interrupts(self, *arguments: str, at: int) -> tuple[int, str]:
        """Start it, press Ctrl-C once so many are queued; its exit code and what it said."""
        variables = {**self.variables, "PYTHONFAULTHANDLER": "1"}
        process = start("dlq", "replay", *arguments, log=self._log, variables=variables)
        try:
            give_up_s = time.monotonic() + PATIENCE_S
            while await self.count("max(replayed) FROM tidegate.replay") < at:
                assert process.poll() is None, self._log.read_text()
                assert time.monotonic() < give_up_s, "it did not get so far"
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            try:
                return await asyncio.to_thread(process.wait, PATIENCE_S), self._log.read_text()
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                await asyncio.to_thread(process.wait, PATIENCE_S)
                raise AssertionError(f"it does not end, and stands here:\n{self._log.read_text()}") from None
        finally:
            process.kill()
            process.wait()


@pytest.fixture
async def operator(migrated_url: str, tmp_path: Path) -> AsyncIterator[Operator]:
    """With a consumer that has two handlers."""
    t = tables()
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=2, tx_pool_max=1))
    try:
        async with database.transaction() as conn:
            handlers = await register_handlers(conn, t, "billing", ["revenue", "invoices"])
        yield Operator(Graveyard(database, t, handlers), migrated_url, tmp_path)
    finally:
        await database.close()


async def test_a_replay_that_is_interrupted_goes_on_and_says_how(operator: Operator) -> None:
    """Ctrl-C leaves what was queued, counted; `resume` does the rest, and once more does nothing.

    Case: B39
    Parts: real (PostgreSQL, process)
    Red when: consumers/cli/replaying.py's finish says nothing where it is cancelled
    """
    await operator.graveyard.bury(*[operator.graveyard.event(n, key=None) for n in range(100)])
    code, said = await operator.interrupts("--all", "--reason", "repaired", "--rate", "1", "--yes", at=3)
    assert code == 130
    assert "`tidegate dlq replay resume 1` goes on" in said
    queued = await operator.count("count(*) FROM tidegate.failure WHERE state = 'queued'")
    assert 3 <= queued < 100
    assert queued == await operator.count("replayed FROM tidegate.replay")
    resumed = await operator.types("resume", "1", "--rate", "1000", "--json")
    told = json.loads(resumed.out)
    assert (resumed.code, told["read"], told["replayed"], told["outcomes"]["waiting"]) == (0, 100, 100, 100)
    again = json.loads((await operator.types("resume", "1", "--json")).out)
    assert (again["read"], again["ended_at"]) == (100, told["ended_at"])
    assert await operator.count("sum(replay_count) FROM tidegate.failure") == 100


async def test_two_operators_who_replay_one_group_at_once_replay_each_letter_once(operator: Operator) -> None:
    """In processes of their own, held until both have begun: together they queue each letter once, and each is told its
    own part.

    Case: B39
    Parts: real (PostgreSQL, processes)
    Red when: inbox/failure.py's requeue does not look at the row's version
    """
    graveyard = operator.graveyard
    await graveyard.bury(*[graveyard.event(n, key=None) for n in range(300)])
    async with graveyard.db.transaction() as conn:
        (group,) = await grouped(conn, graveyard.t, Filter(handler="revenue"))
    replay = ("--group", group.name, "--reason", "both of us", "--rate", "400", "--yes", "--json")
    both = await operator.types_at_once(replay, replay)
    assert [ended.err for ended in both] == ["", ""]
    told = [json.loads(ended.out) for ended in both]
    assert sum(each["replayed"] for each in told) == 300, told
    assert {ended.code for ended in both} <= {0, 1, 3}, "a part for one of them, or nothing left"
    assert await operator.count("sum(replay_count) FROM tidegate.failure") == 300
    assert await operator.count("sum((details->>'replayed')::int) FROM tidegate.audit") == 300


async def test_nothing_is_done_without_yes_and_the_exit_code_tells_a_part(operator: Operator) -> None:
    """A plan with its histogram, and what would be refused; then a part of it, which is no success.

    Case: B39, B40, B42
    Parts: real (PostgreSQL, process)
    Red when: consumers/cli/replaying.py's exit_code does not look at run.refused
    """
    graveyard = operator.graveyard
    await graveyard.bury(graveyard.event(1, tenant="a"), graveyard.event(2, tenant="b"), graveyard.event(3))
    plan = await operator.types("--all", "--tenant", "a")
    assert (plan.code, "would replay 1 letter" in plan.out, "rejected" in plan.out) == (0, True, True)
    part = await operator.types("--all")
    assert (part.code, "would refuse 2: it is of a tenant" in part.out) == (1, True)
    assert await operator.count("count(*) FROM tidegate.failure WHERE state = 'dead'") == 3
    assert await operator.count("count(*) FROM tidegate.replay") == 0
    nothing = await operator.types("--handler", "nobody")
    assert (nothing.code, "would replay 0 letters" in nothing.out) == (3, True)
    assert "no letter matches" in nothing.err
    untold = await operator.types("1")
    assert (untold.code, "--tenant NAME, or --all-tenants" in untold.out) == (1, True)
    assert "--yes would do nothing either" in untold.err
    for refused in (
        ("--all", "--yes"),
        (),
        ("resume",),
        ("1", "--all"),
        ("1", "--to-source", "x", "--from-topic", "y"),
    ):
        assert (await operator.types(*refused)).code == 78, refused
    assert (await operator.types("resume", "7")).code == 70
    done = await operator.types("--all", "--reason", "x", "--yes")
    assert (done.code, "replayed 1 letter" in done.out) == (1, True)
    rest = await operator.types("--all", "--all-tenants", "--reason", "x", "--yes", "--wait", "--wait-s", "0")
    assert (rest.code, "replayed 2 letters" in rest.out, "still to be worked" in rest.err) == (1, True, True)
    assert "`tidegate dlq replay resume 2 --wait`" in rest.err


@pytest.mark.parametrize("tenant", [None, "acme", "--yes"])
async def test_the_command_line_in_a_letter_is_a_dry_run_and_with_yes_it_does_it(
    operator: Operator, tenant: str | None
) -> None:
    """Pasted as it stands it shows what it would do, whatever a producer wrote into the tenant's header.

    Case: B39, B42
    Parts: real (PostgreSQL, process)
    Red when: dlq/letter.py's replay_command leaves the tenant out
    """
    await operator.graveyard.bury(operator.graveyard.event(1, key=None, tenant=tenant))
    headers = dict(decode_headers(await operator.headers_of_the_letter()))
    program, *words = shlex.split((headers[REPLAY_COMMAND] or b"").decode())
    assert (program, words[:2]) == ("tidegate", ["dlq", "replay"])
    pasted = await operator.types(*words[2:])
    assert (pasted.code, "would replay 1 letter" in pasted.out) == (0, True), pasted
    assert "nothing was done: --yes does it" in pasted.err
    assert await operator.count("count(*) FROM tidegate.failure WHERE state = 'dead'") == 1
    done = await operator.types(*words[2:], "--yes")
    assert (done.code, "replayed 1 letter" in done.out) == (0, True), done
    assert await operator.count("count(*) FROM tidegate.failure WHERE state = 'queued'") == 1
