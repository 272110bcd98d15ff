"""What must not be kept is erased beside the rows too: in saved letters, in published records, in what calls returned.

Whatever names it stays: ids, hashes, headers of ours, a call's operation id and its external id. A record that waited
to be sent is withdrawn, because an empty one would be a tombstone to whoever reads it; its row stays, so that a repeat
of its cause puts no other. What if the relay has it in hand at that moment? Then it goes out as it was: it was sent
before the erasure. A call whose result is gone is still known as made: who asks for it again gets None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, repairs
from ..inbox.event import Headers, Record
from ..inbox.failure_rows import indexed_text
from ..inbox.record_bytes import decode_headers, encode_header
from ..inbox.store import Store
from ..inbox.tables import Tables
from .acting import Errand
from .letter import Letter, emptied, read_letter
from .permission import Act, Permit, Place, ask_verb, common_place
from .reach import Columns, Reach, Whole
from .selection import Filter
from .verbs import Verb

ERASED: Final[Headers] = (("tidegate-erased", None),)
"""The headers of a published record that was erased: a row without any other says why it is empty."""


@final
class Leftovers(NamedTuple):
    """What of a key, a subject or an operation stands beside the rows, and was erased, or would be."""

    letters: int = 0
    """Saved letters of events that were handled since: they have no row any more."""
    messages: int = 0
    """Records that handlers published."""
    unsent: int = 0
    """Those of them that waited to be sent, and are not sent any more."""
    results: int = 0
    """Calls of events without a row, that returned something."""


async def erase_leftovers(store: Store, errand: Errand, permit: Permit) -> Leftovers:
    """By key, header, operation id or correlation id; what is told by none of them has no leftovers that can be found.

    Raises:
        NotPermitted: the actor may do this nowhere.
    """
    wanted = errand.filter
    if wanted is None:
        return Leftovers()
    details = {"filter": str(wanted), "step": "beside the rows"}
    act = Act(Verb.REDACT.value, errand.actor, errand.reason, details)
    await ask_verb(store, permit, act)
    async with store.transaction() as conn:
        found = await _found(conn, store.tables, wanted, permit.reach(Verb.REDACT))
        told = Leftovers(len(found.letters), len(found.messages), len(found.unsent), len(found.results))
        if errand.dry_run or not found.places:
            return told
        await repairs.redact_results(conn, store.tables, found.results)
        await empty_letters(conn, store.tables, store.tables.outbox.c.id.in_(found.letters))
        unsent = await repairs.withdraw(conn, store.tables, found.messages, ERASED)
        told = told._replace(unsent=unsent)
        counts = Act(act.verb, act.actor, act.reason, {**details, **told._asdict()})
        await audit.write(conn, store.tables, counts.line(common_place(found.places)))
    return told


class _Found(NamedTuple):
    letters: list[bytes]
    messages: list[bytes]
    unsent: list[bytes]
    results: list[int]
    places: list[Place]


async def _found(conn: AsyncConnection, t: Tables, wanted: Filter, reach: Reach) -> _Found:
    letters = await _letters(conn, t, wanted, reach)
    messages = await _messages(conn, t, wanted, reach)
    operations = sorted({letter.operation_id for _, letter in letters if letter.operation_id})
    results = await _results(conn, t, wanted, operations, reach)
    places = [place_of_letter(letter) for _, letter in letters] + [place for _, place in results]
    places += [Whole(wanted.consumer).place] if messages else []
    unsent = [number for number, waits in messages if waits]
    return _Found([n for n, _ in letters], [n for n, _ in messages], unsent, [n for n, _ in results], places)


# ------------------------------------------------------------------------------------------------------------- letters


async def empty_letters(conn: AsyncConnection, t: Tables, *which: sa.ColumnElement[bool]) -> int:
    """Lock order 7: letters in the outbox keep their headers and lose key, value and the record's own headers."""
    o = t.outbox.c
    chosen: list[Any] = [o.id, o.topic, o.key, o.payload, o.headers]
    found = await conn.execute(sa.select(*chosen).where(o.kind == "letter", _is_whole(t), *which).order_by(o.id))
    n = 0
    for row in found.all():
        letter = emptied(Record(row.topic, 0, 0, row.key, row.payload, decode_headers(row.headers)))
        await repairs.redact_message(conn, t, row.id, letter.headers)
        n += 1
    return n


async def _letters(conn: AsyncConnection, t: Tables, wanted: Filter, reach: Reach) -> list[tuple[bytes, Letter]]:
    """Saved letters of a key or a header, within the reach, that have something to erase, and no row (any more)."""
    told = _told_by(t, wanted)
    if not told:
        return []
    o = t.outbox.c
    has_row = sa.exists().where(t.failure.c.id == o.failure_id)
    asked = (o.kind == "letter", _is_whole(t), sa.not_(has_row), *told)
    rows = (await conn.execute(sa.select(o.id, o.topic, o.headers).where(*asked).order_by(o.id))).all()
    found = [(row.id, read_letter(Record(row.topic, 0, 0, None, None, decode_headers(row.headers)))) for row in rows]
    return [(id_, letter) for id_, letter in found if _is_of(letter, wanted) and reach.covers(place_of_letter(letter))]


