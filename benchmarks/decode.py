"""Time to make one event of one record, beside fastavro's own reader: `make bench BENCH=decode`. No servers needed.

Thread time of this thread, so that what else the machine does counts little; the best of several rounds on each side,
taken in turns.
"""

from __future__ import annotations

import io
import random
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import fastavro

from benchmarks.orders import FRAME, SCHEMA, SCHEMAS, OrderPlaced, encoded
from benchmarks.report import report
from tidegate.consumers import Avro
from tidegate.consumers.codecs.codec import CodecSettings
from tidegate.inbox.event import Record

RECORDS = 20_000
ROUNDS = 15
GOALS = {"class_us_per_record": "about fastavro's"}


def records() -> list[Record]:
    """Orders, as they come from Kafka."""
    chance, at = random.Random(1), datetime.now(UTC)
    ids = (str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(RECORDS))
    return [Record("orders", 0, n, b"k", encoded(n, event_id, at), ()) for n, event_id in enumerate(ids)]


def main() -> None:
    """Measure and report."""
    taken, settings = records(), CodecSettings(registry=(str(SCHEMAS),))
    mapped, plain = Avro(types=[OrderPlaced]).open(settings), Avro().open(settings)
    values = [record.value or b"" for record in taken]
    sides: dict[str, Callable[[], object]] = {
        "class_us_per_record": lambda: mapped.decode_many(taken),
        "dict_us_per_record": lambda: plain.decode_many(taken),
        "fastavro_us_per_record": lambda: [
            fastavro.schemaless_reader(io.BytesIO(value[len(FRAME) :]), SCHEMA, None) for value in values
        ],
    }
    figures = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, read in sides.items():
            began_s = time.thread_time()
            read()
            figures[name] = min(figures[name], (time.thread_time() - began_s) / RECORDS * 1e6)
    report("decode", figures, GOALS, {"records": RECORDS, "rounds": ROUNDS})


if __name__ == "__main__":
    main()
