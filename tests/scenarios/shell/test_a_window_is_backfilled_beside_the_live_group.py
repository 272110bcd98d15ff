"""`tidegate backfill` in processes of their own, a live worker in another beside them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.backfill_app import TABLES
from tests.support.backfill_shop import EVENTS, LOOK_S, WINDOW, WITHIN_S, Shop, opened, produce
from tests.support.cli import start
from tidegate.inbox.points import AT
from tidegate.inbox.versions import run_version


@pytest.fixture
async def shop(tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic) -> AsyncIterator[Shop]:
    """Sixty events of two partitions and six keys, all handled, and the worker still there."""
    async with opened(tmp_path, kafka_bootstrap, database_url, topic, TABLES) as shop:
        produce(shop.places, range(EVENTS))
        shop.works()
        await shop.until("SELECT count(*) FROM tidegate.claim_1", 2 * EVENTS)
        await shop.until("SELECT COALESCE(sum(kafka_offset), 0) FROM tidegate.fence", EVENTS)
        await shop.until_committed(EVENTS)  # which is noted before Kafka has it
        yield shop


async def forget(shop: Shop) -> None:
    """As if forty of them had never been handled by the command."""
    lost = "SELECT ctid FROM tidegate.claim_1 WHERE version = 0 ORDER BY event_id LIMIT 40"
    await shop.db.execute(f"DELETE FROM tidegate.claim_1 WHERE ctid IN ({lost})")
    await shop.db.execute("DELETE FROM public.done")
    await shop.db.execute("DELETE FROM tidegate.outbox")


KILLS: Final = (
    "after_handler@do:5", "before_tx:3", "after_tx:3", "before_group:2", "after_group:2", "claimed@do:6",
    "after_take:1", "before_handler@do:11",
)  # fmt: skip


async def test_killed_at_every_turn_it_handles_each_event_once_and_its_journal_adds_up(shop: Shop) -> None:
    """kill -9 between any two steps, and resume: one effect each, counts that add up, the live group untouched.

    Case: B39, B42
    Parts: real (Kafka, PostgreSQL)
    Red when: running.py counts an open chunk by what the inbox knows now instead of what was noted when it was opened
    """
    await forget(shop)
    before = await shop.live()
    ended = await shop.begins("do", **{AT: KILLS[0]})
    assert ended.code == -signal.SIGKILL, ended.err
    for kill in KILLS[1:]:
        ended = await shop.types("resume", "1", "--reason", "again", **{AT: kill})
        assert ended.code == -signal.SIGKILL, (kill, ended.err)
    ended = await shop.types("resume", "1", "--reason", "again")
    assert ended.code == 0, ended.err
    assert re.search(r"handled +40\n", ended.out), ended.out
    assert "skipped 20: handled before" in ended.out
    done = Counter(row[0] for row in await shop.db.fetch("SELECT id FROM public.done"))
    published = await shop.count("SELECT count(*) FROM tidegate.outbox")
    assert set(done.values()) == {1}
    assert len(done) + published == 40
    run = await shop.journal(1)
    assert [run[name] for name in ("read", "handled", "skipped", "refused", "failed")] == [60, 40, 20, 0, 0]
    assert run["ended_at"]
    assert (await shop.types("resume", "1")).code == 0
    assert await shop.count("SELECT count(*) FROM public.done") == len(done)
    assert await shop.live() == before
    assert await shop.count("SELECT count(*) FROM tidegate.fence WHERE consumer LIKE '%.backfill.%'") == 0


async def test_a_projections_run_killed_at_every_turn_writes_what_it_would_have(shop: Shop) -> None:
    await shop.db.execute("DELETE FROM public.view WHERE id = 'k1'")
    await shop.db.execute("UPDATE public.view SET n = 1000 WHERE id = 'k2'")
    before = await shop.live()
    kills = ("claimed@view:2", "before_batch:1", "after_batch:2", "before_batch:2")
    assert (await shop.begins("view", **{AT: kills[0]})).code == -signal.SIGKILL
    for kill in kills[1:]:
        assert (await shop.types("resume", "1", **{AT: kill})).code == -signal.SIGKILL
    ended = await shop.types("resume", "1")
    assert ended.code == 0, ended.err
    view = {row[0]: row[1] for row in await shop.db.fetch("SELECT id, n FROM public.view")}
    assert view == {"k0": 54, "k1": 55, "k2": 1000, "k3": 57, "k4": 58, "k5": 59}
    run = await shop.journal(1)
    assert [run[name] for name in ("read", "handled", "skipped", "failed")] == [60, 60, 0, 0]
    claimed = await shop.count(f"SELECT count(*) FROM tidegate.claim_1 WHERE version = {run_version(1)}")
    assert claimed == 60
    assert await shop.live() == before


async def test_without_yes_nothing_is_done_and_everything_is_said(shop: Shop) -> None:
    await forget(shop)
    ended = await shop.types(shop.places.consumer, "--handler", "do", *WINDOW)
    assert ended.code == 0, ended.err
    assert "would handle 40 of 60 records" in ended.out
    assert "skipped 20: handled before" in ended.out
    assert re.search(r"cluster \S+, consumer c-", ended.out)
    assert "nothing was done" in ended.err
    half = await shop.types(
        shop.places.consumer,
        "--handler",
        "do",
        "--from",
        "2026-03-01T12:00:10",
        "--to",
        "2026-03-01T12:00:20",
        "--json",
    )
    told = json.loads(half.out)
    assert (told["dry_run"], told["read"]) == (True, 10)
    assert [(part["from"], part["to"]) for part in told["parts"]] == [(5, 10), (5, 10)]
    nothing = await shop.types(shop.places.consumer, "--handler", "do", "--from", "2020-01-01", "--to", "2020-01-02")
    assert nothing.code == 3
    assert await shop.count("SELECT count(*) FROM tidegate.backfill") == 0


async def test_ctrl_c_ends_it_behind_what_is_in_hand(shop: Shop) -> None:
    await forget(shop)
    path = shop.folder / "backfill.log"
    asked = (shop.places.consumer, "--handler", "do", *WINDOW, "--rate", "8", "--yes", "--reason", "again")
    process = start("backfill", *asked, log=path, variables=shop.variables)
    try:
        give_up_s = time.monotonic() + WITHIN_S
        while not await shop.count("SELECT COALESCE(max(handled), 0) FROM tidegate.backfill"):
            assert time.monotonic() < give_up_s, path.read_text()
            await asyncio.sleep(LOOK_S)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, WITHIN_S) == 130, path.read_text()
    finally:
        process.kill()
        process.wait()
    assert "`tidegate backfill resume 1` goes on" in path.read_text()
    run = await shop.journal(1)
    assert run["read"] == run["handled"] + run["skipped"]
    ended = await shop.types("resume", "1", "--rate", "100", "--json")
    assert (ended.code, json.loads(ended.out)["handled"]) == (0, 40)


async def test_what_is_wrong_is_said_at_once(shop: Shop) -> None:
    ended = await shop.types(
        shop.places.consumer, "--handler", "dont", "--from", "2026-03-02", "--to", "2026-03-01", "--topic", "other"
    )
    assert ended.code == 78
    for said in ("has no handler 'dont'", "ends before it begins", "'other' is no topic of"):
        assert said in ended.err
    assert "is no time" in (await shop.types("x", "--handler", "do", "--from", "noon", "--to", "2026-03-01")).err
    assert "it is not given" in (await shop.types(shop.places.consumer, "--handler", "do", *WINDOW, "--yes")).err
    assert "there is no backfill 9" in (await shop.types("resume", "9")).err
    assert "was said at its start" in (await shop.types("resume", "1", "--force")).err


async def test_what_is_older_than_the_inbox_remembers_needs_a_word(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """Events below the place at which the handler's claims begin are refused, shown as such, and run with --force.

    Case: B40
    Parts: real (Kafka, PostgreSQL)
    Red when: ownership.py writes no births with the first checkpoints
    """
    async with opened(tmp_path, kafka_bootstrap, database_url, topic, TABLES) as shop:
        produce(shop.places, range(20))
        shop.works(BACKFILL_START="latest")
        await shop.until("SELECT COALESCE(sum(kafka_offset), 0) FROM tidegate.fence", 20)
        produce(shop.places, range(20, 26))
        await shop.until("SELECT count(*) FROM tidegate.claim_1", 2 * 6)
        dry = await shop.types(shop.places.consumer, "--handler", "do", *WINDOW)
        assert (dry.code, "would handle 0 of 26 records" in dry.out) == (1, True), dry.err
        assert "refused 20: older than the inbox remembers" in dry.out
        refused = await shop.begins("do")
        assert (refused.code, "refused 20: older" in refused.out) == (1, True), refused.err
        done = "SELECT count(*) FROM public.done"
        published = "SELECT count(*) FROM tidegate.outbox"
        assert await shop.count(done) + await shop.count(published) == 6
        forced = await shop.begins("do", "--force")
        assert (forced.code, "skipped 6: handled before" in forced.out) == (0, True), forced.err
        assert await shop.count(done) + await shop.count(published) == 26
