"""10,000 commands with one effect each, beside a prototype written by hand, in one run on the same database.

The stand-in takes 0 to 5 ms a call. 1,000 keys, one partition, 100 at a time. Both keep the order within a key, write
an intent before each call and its completion behind it, and claim each command.
`make bench BENCH=effects ARGS="--events 10000 --rounds 3"`
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.command_worker import CONCURRENCY
from benchmarks.orders import seed
from benchmarks.report import report
from benchmarks.sides import side
from tests.services import database, kafka, postgres, topics

GOALS = {"ratio_prototype": "at most 1.7", "seconds": "0.8"}
KEYS = 1_000


def measure(url: str, bootstrap: str, topic: str, events: int, rounds: int) -> dict[str, list[float]]:
    """Both in turn, so that a machine that changes its speed changes it for both.

    The first round does not count: a server that was just made has no WAL segments to write into, and makes each one.
    """
    seconds: dict[str, list[float]] = {"prototype": [], "effects": []}
    for number in range(rounds + 1):
        prototype = side("lane_prototype", url, str(events), str(KEYS), str(CONCURRENCY))
        database.execute(url, "DROP SCHEMA IF EXISTS tidegate CASCADE")
        effects = side("command_worker", "effects", url, bootstrap, topic, str(events))
        if number:
            seconds["prototype"].append(prototype["seconds"])
            seconds["effects"].append(effects["seconds"])
        else:
            database.execute(url, "CHECKPOINT")
    return seconds


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(1)
        seed(bootstrap, name, given.events, keys=KEYS)
        seconds = measure(url, bootstrap, name, given.events, given.rounds)
    pairs = zip(seconds["effects"], seconds["prototype"], strict=True)
    report(
        "effects",
        {
            "seconds": statistics.median(seconds["effects"]),
            "prototype_seconds": statistics.median(seconds["prototype"]),
            "ratio_prototype": statistics.median(ours / theirs for ours, theirs in pairs),
        },
        GOALS,
        {"events": given.events, "keys": KEYS, "concurrency": CONCURRENCY, "rounds": seconds},
    )


if __name__ == "__main__":
    main()
