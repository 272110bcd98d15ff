"""Discard, cancel, redact: what they do to rows, lanes and letters, what they refuse, and that twice is once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tests.integration.dlq.conftest import Graveyard
from tests.support.review_desk import ReviewDesk
from tidegate.dlq.acting import Deed, Errand, Step, steps
from tidegate.dlq.deeds import cancelling, discarding, redacting
from tidegate.dlq.erasing import Leftovers, erase_leftovers
from tidegate.dlq.letter import read_letter
from tidegate.dlq.permission import NotPermitted, Permit, everybody
from tidegate.dlq.reach import Caller, Grant, unlimited
from tidegate.dlq.selection import Filter, find
from tidegate.dlq.verbs import Role
from tidegate.inbox import failure, outbox
from tidegate.inbox.errors import TidegateError
from tidegate.inbox.event import Partition, Record
from tidegate.inbox.failure_rows import Verdict, linked, queued
from tidegate.inbox.identity import digest16
from tidegate.inbox.store import Store


async def done(
    graveyard: Graveyard, deed: Deed, *references: str, wanted: Filter | None = None, dry_run: bool = False,
    permit: Permit = everybody,
) -> list[Step]:  # fmt: skip
    errand = Errand(actor="ann", reason="a test", references=references, filter=wanted, dry_run=dry_run)
    return [step async for step in steps(Store(graveyard.db, graveyard.t), deed, errand, permit)]


async def rows(graveyard: Graveyard, columns: str = "state") -> list[Any]:
    async with graveyard.db.transaction() as conn:
        found = await conn.execute(sa.text(f"SELECT {columns} FROM tidegate.failure ORDER BY id"))
        return [row[0] if len(row) == 1 else tuple(row) for row in found]


async def audit_lines(graveyard: Graveyard) -> list[tuple[Any, ...]]:
    return [(act, actor, allowed) for act, actor, allowed, *_ in await ReviewDesk(graveyard).audit()]


async def queue(graveyard: Graveyard, offset: int, *, effect_id: int | None = None) -> int:
    """A retry that waits in the lane of key `k`."""
    now = graveyard.clock.now()
    row = queued(
        graveyard.place("invoices"), graveyard.event(offset), Verdict("retry", "away"),
        due=now, attempts=2, now=now, effect_id=effect_id,
    )  # fmt: skip
    async with graveyard.db.transaction() as conn:
        (put,) = await failure.put(conn, graveyard.t, [row])
    return put.id


async def test_a_discard_releases_the_key_that_was_held(graveyard: Graveyard) -> None:
    """A dead letter that holds its lane is discarded: nothing holds it any more, and the act has its line."""
    held = await queue(graveyard, 1)
    desk = ReviewDesk(graveyard)
    async with graveyard.db.transaction() as conn:
        now = graveyard.clock.now()
        assert await failure.bury(conn, graveyard.t, (held, 1), Verdict("rejected"), attempts=3, now=now, holds=True)
    assert await desk.lane() == 1
    (step,) = await done(graveyard, discarding(), str(held))
    assert ([entry.id for entry in step.done], await rows(graveyard)) == ([held], ["discarded"])
    assert await desk.lane() == 0
    assert await audit_lines(graveyard) == [("dlq_discard", "ann", True)]


async def test_a_dry_run_counts_everything_and_changes_nothing(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(*[graveyard.event(n) for n in range(5)])
    deed = Deed(discarding().verb, discarding().obstacle, discarding().carry_out, rows_max=2)
    told = await done(graveyard, deed, wanted=Filter(reason="rejected"), dry_run=True)
    assert [entry.id for step in told for entry in step.done] == numbers
    assert [step.more for step in told] == [True, True, False]
    assert await rows(graveyard) == ["dead"] * 5
    assert await audit_lines(graveyard) == []


async def test_what_is_discarded_twice_is_discarded_once(graveyard: Graveyard) -> None:
    """Also by two operators at the same moment: one of them is told that it was done, and there is one line.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/acting.py takes `fit` for what was done
    """
    numbers = await graveyard.bury(*[graveyard.event(n, key=None) for n in range(20)])
    references = [str(number) for number in numbers]
    told = await asyncio.gather(*[done(graveyard, discarding(), *references) for _ in range(3)])
    assert sorted(len(step.done) for (step,) in told) == [0, 0, 20]
    assert await audit_lines(graveyard) == [("dlq_discard", "ann", True)]
    (again,) = await done(graveyard, discarding(), *references)
    assert again.by_cause == {"it was discarded already": 20}


async def test_what_may_be_under_way_is_neither_discarded_nor_cancelled(graveyard: Graveyard) -> None:
    desk = ReviewDesk(graveyard)
    call = await desk.effect("o-1", state="intended", due_s=60.0)
    waiting = await queue(graveyard, 1, effect_id=call)
    unknown, _ = await desk.case(2)
    for deed in (discarding(), cancelling("x")):
        (step,) = await done(graveyard, deed, str(waiting), str(unknown))
        assert step.done == ()
        causes = {refusal.reference: refusal.cause for refusal in step.refused}
        assert "may be under way" in causes[str(waiting)]
        assert "unknown" in causes[str(unknown)]
    assert await rows(graveyard) == ["queued", "unknown"]


async def test_a_cancelled_retry_is_dead_with_its_letter_and_may_be_replayed(graveyard: Graveyard) -> None:
    """Nothing is lost by it: the row is dead, its letter says who ended it, its key goes on."""
    first, second = await queue(graveyard, 1), await queue(graveyard, 2)
    (step,) = await done(graveyard, cancelling("wrong prices"), str(first))
    assert [entry.id for entry in step.done] == [first]
    assert await rows(graveyard, "state, reason") == [("dead", "cancelled"), ("queued", "retry")]
    async with graveyard.db.transaction() as conn:
        (sent,) = await outbox.unpublished(conn, graveyard.t, "billing", [Partition("shop.orders", 3)], limit=9)
        homes, later = [Partition("shop.orders", 3)], graveyard.clock.now()
        (head,) = await failure.pick(conn, graveyard.t, graveyard.handlers.values(), homes, {}, later, 9)
    letter = read_letter(Record(sent.topic, 0, 0, sent.key, sent.payload, sent.headers))
    assert (letter.reason, letter.exception_message, letter.value) == ("cancelled", "cancelled: wrong prices", b"v")
    assert head.id == second
    (again,) = await done(graveyard, cancelling("x"), str(first))
    assert again.by_cause == {"it is dead: no retry of it waits": 1}


async def test_a_redacted_letter_has_no_payload_anywhere_and_cannot_be_run(graveyard: Graveyard) -> None:
    """Rows, repeats, letters and the lane's key lose it; ids, hashes and the audit stay; a second time does nothing.

    Case: B38
    Parts: real (PostgreSQL)
    Red when: dlq/deeds.py's _redact leaves out empty_letters
    """
    secret = graveyard.event(7, key=b"ann@example.com", value=b"4111-secret")
    other = graveyard.event(8, value=b"kept")
    (number, stays) = await graveyard.bury(secret, other)
    repeat = linked(graveyard.place(), graveyard.event(9, key=b"ann@example.com", value=b"4111-secret"), number,
                    now=graveyard.clock.now())  # fmt: skip
    async with graveyard.db.transaction() as conn:
        await failure.link(conn, graveyard.t, [repeat])
    wanted = Filter(state=None, key=b"ann@example.com")
    (step,) = await done(graveyard, redacting(), wanted=wanted)
    assert len(step.done) == 2
    async with graveyard.db.transaction() as conn:
        everything = " ".join([
            str(row[0]) for table in ("failure", "outbox", "parked_key", "audit")
            for row in await conn.execute(sa.text(f"SELECT to_jsonb(t) FROM tidegate.{table} t WHERE id::text <> 'x'"
                                                  if table != "parked_key" else
                                                  "SELECT to_jsonb(t) FROM tidegate.parked_key t"))
        ])  # fmt: skip
        for leak in (b"ann@example.com", b"4111-secret"):
            assert leak.hex() not in everything
            assert leak.decode() not in everything
        assert b"kept".hex() in everything
        (found,) = (await find(conn, graveyard.t, [str(number)]))[str(number)]
        assert found.event_id == secret.event_id
        with pytest.raises(IntegrityError, match="failure_redacted"):
            await conn.execute(
                sa.text(f"UPDATE tidegate.failure SET state = 'queued', due = now() WHERE id = {number}")
            )
    assert await done(graveyard, redacting(), wanted=wanted) == [Step(False, 0, (), ())]
    assert (await done(graveyard, redacting(), str(number)))[0].by_cause == {"its payload was erased already": 1}
    assert [state for state in await rows(graveyard, "redacted_at IS NULL, id") if state[1] == stays] == [(True, stays)]


async def published(graveyard: Graveyard, *messages: tuple[bytes, bool]) -> None:
    """Records that handlers published: (key, whether it was sent)."""
    rows = [
        outbox.NewOutgoing(id=digest16(b"m", key), kind="publish", topic="shop.mail", key=key, payload=b"4111-secret",
                           headers=(("ce_subject", key),), correlation_id="c", consumer="billing",
                           home=Partition("shop.orders", 3))
        for key, _ in messages
    ]  # fmt: skip
    async with graveyard.db.transaction() as conn:
        await outbox.put(conn, graveyard.t, rows)
        await outbox.mark_published(conn, graveyard.t, [digest16(b"m", key) for key, sent in messages if sent])


async def returned(graveyard: Graveyard, offset: int) -> int:
    """A call of the event of this offset, that came back with something."""
    call = await ReviewDesk(graveyard).effect(f"o-{offset}", state="completed", owner="revenue")
    async with graveyard.db.transaction() as conn:
        event = graveyard.event(offset)
        values = {"result": {"card": "4111-secret"}, "event_id": event.event_id, "correlation_id": event.correlation_id}
        await conn.execute(sa.update(graveyard.t.effect).where(graveyard.t.effect.c.id == call).values(**values))
    return call


async def test_what_stands_beside_the_rows_is_erased_too(graveyard: Graveyard) -> None:
    """What calls returned, and what handlers published: what waited to be sent is withdrawn, for an empty record would
    be a delete marker. Another key's stay; a second time there is nothing to do.

    Case: B38
    Parts: real (PostgreSQL)
    Red when: inbox/repairs.py's _WITHDRAW leaves published_at as it is
    """
    await graveyard.bury(graveyard.event(7, key=b"ann"), graveyard.event(8, key=b"bob"))
    calls = [await returned(graveyard, offset) for offset in (7, 8)]
    await published(graveyard, (b"ann", False), (b"bob", False), (b"ann2", True))
    wanted = Filter(state=None, key=b"ann")
    errand = Errand(actor="ann", reason="she asked", filter=wanted)
    permit, store = unlimited("ann"), graveyard.gate().store
    assert await erase_leftovers(store, errand, permit) == Leftovers(messages=1, unsent=1), "all else has a row"
    (step,) = await done(graveyard, redacting(), wanted=wanted)
    assert len(step.done) == 1
    told = await erase_leftovers(store, replace(errand, dry_run=False), permit)
    assert told == Leftovers(messages=1, unsent=1), "letter and call went with their row"
    async with graveyard.db.transaction() as conn:
        results = await conn.execute(sa.text("SELECT id FROM tidegate.effect WHERE result IS NOT NULL"))
        assert list(results.scalars()) == [calls[1]]
        waiting = await outbox.unpublished(conn, graveyard.t, "billing", [Partition("shop.orders", 3)], limit=9)
        assert [row.key for row in waiting if row.kind == "publish"] == [b"bob"]
        everything = (await conn.execute(sa.text("SELECT count(*), count(payload) FROM tidegate.outbox"))).one()
        assert tuple(everything) == (5, 3), "no row is gone"
    assert await erase_leftovers(store, replace(errand, dry_run=False), permit) == Leftovers()
    subject = Filter(state=None, header=("ce_subject", b"ann2"))
    by_subject = Errand(actor="ann", reason="x", filter=subject, dry_run=False)
    assert await erase_leftovers(store, by_subject, permit) == Leftovers(messages=1)
    assert await audit_lines(graveyard) == [("dlq_redact", "ann", True)] * 3


async def test_a_calls_result_is_erased_by_its_operation_and_within_ones_reach(graveyard: Graveyard) -> None:
    """Of an event without a row; of a key also where its letter is all that is left. Who sees one tenant only erases
    nobody else's result, and no published record: of those nobody can tell whose they are.

    Case: B38, B42
    Parts: real (PostgreSQL)
    Red when: dlq/erasing.py's _results leaves `within` out
    """
    await graveyard.bury(graveyard.event(8, key=b"bob"))
    for offset in (7, 8):
        await returned(graveyard, offset)
    await published(graveyard, (b"ann", False))
    admin = Caller("ann", (Grant(role=Role.ADMIN, tenants=frozenset({"acme"})),))
    store = graveyard.gate().store

    async def erased(permit: Permit, **wanted: Any) -> Leftovers:
        errand = Errand(actor="ann", reason="x", filter=Filter(state=None, **wanted), dry_run=False)
        return await erase_leftovers(store, errand, permit)

    assert await erased(admin, operation_id="o-7") == await erased(admin, key=b"ann") == Leftovers()
    everything = unlimited("ann")
    assert await erased(everything, operation_id="o-7", reason="rejected") == Leftovers(), "a call has no reason"
    assert await erased(everything, operation_id="o-7") == Leftovers(results=1)
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.delete(graveyard.t.failure))
    assert await erased(everything, key=b"bob") == Leftovers(letters=1, results=1)


async def test_what_waits_to_be_run_is_not_redacted(graveyard: Graveyard) -> None:
    waiting = await queue(graveyard, 1)
    (step,) = await done(graveyard, redacting(), str(waiting))
    assert step.by_cause == {"it waits to be run: cancel or discard it first": 1}


async def test_whoever_may_not_is_told_so_and_the_denial_stays(graveyard: Graveyard) -> None:
    """Named letters outside the actor's scope are a denial; met by a filter they are as good as not there.

    Case: B42
    Parts: real (PostgreSQL)
    Red when: dlq/acting.py's chosen leaves `within=permit.reach(verb)` out
    """
    mine, theirs = await graveyard.bury(graveyard.event(1, tenant="acme"), graveyard.event(2, tenant="other"))
    permit = Caller("ann", (Grant(role=Role.OPERATOR, tenants=frozenset({"acme"})),))
    sees_both = Caller("ann", (*permit.grants, Grant(role=Role.VIEWER, tenants=frozenset({"other"}))))

    with pytest.raises(NotPermitted):
        await done(graveyard, discarding(), str(mine), str(theirs), permit=sees_both)
    assert await audit_lines(graveyard) == [("dlq_discard", "ann", False)]
    (step,) = await done(graveyard, discarding(), str(theirs), "999", permit=permit)
    assert step.by_cause == {"no letter is known under this id": 2}, "as unknown as one that never was"
    assert await audit_lines(graveyard) == [("dlq_discard", "ann", False)] * 2, "and that it was tried is written"
    (step,) = await done(graveyard, discarding(), wanted=Filter(), permit=permit)
    assert ([entry.id for entry in step.done], step.read, step.refused) == ([mine], 1, ())
    (step,) = await done(graveyard, discarding(), wanted=Filter(tenant="other"), permit=permit)
    assert (step.read, step.done, step.refused) == (0, (), ()), "met by a filter it is not there"
    with pytest.raises(NotPermitted):
        await done(graveyard, discarding(), wanted=Filter(), permit=Caller("ann", sees_both.grants[1:]))
    assert await rows(graveyard) == ["discarded", "dead"]


async def test_what_changed_between_look_and_act_is_refused(graveyard: Graveyard) -> None:
    (number,) = await graveyard.bury(graveyard.event(1))
    plain = discarding()

    async def meanwhile(conn: Any, t: Any, fit: Any) -> frozenset[int]:
        await conn.execute(sa.text("UPDATE tidegate.failure SET row_version = row_version + 1"))
        return await plain.carry_out(conn, t, fit)

    (step,) = await done(graveyard, Deed(plain.verb, plain.obstacle, meanwhile), str(number))
    assert step.by_cause == {"it was changed meanwhile": 1}
    assert await audit_lines(graveyard) == []


async def test_a_filter_that_meets_nothing_does_nothing(graveyard: Graveyard) -> None:
    await graveyard.bury(graveyard.event(1))
    assert await done(graveyard, discarding(), wanted=Filter(reason="' OR 1=1 --")) == [Step(False, 0, (), ())]
    (step,) = await done(graveyard, discarding(), "999")
    assert step.by_cause == {"no letter is known under this id": 1}


@pytest.mark.parametrize(("actor", "reason"), [("", "x"), ("ann", " ")])
def test_an_errand_has_somebody_and_a_reason(actor: str, reason: str) -> None:
    with pytest.raises(TidegateError):
        Errand(actor=actor, reason=reason, references=("1",))
    with pytest.raises(TidegateError):
        Errand(actor="ann", reason="x")


async def test_the_audit_names_letters_and_counts_and_no_payload(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(graveyard.event(1, value=b"4111"), graveyard.event(2, value=b"4111"))
    await done(graveyard, discarding(), wanted=Filter(key=b"k"))
    ((*_, details),) = await ReviewDesk(graveyard).audit()
    told = json.loads(details) if isinstance(details, str) else details
    assert told["failure_ids"] == numbers
    assert (told["done"], told["why"]) == (2, "a test")
    assert "4111" not in json.dumps(told)
