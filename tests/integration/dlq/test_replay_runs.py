"""Replays with a journal: bounded, gone on with, counted; each letter once, whoever runs them and how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tidegate.dlq.permission import NotPermitted, everybody
from tidegate.dlq.reach import Caller, Grant
from tidegate.dlq.replay_journal import NoSuchRun, Run
from tidegate.dlq.replay_order import Order
from tidegate.dlq.replays import Pace, Replays
from tidegate.dlq.selection import Filter
from tidegate.dlq.verbs import Role
from tidegate.inbox import claim
from tidegate.inbox.errors import TidegateError
from tidegate.inbox.identity import attempt_id16
from tidegate.inbox.store import Store


def replays(graveyard: Graveyard) -> Replays:
    return Replays(Store(graveyard.db, graveyard.t), permit=everybody)


def order(**more: Any) -> Order:
    given: dict[str, Any] = {"actor": "ann", "reason": "repaired", "filter": Filter(), "all_tenants": True, **more}
    return Order(**given)


def counted(run: Run) -> tuple[int, int, int, int]:
    return run.read, run.replayed, run.skipped, run.refused


async def column(graveyard: Graveyard, statement: str) -> list[Any]:
    async with graveyard.db.transaction() as conn:
        return list((await conn.execute(sa.text(statement))).scalars())


async def test_a_run_that_was_interrupted_is_gone_on_with_and_then_does_nothing_twice(graveyard: Graveyard) -> None:
    """Two of six are over the cap; after the first steps somebody else goes on; the third time nothing is read.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/replay_journal.py's advance does not set position
    """
    numbers = await graveyard.bury(*[graveyard.event(n, key=None) for n in range(6)])
    await column(graveyard, f"UPDATE tidegate.failure SET replay_count = 2 WHERE id IN ({numbers[0]}, {numbers[4]})"
                            " RETURNING id")  # fmt: skip
    service = replays(graveyard)
    run = await service.start(order())
    await service.step(run.id, "ann", 2)
    half = await service.step(run.id, "ann", 2)
    assert (counted(half), half.ended_at) == ((4, 3, 0, 1), None)
    done = await replays(graveyard).go_on(run.id, "bob")
    assert counted(done) == (6, 4, 0, 2)
    assert done.causes == {"it was replayed 2 times already: repair the cause, or force it (--force)": 2}
    again = await service.go_on(run.id, "bob")
    assert (counted(again), again.ended_at) == ((6, 4, 0, 2), done.ended_at)
    assert await column(graveyard, "SELECT replay_count FROM tidegate.failure ORDER BY id") == [2, 1, 1, 1, 2, 1]
    actors = await column(graveyard, "SELECT actor FROM tidegate.audit ORDER BY id")
    assert (actors[0], actors[-1]) == ("ann", "bob")


ZOO = """
    UPDATE tidegate.failure SET
        replay_count = CASE WHEN id % 7 = 1 THEN 2 ELSE 0 END,
        attempt_id = CASE WHEN id % 7 = 2 THEN event_id END,
        tenant = CASE WHEN id % 7 = 3 THEN 'acme' END,
        edited_value = CASE WHEN id % 7 = 4 THEN convert_to('x', 'utf8') END,
        edit_id = CASE WHEN id % 7 = 4 THEN event_id END,
        state = CASE WHEN id % 7 = 5 THEN 'discarded' ELSE state END,
        redacted_at = CASE WHEN id % 7 = 6 THEN now() END,
        key = CASE WHEN id % 7 <> 6 THEN key END,
        value = CASE WHEN id % 7 <> 6 THEN value END,
        event_id = CASE WHEN id % 7 = 2 THEN substr(sha256(event_id), 1, 16) ELSE event_id END
    RETURNING id
