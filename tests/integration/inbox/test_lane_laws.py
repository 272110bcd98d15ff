"""Whatever is done to rows, in whatever order and by how many at once: lanes say what a full count of the rows says."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, final

import pytest
import sqlalchemy as sa

from tidegate.inbox import failure, lanes
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failure import Seen
from tidegate.inbox.failure_rows import NewFailure, Place, Verdict, dead, queued, unknown
from tidegate.inbox.identity import digest16, key_hash16
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.states import Act
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
HANDLERS = (7, 8)
GONE = 9
TOPICS = ("orders", "Returns")
PARTITIONS = 6
KEYS = (b"a", b"b", b"c", b"", None)
WHY = Verdict("rejected", "no")

Row = sa.RowMapping


@final
class Crowd:
    """Does random acts in transactions of their own, now and then several at once, now and then rolled back."""

    def __init__(self, db: Database, t: Tables, seed: int) -> None:
        self.db = db
        self.t = t
        self.random = random.Random(seed)
        self.offset = 0
        self.history: list[str] = []

    def new(self) -> NewFailure:
        pick = self.random
        self.offset += 1
        record = Record(pick.choice(TOPICS), pick.randrange(PARTITIONS), self.offset, pick.choice(KEYS), b"v")
        event = Event("v", record, event_id=digest16(b"t", b"%d" % self.offset), id_text=str(self.offset))
        place = Place(pick.choice((*HANDLERS, GONE)), pick.randrange(2), 0)
        alone = pick.random() < 0.2
        due = NOW + datetime.timedelta(seconds=pick.randrange(-50, 50))
        made: list[Callable[[], NewFailure]] = [
            lambda: queued(place, event, WHY, due=due, attempts=1, now=NOW, alone=alone),
            lambda: unknown(place, event, WHY, attempts=1, now=NOW, alone=alone),
            lambda: dead(place, event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW, alone=alone),
            lambda: dead(place, event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW, alone=alone, holds=True),
        ]
        return pick.choices(made, (6, 2, 1, 2))[0]()

    async def rows(self) -> list[Row]:
        async with self.db.transaction() as conn:
            return list((await conn.execute(sa.select(self.t.failure))).mappings())

    async def act(self, row: Row | None) -> None:
        """One act on one row or several, or new rows; a third of the acts name a version that is out of date."""
        pick = self.random
        name = pick.choice(("put", "complete", "bury", "hold", "review", "postpone", "replay", "resolve", "discard"))
        seen = [] if row is None else [(row["id"], row["row_version"] - (pick.random() < 0.1))]
        news = [self.new() for _ in range(pick.randrange(1, 5))]
        broken = pick.random() < 0.1
        due = NOW + datetime.timedelta(seconds=pick.randrange(-50, 50))
        self.history.append(f"{name} {seen}{' rolled back' if broken else ''}")
        async with self.db.transaction() as conn:
            await self._do(name, seen, news, due, conn)
            if broken:
                await conn.rollback()

    async def _do(self, name: str, seen: list[Seen], news: list[NewFailure], due: datetime.datetime, conn: Any) -> None:
        if name == "put":
            await failure.put(conn, self.t, [*news, news[0]])
        elif seen:
            acts: dict[str, Callable[[], Awaitable[object]]] = {
                "complete": lambda: failure.complete(conn, self.t, seen),
                "bury": lambda: failure.bury(conn, self.t, seen[0], WHY, attempts=2, now=NOW),
                "hold": lambda: failure.bury(conn, self.t, seen[0], WHY, attempts=2, now=NOW, holds=True),
                "review": lambda: failure.review(conn, self.t, seen[0], WHY, attempts=2, now=NOW, effect_id=1),
                "postpone": lambda: failure.postpone(conn, self.t, seen[0], WHY, due=due, attempts=2, now=NOW),
                "replay": lambda: failure.requeue(conn, self.t, seen, due),
                "resolve": lambda: failure.requeue(conn, self.t, seen, due, Act.RESOLVE),
                "discard": lambda: failure.discard(conn, self.t, seen),
            }
            await acts[name]()

    async def several(self) -> None:
        """Some acts at once, on rows chosen beforehand, so that two may mean the same one."""
        rows = await self.rows()
        chosen = [self.random.choice(rows) if rows else None for _ in range(self.random.choice((1, 1, 4)))]
        await asyncio.gather(*[self.act(row) for row in chosen])


def lane_of(row: Row) -> lanes.LaneKey:
    return (row["handler"], row["topic"], row["lane"])


def waits(row: Row) -> bool:
    return row["state"] in {"queued", "unknown"} or bool(row["holds"])


def counted(rows: list[Row]) -> dict[lanes.LaneKey, tuple[Any, ...]]:
    """What each lane must say, by its rows: how many hold it, and the first one's place, due time and home."""
    holding: defaultdict[lanes.LaneKey, list[Row]] = defaultdict(list)
    for row in rows:
        if not row["alone"] and waits(row):
            holding[lane_of(row)].append(row)
    found: dict[lanes.LaneKey, tuple[Any, ...]] = {}
    for lane, held in holding.items():
        head = min(held, key=lambda row: row["seq"])
        home = (head["home_topic"], head["home_partition"]) if head["due"] is not None else (None, None)
        found[lane] = (len(held), head["seq"], head["due"], *home)
    return found


