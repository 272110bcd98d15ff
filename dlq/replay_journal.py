"""The journal of replays: what each one asked for, how far it is, what became of every letter it queued.

A step of a replay locks its run's row before anything else (no other transaction has it and waits), does its letters
and moves the position in one transaction. So what is counted is what was done, whoever is killed when, and two that
resume one run do its steps one after the other. What became of a letter afterwards is told by its row: gone, it was
done; dead again, or replayed again since, it failed.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, cast, final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.errors import TidegateError
from ..inbox.event import Partition
from ..inbox.identity import key_hash16
from ..inbox.outcome import FailureState
from ..inbox.tables import Tables
from .replay_order import Left, Order, Report
from .selection import Filter

INBOX: Final = "inbox"
TOPIC: Final = "topic"

REPEATED: Final = "completed_repeat"
"""The audit's word for a row that went because its event was handled already."""


class NoSuchRun(TidegateError):
    """No replay has this number."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A replay as it stands. `read` is always the sum of `replayed`, `skipped` and `refused`."""

    id: int
    source: str
    actor: str
    why: str
    wanted: Mapping[str, Any]
    bound: int
    position: int
    read: int
    replayed: int
    skipped: int
    refused: int
    causes: Mapping[str, int]
    started_at: datetime.datetime
    touched_at: datetime.datetime
    ended_at: datetime.datetime | None

    @property
    def order(self) -> Order:
        """What was asked for."""
        return order_of(self.actor, self.why, self.wanted)


class Outcomes(NamedTuple):
    """What became of the letters that were queued."""

    waiting: int = 0
    succeeded: int = 0
    repeats: int = 0
    """Their event was handled already, as their claim showed."""
    dead_again: int = 0
    unknown: int = 0
    """A person has to say what became of them."""
    discarded: int = 0


async def open_run(conn: AsyncConnection, t: Tables, source: str, order: Order, more: Mapping[str, Any]) -> Run:
    """Lock order 7, with its bound: rows that come later are not touched."""
    bound = sa.select(sa.func.coalesce(sa.func.max(t.failure.c.id), 0)).scalar_subquery()
    values = {"source": source, "actor": order.actor, "why": order.reason, "wanted": {**wanted_of(order), **more}}
    row = await conn.execute(sa.insert(t.replay).values(**values, bound=bound).returning(t.replay))
    return _run(row.mappings().one())


async def get(conn: AsyncConnection, t: Tables, run_id: int, *, lock: bool = False) -> Run:
    """The run; with `lock`, before all other locks of the transaction. Raises NoSuchRun."""
    chosen = sa.select(t.replay).where(t.replay.c.id == run_id)
    row = (await conn.execute(chosen.with_for_update() if lock else chosen)).mappings().one_or_none()
    if row is None:
        raise no_such(run_id)
    return _run(row)


def no_such(run_id: int) -> NoSuchRun:
    """What is said where there is none, or none that the asker may know of."""
    return NoSuchRun(f"no replay has the number {run_id}: `tidegate dlq replays` lists them")


async def latest(conn: AsyncConnection, t: Tables, limit: int) -> list[Run]:
    """The last ones, the newest first."""
    rows = await conn.execute(sa.select(t.replay).order_by(t.replay.c.id.desc()).limit(limit))
    return [_run(row) for row in rows.mappings()]


def _run(row: sa.RowMapping) -> Run:
    return Run(**{field.name: row[field.name] for field in fields(Run)})


class Counts(NamedTuple):
    """What one step did. `position` is where it stands; without `more` to come the run has ended."""

    replayed: int
    skipped: int
    refused: int
    causes: Mapping[str, int]
    position: int
    more: bool

    @classmethod
    def of(cls, report: Report) -> Counts:
        """Those of a step through the inbox."""
        skipped, refused = report.count(Left.SKIPPED), report.count(Left.REFUSED)
        return cls(len(report.replayed), skipped, refused, report.by_cause, report.last_id, report.more)


async def advance(conn: AsyncConnection, t: Tables, run: Run, counts: Counts, queued: Mapping[int, int]) -> Run:
    """Count what a step did, and remember where it stands. `queued` are the rows' numbers with their replay counts.

    The filter's key, which may be a person's, is kept no longer than the run needs it.
    """
    causes = dict(Counter(run.causes) + Counter(counts.causes))
    read = counts.replayed + counts.skipped + counts.refused
    ended_at = None if counts.more else sa.func.clock_timestamp()
    r = t.replay
    changed = await conn.execute(
        sa.update(r)
        .where(r.c.id == run.id)
        .values(
            position=counts.position, read=r.c.read + read, replayed=r.c.replayed + counts.replayed,
            skipped=r.c.skipped + counts.skipped, refused=r.c.refused + counts.refused, causes=causes,
            ended_at=ended_at, touched_at=sa.func.clock_timestamp(),
            wanted=run.wanted if counts.more else _without_key(run.wanted),
        )
        .returning(r)
    )  # fmt: skip
    await _note(conn, t, run.id, queued)
    return _run(changed.mappings().one())


async def _note(conn: AsyncConnection, t: Tables, run_id: int, queued: Mapping[int, int]) -> None:
    """Which rows were queued, and which replay of each it was."""
    if queued:
        numbers = sorted(queued)
        await conn.execute(
            t.sql("""
                INSERT INTO {replay_letter} (replay, failure_id, replay_count)
                SELECT :run, * FROM unnest(CAST(:ids AS bigint[]), CAST(:counts AS bigint[]))
            """),
            {"run": run_id, "ids": numbers, "counts": [queued[number] for number in numbers]},
        )


