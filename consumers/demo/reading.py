"""Looks at the database and the topics as they are: nothing that the demo shows comes from the worker's own account."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any, Final, cast, final

import asyncpg
import fastavro
from confluent_kafka import Message

from ...dlq.letter import dead_letter_topic
from ...dlq.letter_headers import PREFIX, REPLAY_COMMAND
from ..codecs import framing
from ..worker.publishing import MESSAGE_ID
from .cluster import Cluster
from .facts import Facts

ORDERS: Final = "shop.orders"
INVOICES: Final = "shop.invoices"
SCHEMAS: Final = Path(__file__).with_name("schemas")
SENT: Final = fastavro.parse_schema(json.loads((SCHEMAS / "3-invoice-sent.avsc").read_text("utf-8")))
LETTERS: Final = dead_letter_topic(ORDERS, "billing")

REASON: Final = f"{PREFIX}reason"
LETTER_ID: Final = f"{PREFIX}dead-letter-id"

REVENUE: Final = "SELECT tenant, day, orders, cents FROM revenue_by_day"
INVOICED: Final = "SELECT order_id FROM invoice ORDER BY order_id"
DEAD: Final = "SELECT reason FROM tidegate.failure WHERE state = 'dead' ORDER BY reason"

REPEATS: Final = """
SELECT h.name, r.records - c.claims - f.failures AS repeats
FROM tidegate.handler h,
  LATERAL (SELECT coalesce(sum(next_offset), 0)::int AS records FROM tidegate.checkpoint WHERE handler = h.id) r,
  LATERAL (SELECT count(*)::int AS claims FROM tidegate.claim_1 WHERE handler = h.id) c,
  LATERAL (SELECT count(*)::int AS failures FROM tidegate.failure f JOIN tidegate.handler o ON o.id = f.handler
           WHERE (o.id = h.id OR o.name = '') AND f.state <> 'linked') f
WHERE h.name <> ''
"""
"""What a handler is past, without what it claimed and without what stands in the failure table: that was a repeat. (A
position counts records here, because the mock cluster leaves no gaps.)"""

BEHIND: Final = """
SELECT (SELECT coalesce(min(n), 0)::int FROM (SELECT sum(next_offset) AS n FROM tidegate.checkpoint c
          JOIN tidegate.handler h ON h.id = c.handler WHERE h.name <> '' GROUP BY c.handler) handlers) AS records,
       (SELECT count(*)::int FROM tidegate.outbox WHERE published_at IS NULL) AS unpublished,
       (SELECT count(*)::int FROM tidegate.failure WHERE state = 'queued') AS queued
"""


@final
class Reader:
    """One connection of its own, and the cluster's topics."""

    def __init__(self, url: str, cluster: Cluster) -> None:
        self._runner = asyncio.Runner()
        self._db: Any = self._runner.run(asyncpg.connect(url))
        self._cluster = cluster

    def close(self) -> None:
        """Give the connection back."""
        self._runner.run(self._db.close())
        self._runner.close()

    def execute(self, script: Path) -> None:
        """Run an SQL file."""
        self._runner.run(self._db.execute(script.read_text("utf-8")))

    def done(self, records: int) -> bool:
        """Whether every handler is past so many records, and nothing waits in queue and outbox."""
        row = self._row(BEHIND)
        return (row["records"], row["unpublished"], row["queued"]) == (records, 0, 0)

    def invoices(self) -> int:
        """How many there are in the shop's table."""
        return self._row("SELECT count(*) AS invoices FROM invoice")["invoices"]

    def facts(self) -> Facts:
        """Everything, now."""
        revenue = self._rows(REVENUE)
        return Facts(
            revenue={(row["tenant"], row["day"]): (row["orders"], row["cents"]) for row in revenue},
            invoices=tuple(row["order_id"] for row in self._rows(INVOICED)),
            published=tuple(sorted(_order_of(message) for message in self._once(INVOICES, MESSAGE_ID))),
            repeats={row["name"]: row["repeats"] for row in self._rows(REPEATS)},
            dead=tuple(row["reason"] for row in self._rows(DEAD)),
            letters=tuple(sorted(_header(letter, REASON) for letter in self._once(LETTERS, LETTER_ID))),
        )

    def replay_command(self, reason: str) -> str:
        """The command line that the first letter of `reason` carries."""
        letters = [letter for letter in self._cluster.read(LETTERS) if _header(letter, REASON) == reason]
        return _header(letters[0], REPLAY_COMMAND)

    def _once(self, topic: str, name: str) -> list[Message]:
        """The topic's records, by the id in a header: after a kill -9 one may be there twice, under the same id."""
        return list({_header(message, name): message for message in self._cluster.read(topic)}.values())

    def _row(self, query: str) -> Any:
        return self._runner.run(self._db.fetchrow(query))

    def _rows(self, query: str) -> Any:
        return self._runner.run(self._db.fetch(query))


def _header(message: Message, name: str) -> str:
    found = [value for key, value in message.headers() or [] if key == name]
    return cast(bytes, found[-1]).decode()


def _order_of(message: Message) -> str:
    """The order that an InvoiceSent is about."""
    body = io.BytesIO((message.value() or b"")[framing.PREFIX_BYTES :])
    return cast("dict[str, str]", fastavro.schemaless_reader(body, SENT, None))["order_id"]
