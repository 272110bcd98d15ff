"""How many events a second one process takes, beside the loops written by hand, in one run on the same broker.

`make bench BENCH=throughput ARGS="--events 200000 --rounds 3"`
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.orders import PARTITIONS, seed
from benchmarks.report import report
from benchmarks.sides import side
from benchmarks.worker import TABLES
from tests.services import database, kafka, postgres, topics

GOALS = {
    "ratio_floor": "1.8 (below 1.4 is not done)",
    "ratio_per_event": "20",
}
PER_EVENT_COUNT = 5_000


def measure(url: str, bootstrap: str, topic: str, events: int, rounds: int) -> dict[str, list[float]]:
    """Both sides in turn, so that a machine that changes its speed changes it for both."""
    rates: dict[str, list[float]] = {"floor": [], "worker": [], "per_event": []}
    for _ in range(rounds):
        rates["floor"].append(side("floor", "batched", url, bootstrap, topic, str(events))["events_per_s"])
        database.execute(url, "TRUNCATE public.sums", "DROP SCHEMA IF EXISTS tidegate CASCADE")
        rates["worker"].append(side("worker", url, bootstrap, topic, str(events))["events_per_s"])
        rates["per_event"].append(
            side("floor", "per_event", url, bootstrap, topic, str(PER_EVENT_COUNT))["events_per_s"]
        )
    return rates


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(PARTITIONS)
        seed(bootstrap, name, given.events)
        database.execute(url, TABLES)
        rates = measure(url, bootstrap, name, given.events, given.rounds)
    middle = {side_name: statistics.median(values) for side_name, values in rates.items()}
    pairs = zip(rates["worker"], rates["floor"], rates["per_event"], strict=True)
    ratios = [(ours / floor, ours / single) for ours, floor, single in pairs]
    report(
        "throughput",
        {
            "events_per_s": middle["worker"],
            "floor_events_per_s": middle["floor"],
            "per_event_events_per_s": middle["per_event"],
            "ratio_floor": statistics.median(ratio for ratio, _ in ratios),
            "ratio_per_event": statistics.median(ratio for _, ratio in ratios),
        },
        GOALS,
        {"events": given.events, "rounds": rates},
    )


if __name__ == "__main__":
    main()