def _without_key(wanted: Mapping[str, Any]) -> dict[str, Any]:
    chosen = wanted.get("filter")
    if not isinstance(chosen, dict) or "key" not in chosen:
        return dict(wanted)
    given = cast("dict[str, Any]", chosen)
    return {
        **wanted,
        "filter": {name: value for name, value in given.items() if name != "key"},
        "key_hash": _hash(given),
    }


def _hash(given: Mapping[str, Any]) -> str:
    return key_hash16(bytes.fromhex(given["key"]["hex"])).hex()


async def outcomes(conn: AsyncConnection, t: Tables, run_id: int) -> Outcomes:
    """What became of the letters of a run, as it stands now. One look at each of them."""
    rows = await conn.execute(
        t.sql("""
            SELECT CASE WHEN f.id IS NULL THEN 'gone' WHEN f.replay_count > l.replay_count THEN 'dead' ELSE f.state END,
                   count(*)
              FROM {replay_letter} l LEFT JOIN {failure} f ON f.id = l.failure_id WHERE l.replay = :run GROUP BY 1
        """),
        {"run": run_id},
    )
    found: dict[str, int] = {row[0]: row[1] for row in rows}
    repeats = await _repeats(conn, t, run_id) if found.get("gone") else 0
    return Outcomes(
        waiting=found.get("queued", 0),
        succeeded=found.get("gone", 0) - repeats,
        repeats=repeats,
        dead_again=found.get("dead", 0),
        unknown=found.get("unknown", 0),
        discarded=found.get("discarded", 0),
    )


async def _repeats(conn: AsyncConnection, t: Tables, run_id: int) -> int:
    rows = await conn.execute(
        t.sql("""
            SELECT count(*) FROM {replay_letter} l
             WHERE l.replay = :run AND EXISTS
                   (SELECT FROM {audit} a WHERE a.failure_id = l.failure_id AND a.act = :repeated)
        """),
        {"run": run_id, "repeated": REPEATED},
    )
    return rows.scalar_one()


async def waiting(conn: AsyncConnection, t: Tables, run_id: int) -> int:
    """How many letters of a run are still to be worked."""
    rows = await conn.execute(
        t.sql("""
            SELECT count(*) FROM {replay_letter} l JOIN {failure} f ON f.id = l.failure_id
             WHERE l.replay = :run AND f.state = 'queued' AND f.replay_count = l.replay_count
        """),
        {"run": run_id},
    )
    return rows.scalar_one()


# --------------------------------------------------------------------------------------------- partitions of a topic


class Part(NamedTuple):
    """A partition that a run reads: from the next offset on, and no further than the end at its start."""

    partition: Partition
    next_offset: int
    end_offset: int


async def put_parts(conn: AsyncConnection, t: Tables, run_id: int, parts: Collection[Part]) -> None:
    """Lock order 7, at the start of a run."""
    rows = [
        {
            "replay": run_id, "topic": part.partition.topic, "partition": part.partition.number,
            "next_offset": part.next_offset, "end_offset": part.end_offset,
        }
        for part in parts
    ]  # fmt: skip
    if rows:
        await conn.execute(insert(t.replay_part), rows)


async def parts_of(conn: AsyncConnection, t: Tables, run_id: int) -> list[Part]:
    """Where a run stands in each partition, in their order."""
    p = t.replay_part.c
    rows = await conn.execute(sa.select(t.replay_part).where(p.replay == run_id).order_by(p.topic, p.partition))
    return [Part(Partition(row.topic, row.partition), row.next_offset, row.end_offset) for row in rows]


async def move_part(conn: AsyncConnection, t: Tables, run_id: int, partition: Partition, next_offset: int) -> None:
    """With the run's row locked."""
    p = t.replay_part
    here = (p.c.replay == run_id, p.c.topic == partition.topic, p.c.partition == partition.number)
    await conn.execute(sa.update(p).where(*here).values(next_offset=next_offset))


# ------------------------------------------------------------------------------------------------- orders as plain data


def wanted_of(order: Order) -> dict[str, Any]:
    """The order as JSON; `order_of` reads it back."""
    return {
        "references": list(order.references),
        "filter": None if order.filter is None else _filter_plain(order.filter),
        "force": order.force,
        "new_operation": order.new_operation,
        "tenant": order.tenant,
        "all_tenants": order.all_tenants,
        "to_source": order.to_source,
        "versions": [[*handler, version] for handler, version in sorted(order.versions.items())],
    }


def order_of(actor: str, why: str, wanted: Mapping[str, Any]) -> Order:
    """The order that a run was started with."""
    chosen = wanted["filter"]
    return Order(
        actor=actor,
        reason=why,
        references=tuple(wanted["references"]),
        filter=None if chosen is None else Filter(**{name: _value(name, given) for name, given in chosen.items()}),
        force=wanted["force"],
        new_operation=wanted["new_operation"],
        tenant=wanted["tenant"],
        all_tenants=wanted["all_tenants"],
        to_source=wanted["to_source"],
        versions={(consumer, handler): version for consumer, handler, version in wanted["versions"]},
    )


def _filter_plain(chosen: Filter) -> dict[str, Any]:
    given = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    return {name: _plain(value) for name, value in given.items() if value is not None or name == "state"}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, datetime.datetime):
        return {"at": value.isoformat()}
    return [_plain(part) for part in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _value(name: str, given: Any) -> Any:
    if name == "state" and given is not None:
        return FailureState(given)
    if isinstance(given, list):
        return tuple(_value("", part) for part in cast("list[Any]", given))
    if isinstance(given, dict):
        plain = cast("dict[str, str]", given)
        return bytes.fromhex(plain["hex"]) if "hex" in plain else datetime.datetime.fromisoformat(plain["at"])
    return given


def resumed(order: Order, actor: str) -> Order:
    """The order as somebody goes on with it: the audit names who did."""
    return replace(order, actor=actor)
