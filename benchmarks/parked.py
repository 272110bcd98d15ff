"""A million parked events beside none: what they cost the other keys, and how soon a worker with them reads.

The rows are written once, straight into the tables of one of two databases, as events of 1,000 keys whose first one
waits for a retry that is not due yet. Both sides take turns, each round under another consumer's name, in which the
database has handled nothing yet. The rate is counted between a quarter and 95 % of the ends: what the start costs is
told by `start_s`, and what was decoded while the worker still read about the million is not to count for it. The
million is vacuumed and analysed, and each round begins behind a checkpoint: elsewhere it has stood for a while.
`make bench BENCH=parked ARGS="--parked 1000000 --events 100000 --rounds 5"`
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid

from benchmarks.command_worker import HANDLER
from benchmarks.orders import seed
from benchmarks.report import report
from benchmarks.sides import side
from tests.services import database, kafka, postgres, topics
from tidegate.inbox.identity import key_hash16
from tidegate.inbox.migrate import upgrade

GOALS = {"ratio": "at least 0.95", "start_s": "below 2"}
ROUNDS = 9
"""One round beside another of the same kind differs by a tenth, however quiet the machine: the median of nine by a few
hundredths, that of three by more than what is looked for."""

PARKED_KEYS = 1_000
PARTITIONS = 4

BARE = """
    DO $$
    DECLARE made record;
    BEGIN
      CREATE TABLE public.dropped AS
        SELECT CAST(CAST(i.indexrelid AS regclass) AS text) AS name, pg_get_indexdef(i.indexrelid) AS text
          FROM pg_index i WHERE i.indrelid = CAST('tidegate.failure' AS regclass)
           AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid);
      FOR made IN SELECT * FROM public.dropped LOOP EXECUTE 'DROP INDEX ' || made.name; END LOOP;
    END $$
"""
"""A million rows through fourteen indexes take minutes; without them, and the indexes made behind, ten seconds."""

INDEXED = """
    DO $$
    DECLARE made record;
    BEGIN
      FOR made IN SELECT * FROM public.dropped LOOP EXECUTE made.text; END LOOP;
      DROP TABLE public.dropped;
    END $$
"""

NOTHING_HANDLED = "TRUNCATE tidegate.claim_1, tidegate.checkpoint, tidegate.fence, tidegate.generation_birth"
ANOTHER_NAME = "UPDATE tidegate.handler SET consumer = '{consumer}' WHERE name = '{handler}'"
NO_OTHERS = "DELETE FROM tidegate.handler WHERE name <> '{handler}'"

REGISTER = "INSERT INTO tidegate.handler (consumer, name) VALUES ('{consumer}', '{handler}')"

KEYS = """
    INSERT INTO tidegate.parked_key (handler, topic, key_hash, key, next_seq, waiting,
                                     head_seq, head_due, head_home_topic, head_home_partition)
    SELECT h.id, '{topic}', decode(k.hash, 'hex'), convert_to('parked-' || k.n, 'UTF8'), {each} + 1, {each},
           1, now() + interval '1 hour', '{topic}', k.n % {partitions}
      FROM tidegate.handler h, unnest('{{{hashes}}}'::text[]) WITH ORDINALITY k (hash, n)
     WHERE h.consumer = '{consumer}' AND h.name = '{handler}'
