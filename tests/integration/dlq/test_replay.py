"""Replay: through the queue, with an audit line, never twice, never over somebody else's change."""

from __future__ import annotations

import asyncio
import datetime

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import REJECTED, Graveyard
from tidegate.dlq.audit_trail import of_letter
from tidegate.dlq.burial import Burial
from tidegate.dlq.grouping import USUAL
from tidegate.dlq.looking import ReadValue, look, reveal
from tidegate.dlq.permission import everybody
from tidegate.dlq.reach import EVERYWHERE
from tidegate.dlq.replay import Order, Report, list_groups, list_letters, replay
from tidegate.dlq.selection import Filter, find
from tidegate.inbox import audit, failure, outbox
from tidegate.inbox.errors import TidegateError
from tidegate.inbox.event import Partition, Record
from tidegate.inbox.failure_rows import Failure, Verdict
from tidegate.inbox.outcome import Dead, FailureState, Reason
from tidegate.inbox.store import Store


async def replayed(graveyard: Graveyard, *references: str, force: bool = False, dry_run: bool = False) -> Report:
    order = Order(
        actor="ann",
        reason="schema registered",
        references=references,
        force=force,
        dry_run=dry_run,
        all_tenants=True,
    )
    async with graveyard.db.transaction() as conn:
        return await replay(conn, graveyard.t, order)


async def queued(graveyard: Graveyard) -> list[Failure]:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    async with graveyard.db.transaction() as conn:
        homes = [Partition("shop.orders", 3)]
        return await failure.pick(conn, graveyard.t, graveyard.handlers.values(), homes, {"shop.orders": 4}, now, 100)


async def lines(graveyard: Graveyard) -> list[audit.AuditLine]:
    async with graveyard.db.transaction() as conn:
        return [entry.line for entry in await audit.read(conn, graveyard.t)]


async def dead_again(graveyard: Graveyard, dead: Dead = REJECTED) -> outbox.NewOutgoing:
    """What a worker does with the first queued row that fails once more."""
    row = (await queued(graveyard))[0]
    letter = Burial("billing", graveyard.clock).letter_again(row, "revenue", dead, 1)
    async with graveyard.db.transaction() as conn:
        now = graveyard.clock.now()
        seen = (row.id, row.row_version)
        assert await failure.bury(conn, graveyard.t, seen, Verdict.of(dead), attempts=1, now=now)
        await outbox.put(conn, graveyard.t, [letter])
    return letter


async def test_a_replayed_letter_is_queued_as_it_was_received(graveyard: Graveyard) -> None:
    event = graveyard.event(7)
    (number,) = await graveyard.bury(event)
    report = await replayed(graveyard, str(number))
    assert [entry.id for entry in report.replayed] == [number]
    assert (report.read, report.refused, report.by_reason) == (1, (), {"rejected": 1})
    (row,) = await queued(graveyard)
    assert (row.record.key, row.record.value, row.record.headers) == (b"k", b"v", event.headers)
    assert (row.event_id, row.replay_count) == (event.event_id, 1)


async def test_a_replay_leaves_one_audit_line_that_says_who_and_why(graveyard: Graveyard) -> None:
    event = graveyard.event(7, tenant="acme")
    (number,) = await graveyard.bury(event)
    await replayed(graveyard, str(number))
    (line,) = await lines(graveyard)
    assert (line.act, line.actor, line.allowed) == ("dlq_replay", "ann", True)
    assert (line.consumer, line.handler, line.failure_id, line.event_id) == (
        "billing",
        "revenue",
        number,
        event.event_id,
    )
    assert (line.tenant, line.correlation_id) == ("acme", "o-7")
    assert line.details["why"] == "schema registered"
    assert line.details["failure_ids"] == [number]


async def test_a_replay_and_its_audit_line_stand_or_fall_together(graveyard: Graveyard) -> None:
    (number,) = await graveyard.bury(graveyard.event(7))
    async with graveyard.db.transaction() as conn:
        await replay(conn, graveyard.t, Order(actor="ann", reason="x", references=(str(number),)))
        await conn.rollback()
    assert await queued(graveyard) == []
    assert await lines(graveyard) == []


async def test_a_dry_run_says_what_would_happen_and_changes_nothing(graveyard: Graveyard) -> None:
    (number,) = await graveyard.bury(graveyard.event(7))
    report = await replayed(graveyard, str(number), "999", dry_run=True)
    assert report.by_reason == {"rejected": 1}
    assert report.by_cause == {"no letter is known under this id": 1}
    assert await queued(graveyard) == []
    assert await lines(graveyard) == []


