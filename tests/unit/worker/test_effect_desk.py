"""The calls of one attempt: what a handler may not do with them, and what the deadline waits for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import pytest

from tests.unit.inbox.test_effect_call import Book, done
from tidegate.consumers.worker.effects import EffectDesk, Effects
from tidegate.dlq.guard import Raised, Returned, guarded
from tidegate.inbox.effect_rules import Effect, review
from tidegate.inbox.errors import EffectMisused, OwnershipLost
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.holding import Holding
from tidegate.inbox.ledger import Ledger

CHARGE = Effect("charge", review(), 10.0, margin_s=2.0)


class RealTime(Book):
    """A fake ledger whose clock is the loop's; a call begins `since_s` ago."""

    def __init__(self, since_s: float = 0.0) -> None:
        super().__init__(now_s=asyncio.get_running_loop().time() - since_s)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


class Tx:
    asked_for = False


def event(
    id_text: str = "e1", topic: str = "shop.orders", type_: str = "OrderPlaced", tenant: str | None = None
) -> Any:
    record = Record(topic, 3, 17, b"k", b"{}", timestamp_ms=1_000, timestamp_type=1)
    return Event[Any]({}, record, type_, b"e" * 16, id_text, tenant=tenant)


def effects(book: Book) -> Effects:
    return Effects(cast(Ledger, book), {"charge": CHARGE}, "billing")


def desk_of(book: Book, about: Any = None, shared: Effects | None = None) -> EffectDesk:
    holding = Holding(Partition("shop.orders", 3), 1, 5, 0)
    return (shared or effects(book)).desk("bill", 7, about or event(), holding)


async def test_an_events_own_id_counts_within_its_topic_type_and_tenant() -> None:
    """Two events of different kinds with one id are two operations; a business key holds across kinds."""
    kinds = [event(), event(topic="shop.returns"), event(type_="OrderCancelled"), event(tenant="t1")]
    own = [desk_of(Book(), kind).effect("charge", None, None).call for kind in kinds]
    assert len({call.identity for call in own}) == 4
    named = [desk_of(Book(), kind).effect("charge", "order-1", None).call for kind in kinds]
    assert len({call.identity for call in named}) == 2, "a tenant's ids are its own"
    assert len({call.key for call in (*own, *named)}) == 6
    assert {call.operation_id for call in own} == {"e1"}


async def test_a_call_knows_whose_it_is() -> None:
    call = desk_of(Book(), event(tenant="t1")).effect(CHARGE, None, None).call
    owner = call.owner
    assert (owner.name, owner.identity, owner.tenant, call.correlation_id) == ("billing/bill", "#7", "t1", "e1")
    assert owner.home is not None
    assert (owner.home.partition, owner.home.epoch) == (("shop.orders", 3), 5)
    assert owner.origin is not None
    assert (owner.origin.consumer, owner.origin.partition) == ("billing", ("shop.orders", 3))
    assert call.event is not None
    assert (call.event.offset, call.event.timestamp) == (17, event().timestamp)


async def test_calls_of_one_kind_share_their_owner_and_no_others_do() -> None:
    """What they share is sent once for a group: two that differ in anything of it must not."""
    shared = effects(Book())
    about = [event(), event("e2"), event(tenant="t1"), event(topic="shop.returns"), event(type_="OrderCancelled")]
    owners = [desk_of(Book(), one, shared).effect("charge", None, None).call.owner for one in about]
    assert owners[0] is owners[1]
    assert len({id(owner) for owner in owners}) == 4
    taken_anew = shared.desk("bill", 7, event(), Holding(Partition("shop.orders", 3), 2, 6, 0))
    home = taken_anew.effect("charge", None, None).call.owner.home
    assert home is not None
    assert home.epoch == 6, "another owner's fence would let an intent of ours through"
    named = desk_of(Book(), event(), shared).effect("charge", "order-1", None).call.owner
    assert named.scope != owners[0].scope


async def test_a_handling_that_is_over_leaves_nothing_for_the_collector() -> None:
    """Calls know their desk and the desk its attempt: a ring of them for each event would be looked for by the garbage
    collector, which stops the loop for a tenth of a second at a time.
    """
    gone: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        desk, tx = desk_of(Book()), Tx()
        desk.watch(tx)
        async with desk.effect("charge", None, None) as effect:
            effect.complete()
        desk.leave(Returned(None))
        gone += [weakref.ref(desk), weakref.ref(tx)]
        del desk, tx, effect
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_a_name_that_nobody_declared_says_how_to() -> None:
    with pytest.raises(EffectMisused, match=r"app.effect\('refund'"):
        desk_of(Book()).effect("refund", None, None)


async def test_a_call_inside_an_open_transaction_says_why_not() -> None:
    book, tx = Book(), Tx()
    desk = desk_of(book)
    desk.watch(tx)
    tx.asked_for = True
    with pytest.raises(EffectMisused, match=r"ctx.tx: the call stays made when the transaction is undone"):
        async with desk.effect("charge", None, None):
            raise AssertionError("nobody gets here")