"""

ROWS = """
    INSERT INTO tidegate.failure (handler, version, origin, topic, incarnation, partition, record_offset, home_topic,
        home_partition, event_id, payload_hash8, lane, seq, state, reason, due, attempts, first_failed_at,
        last_failed_at, exception_type, message, stack_digest, id_text, type, correlation_id, operation_id, key, value,
        headers, timestamp_ms, timestamp_type)
    SELECT p.handler, 0, 'event', p.topic, 0, p.head_home_partition, 1000000000 + k.at, p.topic,
        p.head_home_partition, decode(md5('event-' || k.at), 'hex'), k.at, p.key_hash, k.seq, 'queued', 'exhausted',
        p.head_due, CASE WHEN k.seq = 1 THEN 1 ELSE 0 END, now(), now(), 'builtins.ConnectionError', 'away', '',
        'event-' || k.at, 'OrderPlaced', 'event-' || k.at, 'event-' || k.at, p.key,
        convert_to(repeat('x', 200), 'UTF8'), ''::bytea, 0, 1
      FROM (SELECT *, row_number() OVER (ORDER BY key_hash) AS nth FROM tidegate.parked_key) p,
           LATERAL (SELECT s AS seq, (p.nth - 1) * {each} + s AS at FROM generate_series(1, {each}) s) k
"""


def migrate(url: str) -> None:
    """Our tables, and the handler."""
    database.run(upgrade(url))
    database.execute(url, REGISTER.format(consumer="bench", handler=HANDLER))


def park(url: str, topic: str, rows: int) -> None:
    """Write `rows` parked events of `PARKED_KEYS` keys."""
    names = {"consumer": "bench", "handler": HANDLER, "topic": topic}
    hashes = ",".join(key_hash16(f"parked-{n}".encode()).hex() for n in range(1, PARKED_KEYS + 1))
    numbers = {"each": rows // PARKED_KEYS, "partitions": PARTITIONS, "hashes": hashes}
    written = [statement.format(**names, **numbers) for statement in (KEYS, ROWS)]
    database.execute(url, BARE, *written, INDEXED, "VACUUM ANALYZE tidegate.failure, tidegate.parked_key")


def measure(url: str, bootstrap: str, topic: str, events: int) -> dict[str, float]:
    """Events a second, the worker's time for one, and seconds from the start of its process to its first record."""
    names = {"consumer": f"bench-{uuid.uuid4().hex[:8]}", "handler": HANDLER}
    anew = [statement.format(**names) for statement in (NOTHING_HANDLED, ANOTHER_NAME, NO_OTHERS)]
    database.execute(url, *anew, "CHECKPOINT")
    started = time.time()
    figures = side("command_worker", "plain", url, bootstrap, topic, str(events), names["consumer"])
    return {
        "events_per_s": figures["steady_per_s"],
        "cpu_us": figures["steady_cpu_us"],
        "start_s": figures["first_at"] - started,
    }


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--parked", type=int, default=1_000_000)
    arguments.add_argument("--events", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"empty": [], "parked": []}
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as empty,
        database.fresh(server) as parked,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(PARTITIONS)
        seed(bootstrap, name, given.events)
        for url in (empty, parked):
            migrate(url)
        park(parked, name, given.parked)
        measure(empty, bootstrap, name, given.events)  # the first one of a fresh cluster is slower, whoever it is
        sides = [("empty", empty), ("parked", parked)]
        for _ in range(given.rounds):
            for kind, url in sides:
                rounds[kind].append(measure(url, bootstrap, name, given.events))
            sides.reverse()
    pairs = list(zip(rounds["parked"], rounds["empty"], strict=True))
    report(
        "parked",
        {
            "events_per_s": statistics.median(parked["events_per_s"] for parked, _ in pairs),
            "empty_events_per_s": statistics.median(empty["events_per_s"] for _, empty in pairs),
            "ratio": statistics.median(parked["events_per_s"] / empty["events_per_s"] for parked, empty in pairs),
            "cpu_us": statistics.median(parked["cpu_us"] for parked, _ in pairs),
            "empty_cpu_us": statistics.median(empty["cpu_us"] for _, empty in pairs),
            "start_s": statistics.median(parked["start_s"] for parked, _ in pairs),
            "start_empty_s": statistics.median(empty["start_s"] for _, empty in pairs),
        },
        GOALS,
        {"parked": given.parked, "keys": PARKED_KEYS, "events": given.events, "rounds": rounds},
    )


if __name__ == "__main__":
    main()
