"""The loops that a good engineer would write by hand: what tidegate is measured against."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
import uuid
from typing import Any

import asyncpg
import fastavro
from confluent_kafka import Consumer, Message

from benchmarks.orders import ID_HEADER, SCHEMA

TABLES = """
    DROP TABLE IF EXISTS public.hand_inbox, public.hand_sums;
    CREATE TABLE public.hand_inbox (consumer text, handler text, event_id uuid, processed_at timestamptz DEFAULT now(),
                             PRIMARY KEY (consumer, handler, event_id));
    CREATE TABLE public.hand_sums (customer text PRIMARY KEY, total bigint, n bigint)
"""

CLAIMS = """
    INSERT INTO public.hand_inbox (consumer, handler, event_id)
    SELECT 'g', 'h', e FROM unnest($1::uuid[]) u (e) ON CONFLICT DO NOTHING RETURNING event_id
"""

SUMS = """
    INSERT INTO public.hand_sums SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])
    ON CONFLICT (customer) DO UPDATE SET total = hand_sums.total + excluded.total, n = hand_sums.n + excluded.n
"""


def consumer(bootstrap: str, topic: str) -> Consumer:
    """A consumer of its own group, from the start."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"hand-{uuid.uuid4()}",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    made = Consumer(config)
    made.subscribe([topic])
    return made


def decoded(message: Message) -> tuple[str, dict[str, Any]]:
    """Event id and value."""
    value, headers = message.value(), message.headers()
    assert value is not None
    assert headers is not None
    event_id = next(found for name, found in headers if name == ID_HEADER)
    assert isinstance(event_id, bytes)
    order: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), SCHEMA, None)
    return event_id.decode(), order


async def batched(url: str, bootstrap: str, topic: str, count: int, size: int) -> float:
    """Consume, decode, one insert into an inbox and one upsert in a transaction, commit. Events a second."""
    conn: Any = await asyncpg.connect(url)
    await conn.execute(TABLES)
    client, done, started = consumer(bootstrap, topic), 0, 0.0
    while done < count:
        messages = [message for message in client.consume(size, 0.2) if message.error() is None]
        if not messages:
            continue
        started = started or time.perf_counter()
        pairs = [decoded(message) for message in messages]
        async with conn.transaction():
            await conn.fetch(CLAIMS, [event_id for event_id, _ in pairs])
            sums: dict[str, list[int]] = {}
            for _, order in pairs:
                entry = sums.setdefault(order["customer"], [0, 0])
                entry[0] += order["amount"]
                entry[1] += 1
            names = sorted(sums)
            await conn.execute(SUMS, names, [sums[name][0] for name in names], [sums[name][1] for name in names])
        client.commit(asynchronous=True)
        done += len(messages)
    seconds = time.perf_counter() - started
    await _check(conn, done)
    client.close()
    await conn.close()
    return done / seconds


async def per_event(url: str, bootstrap: str, topic: str, count: int) -> float:
    """One transaction for each event, as most consumers are written. Events a second."""
    conn: Any = await asyncpg.connect(url)
    await conn.execute(TABLES)
    client, done, started = consumer(bootstrap, topic), 0, 0.0
    while done < count:
        message = client.poll(0.2)
        if message is None or message.error() is not None:
            continue
        started = started or time.perf_counter()
        event_id, order = decoded(message)
        async with conn.transaction():
            if await conn.fetch(CLAIMS, [event_id]):
                await conn.execute(SUMS, [order["customer"]], [order["amount"]], [1])
        client.commit(message=message, asynchronous=True)
        done += 1
    seconds = time.perf_counter() - started
    await _check(conn, done)
    client.close()
    await conn.close()
    return done / seconds


async def _check(conn: Any, done: int) -> None:
    counted = await conn.fetchval("SELECT sum(n) FROM public.hand_sums")
    assert counted == done, f"{counted} events in the sums, {done} read"


def main() -> None:
    """Arguments: `batched` or `per_event`, URL, BOOTSTRAP, TOPIC, COUNT."""
    kind, url, bootstrap, topic, count = sys.argv[1:6]
    if kind == "batched":
        rate = asyncio.run(batched(url, bootstrap, topic, int(count), 2_000))
    else:
        rate = asyncio.run(per_event(url, bootstrap, topic, int(count)))
    print(json.dumps({"events_per_s": rate}))


if __name__ == "__main__":
    main()
