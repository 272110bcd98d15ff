"""Commands with one effect each as a prototype does them, by hand: key lanes in memory, a ledger in two tables.

No Kafka, no codec, no fence, no checkpoints, no failures: what is left is the order within a key, the concurrency, and
what has to be durable: an intent before each call, its completion behind it, a claim for each command, all of them
written in groups. `python -m benchmarks.lane_prototype URL COUNT KEYS CONCURRENCY` prints its seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final, final

import asyncpg
import uvloop

from benchmarks.stand_in import call

TABLES: Final = """
    DROP SCHEMA IF EXISTS prototype CASCADE;
    CREATE SCHEMA prototype;
    CREATE TABLE prototype.inbox (event_id bytea PRIMARY KEY);
    CREATE TABLE prototype.effect (operation bytea PRIMARY KEY, state int NOT NULL DEFAULT 0)
"""
INTEND: Final = "INSERT INTO prototype.effect (operation) SELECT unnest($1::bytea[]) ON CONFLICT DO NOTHING"
COMPLETE: Final = "UPDATE prototype.effect SET state = 1 WHERE operation = ANY ($1::bytea[])"
CLAIM: Final = "INSERT INTO prototype.inbox SELECT unnest($1::bytea[]) ON CONFLICT DO NOTHING"

CLAIMS_EVERY_S: Final = 0.005
"""Claims wait for each other this long: nobody waits for them."""


@final
class Grouped:
    """One statement over one connection: whatever was asked for while it ran goes with the next one, in one commit."""

    def __init__(self, conn: asyncpg.Connection[Any], sql: str) -> None:
        self._conn = conn
        self._sql = sql
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self.commits = 0

    async def put(self, item: bytes) -> None:
        """Return once the item is durable."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        self._wake.set()
        await done

    async def run(self) -> None:
        """Write groups for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            group, self._waiting = self._waiting, []
            await self.write([item for item, _ in group])
            for _, done in group:
                done.set_result(None)

    async def write(self, items: Sequence[bytes]) -> None:
        """One commit."""
        await self._conn.execute(self._sql, items)
        self.commits += 1


@final
class Prototype:
    """Lanes by key; each worker takes a lane, handles its first command, and puts the lane behind the others."""

    def __init__(self, intend: Grouped, complete: Grouped, claim: Grouped) -> None:
        self._intend = intend
        self._complete = complete
        self._claim = claim
        self._lanes: asyncio.Queue[deque[bytes]] = asyncio.Queue()
        self._handled: list[bytes] = []
        self._running = True

    async def run(self, commands: Sequence[bytes], keys: int, concurrency: int) -> float:
        """Seconds until every command is handled and claimed."""
        lanes: defaultdict[int, deque[bytes]] = defaultdict(deque)
        for number, command in enumerate(commands):
            lanes[number % keys].append(command)
        for lane in lanes.values():
            self._lanes.put_nowait(lane)
        started = time.perf_counter()
        claiming = asyncio.create_task(self._claims())
        await asyncio.gather(*(self._work() for _ in range(concurrency)))
        self._running = False
        await claiming
        return time.perf_counter() - started

    async def _work(self) -> None:
        while not self._lanes.empty():
            lane = self._lanes.get_nowait()
            command = lane.popleft()
            await self._intend.put(command)
            await call(command.hex())
            await self._complete.put(command)
            self._handled.append(command)
            if lane:
                self._lanes.put_nowait(lane)

    async def _claims(self) -> None:
        while self._running or self._handled:
            group, self._handled = self._handled, []
            if group:
                await self._claim.write(group)
            await asyncio.sleep(CLAIMS_EVERY_S)


async def measure(url: str, count: int, keys: int, concurrency: int) -> tuple[float, int]:
    """Seconds and commits."""
    conns = [await asyncpg.connect(url) for _ in range(3)]
    await conns[0].execute(TABLES)
    parts = [Grouped(conn, sql) for conn, sql in zip(conns, (INTEND, COMPLETE, CLAIM), strict=True)]
    writing = [asyncio.create_task(part.run()) for part in parts]
    seconds = await Prototype(*parts).run([os.urandom(16) for _ in range(count)], keys, concurrency)
    for task in writing:
        task.cancel()
    for conn in conns:
        await conn.close()
    return seconds, sum(part.commits for part in parts)


def main() -> None:
    """Measure once and print the figure as JSON."""
    url, count, keys, concurrency = sys.argv[1], *map(int, sys.argv[2:5])
    cpu_before = time.process_time()
    seconds, commits = uvloop.run(measure(url, count, keys, concurrency))
    print(json.dumps({"seconds": seconds, "commits": commits, "cpu_s": time.process_time() - cpu_before}))


if __name__ == "__main__":
    main()
