"""Reads a window's records by the second reader: chunk by chunk, to an end that was fixed before the first one.

What counts is the position, never the last offset that was seen: behind it there may be transaction markers only, or
what compaction left out. What if retention takes records of the window meanwhile? They are counted, and reading goes on
where the log begins now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

import structlog

from ...inbox.errors import TransientError
from ...inbox.event import Partition, Record
from ..client.ports import Intake, ReaderPort, Rejected, Taken

log = structlog.get_logger(__name__)

AGAIN_S: Final = 0.5
"""Between two asks of a broker that does not answer."""

EPOCH: Final = 1
"""Nobody takes an assignment away that was made by hand."""


class Watermarks(Protocol):
    """Where a partition's log begins and ends."""

    def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Low watermark and last stable offset of each. Blocks; raises TransientError."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """Records from `offset` to below `next_offset`; `gone` of them retention took before they were read."""

    partition: Partition
    offset: int
    next_offset: int
    records: Sequence[Record]
    taken: Taken
    gone: int = 0


@final
class WindowReader:
    """Owned by the event loop."""

    def __init__(
        self, reader: ReaderPort, intake: Intake, cluster: Watermarks, wait_for: Callable[[str], Awaitable[None]]
    ) -> None:
        self._reader = reader
        self._intake = intake
        self._cluster = cluster
        self._wait_for = wait_for

    async def chunk(self, partition: Partition, offset: int, end: int, records_max: int, *, whole: bool) -> Chunk:
        """The records from `offset` on, decoded: at most `records_max`, or up to `end` where the `whole` is asked for.

        Waits as long as broker or schema registry are away.
        """
        records: list[Record] = []
        position = offset
        gone = 0
        while position < end:
            found, behind, lost = await self._read(partition, position, end, records_max)
            records += found
            position, gone = behind, gone + lost
            if records and not whole:
                break
        return Chunk(partition, offset, position, records, await self._take(partition, records), gone)

    async def _read(
        self, partition: Partition, offset: int, end: int, records_max: int
    ) -> tuple[list[Record], int, int]:
        """Records below `end`, the position behind them, and how many offsets are gone."""
        while True:
            try:
                stretch = await self._reader.read(partition, offset, records_max)
            except TransientError as error:
                low = await self._low(partition)
                if low is not None and low > offset:
                    log.warning("backfill_gap", partition=str(partition), offset=offset, low=low)
                    return [], min(low, end), min(low, end) - offset
                log.warning("backfill_waits", partition=str(partition), why=str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            records = [record for record in stretch.records if record.offset < end]
            return records, end if stretch.at_end else min(stretch.next_offset, end), 0

    async def _low(self, partition: Partition) -> int | None:
        try:
            return (await asyncio.to_thread(self._cluster.watermarks, [partition]))[partition][0]
        except TransientError:
            return None

    async def _take(self, partition: Partition, records: list[Record]) -> Taken:
        """All of them, however long a dependency is away."""
        parts: list[Taken] = []
        left = records
        while left:
            taken = await asyncio.to_thread(self._intake.take, partition, EPOCH, left)
            parts.append(taken)
            if taken.stall is None:
                break
            left = [record for record in left if taken.stalled_at is not None and record.offset >= taken.stalled_at]
            await self._wait_for(taken.stall.dependency)
        return parts[0] if len(parts) == 1 else _together(parts)


def _together(parts: Sequence[Taken]) -> Taken:
    events = tuple(event for part in parts for event in part.events)
    rejects: tuple[Rejected, ...] = tuple(reject for part in parts for reject in part.rejects)
    lanes: dict[str, tuple[int, ...]] = {}
    before = 0
    for part in parts:
        for name, indexes in part.lanes.items():
            lanes[name] = (*lanes.get(name, ()), *(before + index for index in indexes))
        before += len(part.events)
    return Taken(events, rejects, lanes)
