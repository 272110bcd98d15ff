"""Commands of which some fail, beside the same number of which none does: what trouble costs those that have none.

1 % fail for good (a row and a letter each), 1 % at their first attempt, spread over 20,000 keys. The rate is counted
between a quarter and 95 % of the ends (`command_worker.STEADY`); both sides take turns, each behind a checkpoint.
`make bench BENCH=poison ARGS="--events 60000 --rounds 3"`
"""

from __future__ import annotations

import argparse
import statistics
import uuid

from benchmarks.command_worker import KEYS
from benchmarks.orders import seed
from benchmarks.report import report
from benchmarks.sides import side
from tests.services import database, kafka, postgres, topics
from tests.services.topics import Topic

GOALS = {"ratio": "at least 0.8"}
PARTITIONS = 4
ROUNDS = 9
"""One round beside another of the same kind differs by a tenth and more, however quiet the machine."""


def measure(url: str, bootstrap: str, name: str, events: int, rounds: int, topic: Topic) -> dict[str, list[float]]:
    """Both in turn, so that a machine that changes its speed changes it for both. The first round does not count: the
    broker's code is compiled in it.
    """
    rates: dict[str, list[float]] = {"plain": [], "poison": []}
    kinds = [*rates]
    for number in range(rounds + 1):
        for kind in kinds:
            database.execute(url, "DROP SCHEMA IF EXISTS tidegate CASCADE", "CHECKPOINT")
            consumer = f"bench-{uuid.uuid4().hex[:8]}"
            topic(1, name=f"{name}.{consumer}.dlq")
            figures = side("command_worker", kind, url, bootstrap, name, str(events), consumer)
            if number:
                rates[kind].append(figures["steady_per_s"])
        kinds.reverse()
    return rates


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=300_000)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(PARTITIONS)
        seed(bootstrap, name, given.events, keys=KEYS)
        rates = measure(url, bootstrap, name, given.events, given.rounds, topic)
    pairs = zip(rates["poison"], rates["plain"], strict=True)
    report(
        "poison",
        {
            "events_per_s": statistics.median(rates["poison"]),
            "plain_events_per_s": statistics.median(rates["plain"]),
            "ratio": statistics.median(poison / plain for poison, plain in pairs),
        },
        GOALS,
        {"events": given.events, "keys": KEYS, "rounds": rates},
    )


if __name__ == "__main__":
    main()
