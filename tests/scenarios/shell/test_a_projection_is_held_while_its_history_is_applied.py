"""`tidegate backfill --hold` in processes of their own, with a live worker and live traffic beside them."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.backfill_shop import EVENTS, Shop, opened, produce
from tests.support.held_app import TABLES
from tidegate.inbox.points import AT

APP: Final = "tests.support.held_app:app"
ALL: Final = ("--from", "2026-03-01", "--to", "2100-01-01", "--hold")
HELD: Final = "SELECT count(*) FROM tidegate.checkpoint WHERE held IS NOT NULL"


@pytest.fixture
async def shop(tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic) -> AsyncIterator[Shop]:
    """Sixty events of two partitions and six keys, all handled, and the worker still there."""
    async with opened(tmp_path, kafka_bootstrap, database_url, topic, TABLES, APP) as shop:
        produce(shop.places, range(EVENTS))
        shop.works()
        await shop.until("SELECT count(*) FROM tidegate.claim_1", 2 * EVENTS)
        await shop.until("SELECT COALESCE(sum(kafka_offset), 0) FROM tidegate.fence", EVENTS)
        yield shop


async def begins(shop: Shop, *arguments: str, kill: str = "") -> int:
    """At forty events a second: ten in a chunk."""
    asked = (shop.places.consumer, "--handler", "last", *ALL, "--rate", "40", "--yes", "--reason", "an empty table")
    ended = await shop.types(*asked, *arguments, **({AT: kill} if kill else {}))
    assert ended.code in (0, -signal.SIGKILL), ended.err
    return ended.code


async def seen(shop: Shop) -> dict[str, list[int]]:
    """What the projection saw of each key, in its order."""
    found: dict[str, list[int]] = {}
    for row in await shop.db.fetch("SELECT id, n FROM public.seen ORDER BY place"):
        found.setdefault(row["id"], []).append(row["n"])
    return found


async def test_killed_at_every_turn_beside_live_traffic_it_keeps_the_order_of_every_key(shop: Shop) -> None:
    """Everything once more in its order, then what came meanwhile in its; the live command goes on all the time.

    Case: B39, B42
    Parts: real (Kafka, PostgreSQL)
    Red when: checkpoint.py moves checkpoints that are held, so that the live version goes on beside the backfill
    """
    assert await begins(shop, "--later") == 0
    assert await shop.count(HELD) == 2
    await shop.db.execute("DELETE FROM public.last")
    number = EVENTS
    for kill in ("claimed@last:2", "before_batch:1", "after_batch:2", "after_take:1"):
        produce(shop.places, range(number, number + 6))
        number += 6
        ended = await shop.types("resume", "1", **{AT: kill})
        assert ended.code == -signal.SIGKILL, (kill, ended.err)
        await shop.until("SELECT count(*) FROM public.done", number)
        assert await shop.count(HELD) == 2
        assert await shop.count("SELECT max(n) FROM public.seen") == EVENTS - 1
    ended = await shop.types("resume", "1")
    assert ended.code == 0, ended.err
    produce(shop.places, range(number, number + 6))
    number += 6
    await shop.until("SELECT count(*) FROM public.seen", EVENTS + number)
    before, after = range(EVENTS), range(EVENTS, number)
    for key in range(6):
        mine = [n for n in before if n % 6 == key]
        assert (await seen(shop))[f"k{key}"] == [*mine, *mine, *(n for n in after if n % 6 == key)]
    assert {row["id"]: row["n"] for row in await shop.db.fetch("SELECT * FROM public.last")} == {
        f"k{n % 6}": n for n in range(number - 6, number)
    }
    run = await shop.journal(1)
    assert [run[name] for name in ("read", "handled", "skipped", "refused", "failed")] == [EVENTS, EVENTS, 0, 0, 0]
    await shop.until("SELECT count(*) FROM public.done", number)
    assert await shop.count(HELD) == 0


async def test_one_that_is_abandoned_lets_go_and_says_what_may_be_wrong(shop: Shop) -> None:
    """Dry first, with a reason, in the audit; the live version goes on where it stood, and nobody resumes.

    Case: B39
    Parts: real (Kafka, PostgreSQL)
    Red when: oversight.py does not let go of what is held
    """
    assert await begins(shop, kill="after_batch:1") == -signal.SIGKILL
    assert (await shop.types("resume", "1", **{AT: "after_batch:1"})).code == -signal.SIGKILL
    dry = await shop.types("abandon", "1")
    assert (dry.code, "nothing was done" in dry.err, "holds its handler" in dry.err) == (0, True, True)
    assert await shop.count(HELD) == 2
    assert "--reason" in (await shop.types("abandon", "1", "--yes")).err
    ended = await shop.types("abandon", "1", "--yes", "--reason", "the table is made otherwise")
    assert ended.code == 0, ended.err
    assert "may hold older values" in " ".join(ended.err.split())
    assert await shop.count(HELD) == 0
    produce(shop.places, range(EVENTS, EVENTS + 6))
    await shop.until(f"SELECT count(*) FROM public.seen WHERE n >= {EVENTS}", 6)
    assert "was abandoned" in (await shop.types("resume", "1")).err
    assert (await shop.types("abandon", "1", "--yes", "--reason", "again")).code == 78
    listed = json.loads((await shop.types("list", "--json")).out)
    assert [(run["backfill"], bool(run["abandoned_at"]), run["ended_at"]) for run in listed] == [(1, True, None)]
    acts = await shop.db.fetch("SELECT act, details->>'why' AS why FROM tidegate.audit WHERE allowed ORDER BY id")
    assert [tuple(row) for row in acts] == [
        ("backfill", "an empty table"),
        ("abandon_backfill", "the table is made otherwise"),
    ]


async def test_what_cannot_be_held_is_refused_at_once(shop: Shop) -> None:
    consumer, yes = shop.places.consumer, ("--yes", "--reason", "a try")
    unguarded = await shop.types(consumer, "--handler", "last", *ALL[:-1], *yes)
    assert (unguarded.code, "--hold it until" in " ".join(unguarded.err.split())) == (78, True)
    early = await shop.types(
        consumer, "--handler", "last", "--from", "2026-03-01", "--to", "2026-03-01T12:00:10", "--hold", *yes
    )
    assert (early.code, "old values would come over it" in " ".join(early.err.split())) == (78, True)
    assert (await shop.types(consumer, "--handler", "do", *ALL, *yes)).code == 78
    assert await shop.count("SELECT count(*) FROM tidegate.backfill") == 0
    assert await shop.count(HELD) == 0