async def test_an_act_on_many_letters_has_one_line_that_names_every_letter(graveyard: Graveyard) -> None:
    numbers = await graveyard.bury(*[graveyard.event(n, key=None, tenant="acme") for n in range(600)])
    await replayed(graveyard, *map(str, numbers))
    (line,) = await lines(graveyard)
    assert line.details["failure_ids"] == numbers, "not cut off, however many there are"
    assert (line.consumer, line.handler, line.tenant, line.failure_id) == ("billing", "revenue", "acme", None)
    async with graveyard.db.transaction() as conn:
        found = await of_letter(conn, graveyard.t, EVERYWHERE, numbers[17])
    assert [entry.line.act for entry in found] == ["dlq_replay"], "and it is found by each of them"


async def test_the_same_replay_twice_does_nothing_twice(graveyard: Graveyard) -> None:
    """A second run, also one at the same moment, refuses what the first one queued.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/replay_rows.py leaves `if entry.id in done` out of its report
    """
    numbers = await graveyard.bury(*[graveyard.event(n, key=None) for n in range(20)])
    references = [str(number) for number in numbers]
    reports = await asyncio.gather(*[replayed(graveyard, *references) for _ in range(3)])
    assert sorted(len(report.replayed) for report in reports) == [0, 0, 20]
    assert {row.replay_count for row in await queued(graveyard)} == {1}
    assert len((await replayed(graveyard, *references)).refused) == 20


async def test_only_dead_letters_are_replayed(graveyard: Graveyard) -> None:
    """What is queued, discarded or of unknown outcome is refused with its cause, and stays as it is.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: dlq/replay_order.py's obstacle does not look at the state
    """
    numbers = await graveyard.bury(*[graveyard.event(n, key=None) for n in range(3)])
    f = graveyard.t.failure
    async with graveyard.db.transaction() as conn:
        await failure.discard(conn, graveyard.t, [(numbers[0], 1)])
        await conn.execute(sa.update(f).where(f.c.id == numbers[1]).values(state="unknown"))
    await replayed(graveyard, str(numbers[2]))
    report = await replayed(graveyard, *[str(number) for number in numbers])
    assert report.replayed == ()
    assert report.by_cause == {
        "it was discarded": 1,
        "its outcome is unknown: say what became of it (`tidegate review`)": 1,
        "it is queued already": 1,
    }


async def test_the_third_replay_of_a_letter_needs_force(graveyard: Graveyard) -> None:
    """A letter that came back twice is not replayed again, until a person says that the cause is repaired.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/replay_order.py's REPLAYS_MAX is 3
    """
    (number,) = await graveyard.bury(graveyard.event(7))
    letter_ids: set[bytes] = set()
    for _ in range(2):
        assert len((await replayed(graveyard, str(number))).replayed) == 1
        letter_ids.add((await dead_again(graveyard)).id)
    assert len(letter_ids) == 2
    refused = await replayed(graveyard, str(number))
    assert refused.by_cause == {"it was replayed 2 times already: repair the cause, or force it (--force)": 1}
    assert len((await replayed(graveyard, str(number), force=True)).replayed) == 1
    assert (await lines(graveyard))[-1].details["forced"] is True


async def test_a_letter_is_found_by_its_number_its_id_and_its_position(graveyard: Graveyard) -> None:
    (number,) = await graveyard.bury(graveyard.event(7))
    async with graveyard.db.transaction() as conn:
        (saved,) = await outbox.unpublished(conn, graveyard.t, "billing", [Partition("shop.orders", 3)], limit=2)
        references = [str(number), saved.id.hex(), "shop.orders/3@7"]
        found = await find(conn, graveyard.t, references)
        assert [[entry.id for entry in found[reference]] for reference in references] == [[number]] * 3
        await conn.execute(sa.update(graveyard.t.outbox).values(failure_id=None))
        assert [entry.id for entry in (await find(conn, graveyard.t, [saved.id.hex()]))[saved.id.hex()]] == [number]
        assert await find(conn, graveyard.t, ["ff" * 16, "999", "shop.orders/3@8"]) == {
            "ff" * 16: [],
            "999": [],
            "shop.orders/3@8": [],
        }


@pytest.mark.parametrize("reference", ["", "abc", "1; DROP TABLE x", "t/x@1", "9" * 31, "-1", "t/1@1 "])
async def test_what_is_no_reference_is_refused_with_the_forms_that_are(graveyard: Graveyard, reference: str) -> None:
    async with graveyard.db.transaction() as conn:
        with pytest.raises(TidegateError, match="give its number"):
            await find(conn, graveyard.t, [reference])


