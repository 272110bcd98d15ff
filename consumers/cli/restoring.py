"""`tidegate restored`: the operator's word that the database was put back to an earlier copy, and may go on from there.

1. The bound of each partition is its end at this moment: below it a missing row proves nothing (`inbox.restored`).
2. What Kafka has as committed is taken over into the fence rows, which are behind it: that was the alarm. Checkpoints
   stay where the copy has them, so the records behind them are read again; claims that the copy has hold them back.
3. Both, and the audit line, in one transaction.
"""

from __future__ import annotations

import asyncio

from rich.table import Table

from ...dlq import declaring
from ...dlq.declaring import Declaration
from .access import Access, open_gate
from .cluster import Cluster
from .options import OUT


async def look(access: Access, consumer: str) -> list[Declaration]:
    """What would be declared now. Raises ConfigurationError for a consumer that neither the database nor Kafka knows.

    One that only Kafka knows is a group that another program used, or one that is younger than the copy.
    """
    async with open_gate(access, "restored") as gate:
        await declaring.ask_restored(gate, consumer)
        cluster = Cluster(access.settings)
        committed = await asyncio.to_thread(cluster.committed, consumer)
        fences = await declaring.fences(gate, consumer, anyway=bool(committed))
    topics = sorted({partition.topic for partition in (*fences, *committed)})
    return [
        Declaration(partition, committed.get(partition), fences.get(partition), end)
        for partition, (_, end) in sorted(cluster.ends(topics).items())
    ]


async def declare(access: Access, consumer: str, declarations: list[Declaration], reason: str) -> None:
    """Write it down."""
    async with open_gate(access, "restored") as gate:
        await declaring.restored(gate, consumer, declarations, reason)


def show(consumer: str, declarations: list[Declaration]) -> None:
    """The table that the operator says yes to."""
    table = Table(
        "partition", "committed to Kafka", "as the database has it", "end (the bound)", box=None, pad_edge=False
    )
    for d in declarations:
        table.add_row(str(d.partition), _number(d.kafka_offset), _number(d.fence_offset), str(d.until_offset))
    OUT.print(
        f"consumer {consumer}: up to these ends a missing row will prove nothing, and what the copy does not know"
    )
    OUT.print("is read again (what it has claimed stays claimed):")
    OUT.print(table)


def _number(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