"""
"""Of each seventh letter another thing is to be said; those of the second run under what was their own id before."""


@pytest.mark.parametrize(
    "more", [{}, {"force": True}, {"all_tenants": False}, {"versions": {("billing", "revenue"): 0}}]
)
async def test_a_run_does_what_its_dry_run_said(graveyard: Graveyard, more: dict[str, Any]) -> None:
    """The dry run asks the guards of each letter, a run only of those that are not plainly free: both say the same.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: dlq/replay_steps.py's is_plain leaves out any of its conditions
    """
    events = [graveyard.event(n, key=None if n % 2 else b"k-%d" % (n % 5)) for n in range(28)]
    await graveyard.bury(*events)
    await column(graveyard, ZOO)
    async with graveyard.db.transaction() as conn:
        repaired = [attempt_id16(event.event_id, b"edit", event.event_id) for event in events[3::14]]
        done = sorted(
            [(event.event_id, event.payload_hash) for event in events[::6] + events[1::14]] + [(i, 0) for i in repaired]
        )
        await claim.claim(conn, graveyard.t, graveyard.handlers["revenue"], 1, done, optimistic=False)
    service = replays(graveyard)
    asked = order(filter=Filter(state=None), **more)
    plan = await service.plan(asked)
    run = await service.start(asked)
    while run.ended_at is None:
        run = await service.step(run.id, "ann", 9)
    assert counted(run) == (28, plan.replayed, plan.skipped.total(), plan.refused.total())
    assert run.causes == {**plan.skipped, **plan.refused}
    queued = "SELECT count(*) FROM tidegate.failure WHERE state = 'queued'"
    assert await column(graveyard, queued) == [plan.replayed]
    assert await column(graveyard, "SELECT count(*) FROM tidegate.replay_letter") == [plan.replayed]
    named = "SELECT sum(jsonb_array_length(details->'failure_ids')) FROM tidegate.audit WHERE act = 'dlq_replay'"
    assert await column(graveyard, named) == [plan.replayed]


async def test_a_step_of_one_letter_has_a_line_with_the_letters_own_fields(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(graveyard.event(1, key=None, tenant="acme"), graveyard.event(2, key=None))
    service = replays(graveyard)
    run = await service.start(order())
    while run.ended_at is None:
        run = await service.step(run.id, "ann", 1)
    lines = "SELECT failure_id || ' ' || correlation_id || ' ' || coalesce(tenant, '-') FROM tidegate.audit ORDER BY id"
    assert await column(graveyard, lines) == [f"{numbers[0]} o-1 acme", f"{numbers[1]} o-2 -"]


async def test_letters_that_come_after_the_start_are_not_touched(graveyard: Graveyard) -> None:
    """The bound is set at the start.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/replay_steps.py gives page_of no bound
    """
    (first,) = await graveyard.bury(graveyard.event(1))
    service = replays(graveyard)
    run = await service.start(order())
    await graveyard.bury(graveyard.event(2))
    assert counted(await service.go_on(run.id, "ann")) == (1, 1, 0, 0)
    queued = await column(graveyard, "SELECT id FROM tidegate.failure WHERE state = 'queued'")
    assert queued == [first]


async def test_two_who_replay_the_same_letters_at_once_queue_each_once(graveyard: Graveyard) -> None:
    """Two runs of two operators: their journals add up to each letter once.

    Case: B39, B40
    Parts: real (PostgreSQL)
    Red when: dlq/replay_steps.py takes `ids` from what it wanted to queue instead of from `done`
    """
    await graveyard.bury(*[graveyard.event(n, key=b"k-%d" % (n % 7)) for n in range(60)])
    service = replays(graveyard)
    one, two = await service.start(order()), await service.start(order(actor="bob"))
    await asyncio.gather(*[service.go_on(run.id, "x", Pace(rate=80)) for run in (one, two)])
    ended = [await service.run(run.id) for run in (one, two)]
    assert sum(run.replayed for run in ended) == 60
    assert all(run.read == run.replayed + run.skipped for run in ended)
    assert set(await column(graveyard, "SELECT replay_count FROM tidegate.failure")) == {1}
    assert await column(graveyard, "SELECT count(*) FROM tidegate.replay_letter") == [60]


async def test_one_run_that_three_go_on_with_at_once_reads_each_letter_once(graveyard: Graveyard) -> None:
    """They take turns at its row.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/replay_journal.py's get does not lock the run's row
    """
    await graveyard.bury(*[graveyard.event(n, key=b"k-%d" % (n % 7)) for n in range(60)])
    service = replays(graveyard)
    run = await service.start(order())
    await asyncio.gather(*[service.go_on(run.id, "x", Pace(rate=80)) for _ in range(3)])
    assert counted(await service.run(run.id)) == (60, 60, 0, 0)


async def test_the_inbox_answers_done_failed_and_forced(graveyard: Graveyard) -> None:
    """Done is skipped; failed runs; done and forced runs under an identity of its own, as the same operation.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: dlq/replay_order.py's obstacle does not ask is_done
    """
    done, failed = await graveyard.bury(graveyard.event(1, key=None), graveyard.event(2, key=None))
    handled = graveyard.event(1)
    async with graveyard.db.transaction() as conn:
        mine = [(handled.event_id, handled.payload_hash)]
        await claim.claim(conn, graveyard.t, graveyard.handlers["revenue"], 1, mine, optimistic=False)
    service = replays(graveyard)
    plan = await service.plan(order())
    assert (plan.replayed, dict(plan.skipped)) == (1, {"it was handled already": 1})
    run = await service.go_on((await service.start(order())).id, "ann")
    assert counted(run) == (2, 1, 1, 0)
    assert await column(graveyard, "SELECT id FROM tidegate.failure WHERE state = 'queued'") == [failed]
    forced = await service.go_on((await service.start(order(force=True))).id, "ann")
    assert counted(forced) == (1, 1, 0, 0)
    rows = await column(graveyard, "SELECT attempt_id FROM tidegate.failure ORDER BY id")
    assert (len(rows[0]), rows[1]) == (16, None)
    assert await column(graveyard, f"SELECT operation_id FROM tidegate.failure WHERE id = {done}") == ["o-1"]


async def test_another_operation_is_one_only_where_it_was_asked_for(graveyard: Graveyard) -> None:
    (number,) = await graveyard.bury(graveyard.event(1))
    service = replays(graveyard)
    await service.go_on((await service.start(order(new_operation=True))).id, "ann")
    assert await column(graveyard, "SELECT operation_id FROM tidegate.failure") == [f"o-1/replay-{number}-1"]


async def test_a_tenants_letters_are_replayed_only_where_that_tenant_or_all_were_named(graveyard: Graveyard) -> None:
    """Checked for each letter, also for one that is named by its number.

    Case: B42
    Parts: real (PostgreSQL)
    Red when: dlq/replay_order.py's obstacle leaves tenant_obstacle out
    """
    numbers = await graveyard.bury(graveyard.event(1, tenant="a"), graveyard.event(2, tenant="b"), graveyard.event(3))
    service = replays(graveyard)
    nobody = await service.plan(order(all_tenants=False))
    assert (nobody.replayed, nobody.refused.total()) == (1, 2)
    one = await service.plan(order(all_tenants=False, filter=None, references=(str(numbers[1]),), tenant="a"))
    assert (one.replayed, list(one.refused)) == (0, ["it is another tenant's than the one that was named (--tenant)"])
    mine = await service.plan(order(all_tenants=False, filter=Filter(tenant="a")))
    assert (mine.read, mine.replayed) == (1, 1)
    with pytest.raises(TidegateError, match="not both"):
        order(filter=Filter(tenant="a"))


async def test_an_app_that_is_older_than_the_handler_is_refused(graveyard: Graveyard) -> None:
    await graveyard.bury(graveyard.event(1))
    service = replays(graveyard)
    older = await service.plan(order(versions={("billing", "revenue"): 0}))
    assert list(older.refused) == ["it is of version 1 of its handler, this app has 0: use the newer release"]
    assert (await service.plan(order(versions={("billing", "revenue"): 1}))).replayed == 1


async def test_what_lies_beyond_the_askers_scope_is_as_if_it_were_not_there(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(graveyard.event(1, tenant="a"), graveyard.event(2, tenant="b"))

    permit = Caller("ann", (Grant(role=Role.OPERATOR, tenants=frozenset({"a"})),))
    service = Replays(Store(graveyard.db, graveyard.t), permit)
    assert (await service.plan(order())).read == 1
    unseen = await service.plan(order(filter=None, references=(str(numbers[1]), "999")))
    assert unseen.refused == {"no letter is known under this id": 2}
    assert (await service.plan(order(filter=Filter(tenant="b"), all_tenants=False))).read == 0
    viewer = Caller("ann", (Grant(role=Role.VIEWER, tenants=None),))
    with pytest.raises(NotPermitted):
        await Replays(Store(graveyard.db, graveyard.t), viewer).start(order())
    assert await column(graveyard, "SELECT allowed FROM tidegate.audit") == [False, False]


async def test_a_run_is_known_to_its_own_operator_and_to_who_sees_everything(graveyard: Graveyard) -> None:
    await graveyard.bury(graveyard.event(1, tenant="a"))
    run = await replays(graveyard).start(order())
    other = Caller("bob", (Grant(role=Role.OPERATOR, tenants=frozenset({"a"})),))
    service = Replays(Store(graveyard.db, graveyard.t), other)
    assert await service.latest() == []
    for act in (service.run(run.id), service.outcomes(run.id), service.go_on(run.id, "bob")):
        with pytest.raises(NoSuchRun):
            await act
    everything = Caller("eve", (Grant(role=Role.VIEWER, tenants=None),))
    assert [each.id for each in await Replays(Store(graveyard.db, graveyard.t), everything).latest()] == [run.id]


async def test_what_became_of_the_letters_is_told_by_their_rows(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(*[graveyard.event(n, key=None) for n in range(5)])
    service = replays(graveyard)
    run = await service.go_on((await service.start(order())).id, "ann")
    done, repeat, dead, replayed_since, _ = numbers
    for statement in (
        f"DELETE FROM tidegate.failure WHERE id IN ({done}, {repeat}) RETURNING id",
        "INSERT INTO tidegate.audit (act, actor, allowed, consumer, handler, failure_id, correlation_id, operation_id)"
        f" VALUES ('completed_repeat', 'worker', true, '', '', {repeat}, '', '') RETURNING id",
        f"UPDATE tidegate.failure SET state = 'dead', due = NULL WHERE id = {dead} RETURNING id",
        f"UPDATE tidegate.failure SET replay_count = 2 WHERE id = {replayed_since} RETURNING id",
    ):
        await column(graveyard, statement)
    found = await service.outcomes(run.id)
    assert (found.succeeded, found.repeats, found.dead_again, found.waiting) == (1, 1, 2, 1)
    assert (await service.wait(run.id, patience_s=0)).waiting == 1


async def test_a_key_that_was_filtered_by_is_forgotten_with_the_runs_end(graveyard: Graveyard) -> None:
    await graveyard.bury(graveyard.event(1, key=b"ann@shop"))
    service = replays(graveyard)
    run = await service.start(order(filter=Filter(key=b"ann@shop")))
    assert run.order.filter == Filter(key=b"ann@shop")
    ended = await service.go_on(run.id, "ann")
    assert ended.replayed == 1
    assert b"ann@shop".hex() not in str(ended.wanted)


async def test_a_run_that_nobody_started_is_not_found(graveyard: Graveyard) -> None:
    with pytest.raises(NoSuchRun):
        await replays(graveyard).go_on(7, "ann")


async def test_letters_are_found_by_a_header_that_they_came_with(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(graveyard.event(7), graveyard.event(8))
    plan = await replays(graveyard).plan(order(filter=Filter(header=("ce_id", b"o-7"))))
    assert (plan.read, len(numbers)) == (1, 2)
