"""Reads one read of a large backlog, pauses until the client has prefetched all that it may, reads the rest.

Prints the largest read and the growth of resident memory while paused, in bytes, and the number of records in all.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.support.kafka_desk import Desk, PlainIntake
from tidegate.consumers.client.config import ClientOptions
from tidegate.consumers.client.ports import Chunk
from tidegate.consumers.client.thread import KafkaThread
from tidegate.inbox.event import Partition

SETTLED_TURNS = 100


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Forgetful(Desk):
    """Counts what comes and keeps nothing."""

    largest = 0
    total = 0

    def delivered(self, chunk: Chunk) -> None:
        self.largest = max(self.largest, sum(part.taken.size_bytes for part in chunk.parts))
        self.total += sum(len(part.taken.events) for part in chunk.parts)
        super().delivered(Chunk(()))

    def assigned(self, partitions: Mapping[Partition, int]) -> None:
        super().assigned(partitions)


async def main(bootstrap: str, topic: str, budget: int) -> None:
    desk = Forgetful()
    options = ClientOptions(bootstrap, f"g-{uuid.uuid4().hex[:8]}", (topic,), window_bytes=budget)
    port = KafkaThread(options, PlainIntake(), desk)
    desk.port = port
    port.start()
    before = resident_bytes()
    await desk.until(lambda: desk.total > 0)
    port.pause(frozenset(desk.owned))
    for _ in range(SETTLED_TURNS):
        await port.committed(list(desk.owned))
    grown = resident_bytes() - before
    port.resume(frozenset(desk.owned))
    await desk.until(lambda: desk.total >= 1_600, "the whole backlog")
    grown = max(grown, resident_bytes() - before)
    await port.stop(10)
    print(desk.largest, grown, desk.total)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
