"""10,000 commands with one effect each, beside a prototype written by hand, in one run on the same database.

The stand-in takes 0 to 5 ms a call. 1,000 keys, one partition, 100 at a time. Both keep the order within a key, write
an intent before each call and its completion behind it, and claim each command.
`make bench BENCH=effects ARGS="--events 10000 --rounds 21"`

What is measured is the steady state of a server that has run for a while, for both sides alike. One that was just made
has no WAL segments to write into: it makes each of 16 MB in the middle of what is measured, and whoever commits
meanwhile waits 30 to 45 ms for it (`WALInitWrite`), more often the more the side writes. So segments for all rounds are
made and recycled before the first one. The broker's virtual machine compiles its code during the first rounds, which
only one side would pay for. So three rounds do not count. And the sides take turns in beginning a round: what one of
them leaves behind for the server to do falls to the other one as often as to itself.
"""

from __future__ import annotations

import argparse
import math
import statistics

from benchmarks.command_worker import CONCURRENCY
from benchmarks.orders import seed
from benchmarks.report import report
from benchmarks.sides import side
from tests.services import database, kafka, postgres, topics

GOALS = {"ratio_prototype": "at most 1.7", "seconds": "0.8"}
KEYS = 1_000

WARM_ROUNDS = 3
"""Rounds that do not count."""

ROUNDS = 21
"""Of two rounds one behind the other one may take a fifth more, and a machine's slow minute lasts several: the medians
of five were 1.6 and 2.0 within as many minutes.
"""

SEGMENT_MB = 16
"""PostgreSQL's default."""

NEXT_SEGMENT = ("SELECT pg_logical_emit_message(true, 'bench', '')", "SELECT pg_switch_wal()")
"""A segment in which nothing was written is not left."""

SEGMENTS_PER_10_000 = 2
"""Written by both sides together in a round of 10,000 events, rounded up: 22 MB were seen."""

WAL_MB_MAX = 4_096
"""No checkpoint begins by itself while this much has not been written: none falls into one side's time alone."""


def segments_for(events: int, rounds: int) -> int:
    """How many WAL segments both sides write into in so many rounds."""
    return math.ceil(SEGMENTS_PER_10_000 * events / 10_000) * (WARM_ROUNDS + rounds)


def make_segments(url: str, segments: int) -> None:
    """Have so many written, and by a checkpoint recycled: they stand ready under the names of those to come.

    A server that was given, and not started for this, keeps as many as its own `min_wal_size` says.
    """
    database.execute(url, *(NEXT_SEGMENT * segments), "CHECKPOINT")


def measure(url: str, bootstrap: str, topic: str, events: int, rounds: int) -> dict[str, list[float]]:
    """Both in turn, so that a machine that changes its speed changes it for both."""

    def prototype() -> float:
        return side("lane_prototype", url, str(events), str(KEYS), str(CONCURRENCY))["seconds"]

    def effects() -> float:
        database.execute(url, "DROP SCHEMA IF EXISTS tidegate CASCADE")
        return side("command_worker", "effects", url, bootstrap, topic, str(events))["seconds"]

    sides = {"prototype": prototype, "effects": effects}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARM_ROUNDS + rounds):
        for name in sorted(sides, reverse=number % 2 == 0):
            took_s = sides[name]()
            if number >= WARM_ROUNDS:
                seconds[name].append(took_s)
    return seconds


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    segments = segments_for(given.events, given.rounds)
    wal_mb = segments * SEGMENT_MB
    wal = {"min_wal_size": f"{wal_mb + SEGMENT_MB}MB", "max_wal_size": f"{max(WAL_MB_MAX, 2 * wal_mb)}MB"}
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True, settings=wal) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(1)
        seed(bootstrap, name, given.events, keys=KEYS)
        make_segments(url, segments)
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