async def test_a_transaction_inside_a_call_says_why_not() -> None:
    desk = desk_of(Book())
    desk.before_tx()
    async with desk.effect("charge", None, None) as effect:
        with pytest.raises(EffectMisused, match=r"ctx\.tx is opened inside"):
            desk.before_tx()
        effect.complete()
    desk.before_tx()


async def test_a_call_that_was_known_already_holds_nothing_up() -> None:
    desk = desk_of(Book(done()))
    async with desk.effect("charge", None, None):
        desk.before_tx()
        assert desk.left_s() is None


async def test_two_calls_of_one_handling_are_told_apart_or_refused() -> None:
    book = Book()
    desk = desk_of(book)
    async with desk.effect("charge", None, None) as effect:
        effect.complete()
    with pytest.raises(EffectMisused, match="operation_id="):
        async with desk.effect("charge", None, None):
            raise AssertionError("nobody gets here: it would be taken for done")
    async with desk.effect("charge", "another", None) as effect:
        effect.complete()
    assert len(book.ended) == 2


async def test_a_call_that_was_made_and_never_entered_is_an_error_of_its_handling() -> None:
    desk = desk_of(Book())
    desk.effect("charge", None, None)
    left = desk.leave(Returned(None))
    assert isinstance(left, Raised)
    assert isinstance(left.error, EffectMisused)
    assert "never entered" in str(left.error)


async def test_a_call_that_outlives_its_handling_is_an_error_and_begins_no_other() -> None:
    desk = desk_of(Book())
    call = desk.effect("charge", None, None)
    later = desk.effect("charge", "later", None)
    effect = await call.__aenter__()
    left = desk.leave(Returned(None))
    assert isinstance(left, Raised)
    with pytest.raises(EffectMisused, match="behind the end of its handling"):
        await later.__aenter__()
    effect.complete()
    await call.__aexit__(None, None, None)


async def test_what_a_handler_raised_is_what_counts() -> None:
    desk = desk_of(Book())
    desk.effect("charge", None, None)
    error = Raised(ValueError("its own"))
    assert desk.leave(error) is error


async def test_who_is_stopping_begins_no_call_that_might_outlast_it() -> None:
    book = Book()
    shared = effects(book)
    shared.quiet(20.0)
    async with desk_of(book, shared=shared).effect("charge", None, None) as effect:
        effect.complete()
    book.now_s += 8.1
    with pytest.raises(OwnershipLost, match="stopping"):
        async with desk_of(book, shared=shared).effect("charge", None, None):
            raise AssertionError("nobody gets here")
    assert len(book.ended) == 1


# --------------------------------------------------------------------------------------------------------- the guard


async def test_a_deadline_waits_for_an_open_call() -> None:
    book = RealTime()
    desk = desk_of(book)
    answered = asyncio.Event()
    behind = asyncio.Event()

    async def handler() -> None:
        async with desk.effect("charge", None, None) as effect:
            await answered.wait()
            effect.complete()
        behind.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(guarded(handler(), 0.01, desk))
    over, _ = await asyncio.wait((running,), timeout=0.1)
    assert not over, "its deadline is over, and its call is not"
    answered.set()
    outcome = await running
    assert isinstance(outcome, Raised)
    assert outcome.timed_out
    assert behind.is_set(), "it was cut off behind its call"
    assert len(book.ended) == 1


async def test_a_call_that_outlasts_its_own_deadline_is_left_to_itself_and_is_still_evidence() -> None:
    book = RealTime(since_s=11.95)
    desk = desk_of(book)
    answered, ended = asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        async with desk.effect("charge", None, None) as effect:
            await answered.wait()
            effect.complete("late")
        ended.set()

    outcome = await guarded(handler(), 0.01, desk)
    assert isinstance(outcome, Raised)
    assert outcome.timed_out
    desk.leave(outcome)
    assert book.ended == []
    answered.set()
    await ended.wait()
    assert [ending.result for ending in book.ended] == ['"late"']


async def test_a_stop_waits_for_an_open_call_too() -> None:
    book = RealTime()
    desk = desk_of(book)
    answered, opened = asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        async with desk.effect("charge", None, None) as effect:
            opened.set()
            await answered.wait()
            effect.complete()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(guarded(handler(), 30, desk))
    await opened.wait()
    running.cancel()
    over, _ = await asyncio.wait((running,), timeout=0.05)
    assert not over
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(book.ended) == 1


async def test_without_an_open_call_a_deadline_waits_for_nobody() -> None:
    desk = desk_of(Book())
    outcome = await guarded(asyncio.Event().wait(), 0.01, desk)
    assert isinstance(outcome, Raised)
    assert outcome.timed_out


def test_a_command_that_names_its_effects_makes_no_other() -> None:
    shared = Effects(cast(Ledger, Book()), {"charge": CHARGE}, "billing", {"bill": ("refund",)})
    with pytest.raises(EffectMisused, match="effects="):
        desk_of(Book(), shared=shared).effect("charge", None, None)
