"""The stream that the benchmarks read: orders in Avro, five fields, string ids."""

from __future__ import annotations

import io
import json
import random
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import fastavro
from confluent_kafka import Producer

SCHEMAS: Final = Path(__file__).parent / "schemas"
SCHEMA: Final[Any] = fastavro.parse_schema(json.loads((SCHEMAS / "1-order-placed.avsc").read_text()))
FRAME: Final = b"\0\0\0\0\1"
CUSTOMERS: Final = 1_000
ID_HEADER: Final = "event-id"
PARTITIONS: Final = 4


@dataclass(slots=True)
class OrderPlaced:
    """An order, as the projection sees it."""

    event_id: str
    order_id: str
    customer: str
    amount: int
    at: datetime


def encoded(number: int, event_id: str, at: datetime) -> bytes:
    """One framed order."""
    out = io.BytesIO()
    out.write(FRAME)
    order = {"event_id": event_id, "order_id": f"o{number % 5_000}", "customer": f"c{number % CUSTOMERS}"}
    fastavro.schemaless_writer(out, SCHEMA, {**order, "amount": number, "at": at})
    return out.getvalue()


KEYS: Final = 5_000


def seed(bootstrap: str, topic: str, count: int, seed_number: int = 1, keys: int = KEYS) -> None:
    """Produce `count` orders under `keys` keys, which take turns."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    chance, at = random.Random(seed_number), datetime.now(UTC)
    for number in range(count):
        event_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        value = encoded(number, event_id, at)
        headers: list[tuple[str, str | bytes | None]] = [(ID_HEADER, event_id.encode())]
        producer.produce(topic, key=f"o{number % keys}", value=value, headers=headers)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()