async def told(crowd: Crowd) -> dict[lanes.LaneKey, tuple[Any, ...]]:
    async with crowd.db.transaction() as conn:
        rows = (await conn.execute(sa.select(crowd.t.parked_key))).mappings().all()
    said = ("waiting", "head_seq", "head_due", "head_home_topic", "head_home_partition")
    every = {(row["handler"], row["topic"], row["key_hash"]): tuple(row[name] for name in said) for row in rows}
    assert all(values == (0, None, None, None, None) for values in every.values() if values[0] == 0)
    return {lane: values for lane, values in every.items() if values[0]}


def pickable(rows: list[Row], homes: set[Partition], counts: dict[str, int], busy: list[int]) -> set[int]:
    """What may be taken up, by all rows."""
    taken = {lane_of(row) for row in rows if row["id"] in busy}
    heads = {(lane, values[1]) for lane, values in counted(rows).items()}
    return {
        row["id"]
        for row in rows
        if row["state"] == "queued"
        and row["due"] <= NOW
        and row["handler"] in HANDLERS
        and Partition(row["home_topic"], row["home_partition"] % counts.get(row["home_topic"], 1_000)) in homes
        and (row["alone"] or (lane_of(row), row["seq"]) in heads)
        and lane_of(row) not in taken
    }


async def picked(crowd: Crowd, homes: set[Partition], counts: dict[str, int], busy: list[int]) -> set[int]:
    async with crowd.db.transaction() as conn:
        rows = await failure.pick(conn, crowd.t, HANDLERS, homes, counts, NOW, 1_000, busy)
    assert [row.id for row in rows] == [row.id for row in sorted(rows, key=lambda row: (row.due or NOW, row.id))]
    return {row.id for row in rows}


@pytest.mark.parametrize("seed", range(6))
async def test_lanes_say_what_a_full_count_of_their_rows_says(db: Database, t: Tables, seed: int) -> None:
    crowd = Crowd(db, t, seed)
    all_keys = {(h, topic, key_hash16(key)) for h in (*HANDLERS, GONE) for topic in TOPICS for key in KEYS if key}
    for _ in range(60):
        await crowd.several()
        rows = await crowd.rows()
        expected = counted(rows)
        history = crowd.history[-8:]
        assert await told(crowd) == expected, history
        homes = {Partition(topic, n) for topic in TOPICS for n in range(PARTITIONS) if crowd.random.random() < 0.5}
        counts = crowd.random.choice(({}, {"orders": 4}, {"orders": 4, "Returns": 1}))
        busy = [row["id"] for row in rows if crowd.random.random() < 0.1]
        assert await picked(crowd, homes, counts, busy) == pickable(rows, homes, counts, busy), history
        async with db.transaction() as conn:
            assert await lanes.parked(conn, t, all_keys) == expected.keys() & all_keys, history
            in_lanes = await lanes.waiting_in(conn, t, all_keys)
            assert in_lanes == {lane: values[0] for lane, values in expected.items() if lane in all_keys}, history
            lonely = [row["handler"] for row in rows if row["alone"] and row["state"] == "queued"]
            everyone = {h: lonely.count(h) + sum(v[0] for k, v in expected.items() if k[0] == h) for h in HANDLERS}
            assert await lanes.waiting(conn, t, HANDLERS) == {h: n for h, n in everyone.items() if n}, history