def _told_by(t: Tables, wanted: Filter) -> list[sa.ColumnElement[bool]]:
    """The key or the header that outbox rows are found by; empty where neither was said."""
    o, told = t.outbox.c, list[sa.ColumnElement[bool]]()
    if wanted.key is not None:
        told.append(o.key == wanted.key)
    if wanted.header is not None:
        told.append(sa.func.position(sa.literal(encode_header(wanted.header)).op("IN")(o.headers)) > 0)
    if told and wanted.consumer is not None:
        told.append(o.consumer == wanted.consumer)
    return told


def _is_whole(t: Tables) -> sa.ColumnElement[bool]:
    return sa.or_(t.outbox.c.key.is_not(None), t.outbox.c.payload.is_not(None))


def place_of_letter(letter: Letter) -> Place:
    """Where a saved letter without a row is, as it says itself: the house wrote it."""
    return Place(letter.consumer or "", letter.handler or "", letter.tenant, letter.brand)


def _is_of(letter: Letter, wanted: Filter) -> bool:
    pairs = (
        (wanted.tenant, letter.tenant), (wanted.brand, letter.brand), (wanted.handler, letter.handler),
        (wanted.reason, letter.reason), (wanted.exception_type, letter.exception_type),
        (wanted.topic, letter.origin_topic), (wanted.event_id, letter.event_id),
        (wanted.correlation_id, letter.correlation_id), (wanted.operation_id, letter.operation_id),
    )  # fmt: skip
    is_timeless = wanted.since is None and wanted.until is None
    return is_timeless and all(asked is None or (asked or None) == told for asked, told in pairs)


def _is_only(wanted: Filter, *names: str) -> bool:
    """Whether the filter asks for nothing but these: what cannot be compared is not erased on suspicion."""
    rest: dict[str, Any] = dict.fromkeys(("state", *names))
    return replace(wanted, **rest) == Filter(state=None)


# ----------------------------------------------------------------------------------------------------------- published


async def _messages(conn: AsyncConnection, t: Tables, wanted: Filter, reach: Reach) -> list[tuple[bytes, bool]]:
    """Published records of a key or a header, and whether they wait to be sent.

    Their rows tell neither tenant nor handler: they are found by who may do this to all of the consumer, and where
    nothing else was asked for.
    """
    told, is_told = _told_by(t, wanted), _is_only(wanted, "key", "header", "consumer")
    if not told or not is_told or not reach.covers_whole(Whole(wanted.consumer)):
        return []
    o = t.outbox.c
    chosen = sa.select(o.id, o.published_at.is_(None)).where(o.kind == "publish", _is_whole(t), *told).order_by(o.id)
    return [(row[0], row[1]) for row in await conn.execute(chosen)]


# ------------------------------------------------------------------------------------------------------------- results


async def erase_results_of(conn: AsyncConnection, t: Tables, rows: Collection[int]) -> int:
    """Behind lock order 6: what the calls of these rows' events returned."""
    f, h, e = t.failure.c, t.handler.c, t.effect.c
    of_handlers = t.failure.join(t.handler, h.id == f.handler)
    of_events = sa.and_(e.event_id == f.event_id, e.consumer == h.consumer)
    found: set[int] = set()
    for mine in (e.id == f.effect_id, of_events):  # apart: together they could be compared row by row only
        chosen = sa.select(e.id).select_from(of_handlers.join(t.effect, mine))
        found |= set((await conn.execute(chosen.where(f.id.in_(sorted(rows)), e.result.is_not(None)))).scalars())
    return await repairs.redact_results(conn, t, found)


async def _results(
    conn: AsyncConnection, t: Tables, wanted: Filter, operations: Sequence[str], reach: Reach
) -> list[tuple[int, Place]]:
    """Calls of the operations of letters that were found, or of the operation or correlation that was named."""
    e = t.effect.c
    named = [(e.operation_id, wanted.operation_id), (e.correlation_id, wanted.correlation_id)]
    told = [column == indexed_text(text) for column, text in named if text is not None]
    if operations:
        told.append(e.operation_id.in_([indexed_text(operation) for operation in operations]))
    elif not told or not _is_only(wanted, *_OF_CALLS):
        return []
    asked = (wanted.consumer, wanted.handler, wanted.tenant, wanted.brand)
    pairs = zip((e.consumer, e.owner, e.tenant, e.brand), asked, strict=True)
    narrowed = [sa.func.coalesce(column, "") == value for column, value in pairs if value is not None]
    within = reach.rows(Columns(e.consumer, e.owner, e.tenant, e.brand))
    columns = (e.id, e.consumer, e.owner, e.tenant, e.brand, e.event_id, e.correlation_id, e.operation_id)
    rows = await conn.execute(sa.select(*columns).where(e.result.is_not(None), within, *told, *narrowed).order_by(e.id))
    return [(row[0], Place(row[1], row[2], row[3], row[4], None, row[5], row[6], row[7])) for row in rows]


_OF_CALLS: Final = ("operation_id", "correlation_id", "consumer", "handler", "tenant", "brand")
"""What a call's own row tells."""