async def test_a_letter_is_shown_whole_with_its_audit(graveyard: Graveyard) -> None:
    event = graveyard.event(7)
    (number,) = await graveyard.bury(event)
    await replayed(graveyard, str(number))
    await dead_again(graveyard, Dead(Reason.EXHAUSTED, "still away"))
    store = Store(graveyard.db, graveyard.t)
    masked = await look(store, "ann", str(number), as_text, permit=everybody)
    assert (masked.value, masked.key, masked.headers) == ("<text>", "<bytes>", (("ce_id", "<bytes>"), ("null", None)))
    shown = await reveal(store, "ann", "a test", str(number), as_text, permit=everybody)
    assert (shown.key, shown.value, shown.headers) == ("k", "v", (("ce_id", "o-7"), ("null", None)))
    assert (shown.entry.reason, shown.entry.replay_count) == ("exhausted", 1)
    assert (shown.entry.value_bytes, shown.published_at) == (1, None)
    assert [entry.line.act for entry in shown.audit] == ["dlq_replay", "dlq_reveal"]
    with pytest.raises(TidegateError, match="no letter is known as 999"):
        await look(store, "ann", "999", as_text, permit=everybody)


def as_text(consumer: str, record: Record) -> ReadValue:
    """A codec for values that are text."""
    return ReadValue("text", (record.value or b"").decode())


async def test_a_position_that_stands_for_two_handlers_is_shown_one_at_a_time(graveyard: Graveyard) -> None:
    first = await graveyard.bury(graveyard.event(7))
    second = await graveyard.bury(graveyard.event(7), handler="invoices")
    with pytest.raises(TidegateError, match="billing/invoices"):
        await look(Store(graveyard.db, graveyard.t), "ann", "shop.orders/3@7", as_text, permit=everybody)
    report = await replayed(graveyard, "shop.orders/3@7")
    assert sorted(entry.id for entry in report.replayed) == sorted(first + second)


async def test_letters_are_listed_and_grouped_by_what_they_died_of(graveyard: Graveyard) -> None:
    rejected = await graveyard.bury(*[graveyard.event(n, tenant="acme") for n in range(3)])
    timed_out = await graveyard.bury(graveyard.event(9), dead=Dead(Reason.TIMEOUT, "too long"), handler="invoices")
    gate = graveyard.gate()
    assert [(group.handler, group.reason, group.letters) for group in await list_groups(gate, Filter(), USUAL)] == [
        ("revenue", "rejected", 3),
        ("invoices", "timeout", 1),
    ]
    for wanted, numbers in [
        (Filter(), rejected + timed_out),
        (Filter(reason="timeout"), timed_out),
        (Filter(handler="revenue", consumer="billing"), rejected),
        (Filter(tenant="acme", event_id="o-1"), rejected[1:2]),
        (Filter(correlation_id="o-2"), rejected[2:]),
        (Filter(key=b"k", topic="shop.orders"), rejected + timed_out),
        (Filter(state=FailureState.QUEUED), []),
        (Filter(since=graveyard.clock.now()), rejected + timed_out),
        (Filter(until=graveyard.clock.now()), []),
        (Filter(reason="' OR 1=1 --"), []),
    ]:
        assert [entry.id for entry in await list_letters(gate, wanted)] == numbers, wanted
    assert [entry.id for entry in await list_letters(gate, Filter(), after=rejected[1], limit=1)] == rejected[2:]


async def test_a_filter_replays_in_bounded_steps_past_what_is_refused(graveyard: Graveyard) -> None:
    """Each letter is read once, so that refused ones neither hold up the rest nor keep the run from its end.

    Case: B39
    Parts: real (PostgreSQL)
    Red when: dlq/replay_rows.py does not pass `after` on to entries
    """
    numbers = await graveyard.bury(*[graveyard.event(n) for n in range(7)])
    f = graveyard.t.failure
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.update(f).where(f.c.id.in_(numbers[:3])).values(replay_count=2))
    order = Order(actor="ann", reason="fixed", filter=Filter(reason="rejected", key=b"k"))
    steps: list[tuple[int, int, bool]] = []
    after, more = 0, True
    while more and len(steps) < 10:
        async with graveyard.db.transaction() as conn:
            report = await replay(conn, graveyard.t, order, after=after, rows_max=2)
        after, more = report.last_id, report.more
        steps.append((len(report.replayed), len(report.refused), more))
    assert steps == [(0, 2, True), (1, 1, True), (2, 0, True), (1, 0, False)]
    line = (await lines(graveyard))[0]
    assert "reason=rejected" in str(line.details["filter"])
    assert "key=" not in str(line.details["filter"])


@pytest.mark.parametrize(
    ("actor", "reason", "references", "wanted"),
    [("ann", "x", (), None), ("ann", "x", ("1",), Filter()), ("ann", " ", ("1",), None), ("", "x", ("1",), None)],
)
def test_an_order_says_which_letters_who_and_why(
    actor: str, reason: str, references: tuple[str, ...], wanted: Filter | None
) -> None:
    with pytest.raises(TidegateError):
        Order(actor=actor, reason=reason, references=references, filter=wanted)
