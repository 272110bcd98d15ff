"""One call: what its `with` writes down, whatever its body does."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tidegate.inbox.effect_call import TIMEOUT_MIN_S, Begun, EffectCall, Place
from tidegate.inbox.effect_rows import NOT_TOLD, Call, EffectRow, Owner, ResultRefused
from tidegate.inbox.effect_rules import Asked, Effect, EffectRule, NotDone, idempotent_key, probe, review
from tidegate.inbox.effect_states import EffectState
from tidegate.inbox.effects import Ending, Made
from tidegate.inbox.errors import EffectMisused, EffectPending, EffectTooLate, EffectUnknown

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
COMPLETED, FAILED, UNKNOWN = EffectState.COMPLETED, EffectState.FAILED, EffectState.UNKNOWN


def ask(asked: Asked) -> NotDone:
    return NotDone()


RULES: dict[str, EffectRule] = {"key": idempotent_key(valid_s=3600), "probe": probe(ask), "review": review()}


@dataclass
class Book:
    """A fake ledger: gives what a test put into `found`, notes what it is told."""

    found: EffectRow | None = None
    ended: list[Ending] = field(default_factory=list[Ending])
    later: list[Ending] = field(default_factory=list[Ending])
    on_their_way: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])
    now_s: float = 100.0
    refusal: Exception | None = None

    async def begin(self, call: Call) -> Begun | EffectRow:
        if self.refusal is not None:
            raise self.refusal
        made = Made(7, NOW + datetime.timedelta(seconds=call.effect.deadline_s))
        return self.found or Begun(made, b"a" * 16, "key-1", 1, self.now_s + call.effect.deadline_s)

    async def end(self, call: Call, ending: Ending) -> None:
        self.ended.append(ending)

    def end_later(self, call: Call, ending: Ending) -> asyncio.Future[None]:
        self.later.append(ending)
        self.on_their_way.append(asyncio.get_running_loop().create_future())
        return self.on_their_way[-1]

    def monotonic_s(self) -> float:
        return self.now_s

    def call(self, rule: str = "review", place: Place | None = None, **options: Any) -> EffectCall:
        wanted = Call.of(Effect("charge", RULES[rule], 10.0, **options), Owner("tests"), "op", None)
        return EffectCall(self, wanted, place)

    @property
    def said(self) -> list[tuple[EffectState, str | None, str | None]]:
        return [(ending.state, ending.result, ending.external_id) for ending in self.ended]


@dataclass
class Handling:
    """Where a handler's calls are made: what it was told, in order."""

    told: list[str] = field(default_factory=list[str])
    over: bool = False
    on_their_way: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])

    def enter(self, call: EffectCall) -> None:
        self.told.append("enter")

    def opened(self, call: EffectCall) -> None:
        self.told.append("opened")

    def closed(self, call: EffectCall) -> None:
        self.told.append("closed")

    def holds_back(self) -> bool:
        return not self.over

    def unwritten(self, ending: asyncio.Future[None]) -> None:
        self.told.append("unwritten")
        self.on_their_way.append(ending)


def done(result: Any = None, **options: Any) -> EffectRow:
    given: dict[str, Any] = {
        "id": 7, "state": COMPLETED, "rule": "review", "fingerprint": NOT_TOLD, "attempt_id": b"b" * 16, "attempts": 3,
        "unsure": 0, "in_doubt": False, "key": "key-1", "key_no": 0, "key_since": NOW, "intended_at": NOW,
        "deadline": NOW, "due": NOW, "ended_at": NOW, "external_id": "x-1", "result": result, "error": "",
        "resolution": None, "probes": 0, "row_version": 1, "now": NOW,
    }  # fmt: skip
    return EffectRow(**{**given, **options})


async def test_what_was_completed_is_durable_behind_the_with() -> None:
    book = Book()
    async with book.call() as effect:
        assert (effect.key, effect.attempt, effect.is_done, effect.external_id) == ("key-1", 1, False, None)
        effect.complete({"id": (1, 2)}, "x-1")
        assert effect.is_done
        assert book.ended == []
    assert book.said == [(COMPLETED, '{"id":[1,2]}', "x-1")]
    assert effect.result == {"id": [1, 2]}, "as a later attempt would see it"
    assert effect.external_id == "x-1"


async def test_a_success_under_a_key_keeps_no_handler_waiting() -> None:
    """Its place has to hold back what depends on it: the call's ending is on its way, and nobody waits for it here."""
    book, handling = Book(), Handling()
    async with book.call("key", handling) as effect:
        effect.complete({"id": 1}, "x-1")
    assert [(ending.state, ending.external_id) for ending in book.later] == [(COMPLETED, "x-1")]
    assert handling.on_their_way == book.on_their_way
    assert handling.told == ["enter", "opened", "unwritten", "closed"]
    assert effect.result == {"id": 1}


@pytest.mark.parametrize("rule", ["probe", "review"])
async def test_where_another_call_could_do_harm_a_success_is_durable_behind_the_with(rule: str) -> None:
    book, handling = Book(), Handling()
    async with book.call(rule, handling) as effect:
        effect.complete()
    assert [ending.state for ending in book.ended] == [COMPLETED]
    assert (book.later, handling.told) == ([], ["enter", "opened", "closed"])


async def test_without_anything_that_holds_back_a_success_under_a_key_is_durable_behind_the_with() -> None:
    book = Book()
    async with book.call("key") as effect:
        effect.complete()
    assert ([ending.state for ending in book.ended], book.later) == ([COMPLETED], [])


async def test_a_call_that_outlasts_its_handling_is_durable_behind_the_with() -> None:
    """Its event is over, so nothing is held back for it any more."""
    book, handling = Book(), Handling()
    async with book.call("key", handling) as effect:
        handling.over = True
        effect.complete()
    assert ([ending.state for ending in book.ended], book.later) == ([COMPLETED], [])


async def test_what_is_no_success_is_durable_behind_the_with_under_a_key_too() -> None:
    book, handling = Book(), Handling()
    async with book.call("key", handling) as effect:
        effect.refused("declined")
    with pytest.raises(ConnectionResetError):
        async with book.call("key", handling):
            raise ConnectionResetError
    assert ([ending.state for ending in book.ended], book.later) == ([FAILED, UNKNOWN], [])


async def test_what_is_known_is_given_and_nothing_is_written() -> None:
    book = Book(done({"id": 1}))
    async with book.call() as effect:
        assert (effect.is_done, effect.result, effect.external_id) == (True, {"id": 1}, "x-1")
        assert (effect.key, effect.attempt) == ("key-1", 3)
    assert book.ended == []


async def test_an_external_id_may_be_a_number() -> None:
    book = Book()
    number: Any = 4711
    async with book.call() as effect:
        effect.complete(external_id=number)
    assert book.said == [(COMPLETED, None, "4711")]
    assert effect.result is None


async def test_what_the_service_refused_is_said_by_the_handler() -> None:
    """A provider that answers 200 with an error inside looks like success to every client. No secret in it is kept.

    Case: B38
    Parts: -
    Red when: inbox/effect_call.py's refused does not ask `told`
    """
    book = Book()
    async with book.call() as effect:
        effect.refused("status=declined\x00 by postgresql://app:s3cr3t@db/shop?key=t0k3n " + "x" * 10_000_000)
    assert [(ending.state, ending.error) for ending in book.ended] == [
        (FAILED, "status=declined\ufffd by postgresql://app:***@db/shop?***")
    ]
    with pytest.raises(EffectMisused, match="is_done"):
        _ = effect.result


@pytest.mark.parametrize("rule", RULES)
async def test_a_call_that_was_surely_not_made_failed_under_every_rule(rule: str) -> None:
    book = Book()
    with pytest.raises(ConnectionRefusedError):
        async with book.call(rule):
            raise ConnectionRefusedError
    assert book.said == [(FAILED, None, None)]
    assert book.ended[0].error == "the call ended with ConnectionRefusedError"


SEEN_AS: dict[str, type[BaseException]] = {"key": ConnectionResetError, "probe": EffectPending, "review": EffectUnknown}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError, ValueError, SystemExit, KeyboardInterrupt])
async def test_a_call_that_may_have_been_made_goes_by_its_rule(rule: str, error: type[BaseException]) -> None:
    book = Book()
    with pytest.raises(error if rule == "key" else SEEN_AS[rule]) as seen:
        async with book.call(rule):
            raise error
    assert book.said == [(UNKNOWN, None, None)]
    if rule != "key":
        assert isinstance(seen.value.__cause__, error)
        assert vars(seen.value)["effect_id"] == 7


async def test_a_pending_call_is_due_behind_its_deadline_and_margin() -> None:
    with pytest.raises(EffectPending) as pending:
        async with Book().call("probe", margin_s=3.0):
            raise TimeoutError
    assert pending.value.due == NOW + datetime.timedelta(seconds=13)


@pytest.mark.parametrize("rule", RULES)
async def test_a_call_that_is_left_without_a_word_waits_for_a_person(rule: str) -> None:
    """It is a handler's bug that no repeat heals, and a call may have been made: the message names the fix."""
    book = Book()
    with pytest.raises(EffectUnknown, match=r"complete\(\) or refused\(\)"):
        async with book.call(rule):
            pass
    assert book.said == [(UNKNOWN, None, None)]


@pytest.mark.parametrize("rule", RULES)
async def test_an_error_behind_the_answer_does_not_undo_it(rule: str) -> None:
    book = Book()

    async def handler() -> None:
        async with book.call(rule) as effect:
            effect.complete("r")
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        await handler()
    assert book.said == [(COMPLETED, '"r"', None)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("completes", [True, False])
async def test_a_cancelled_call_queues_what_it_knows_and_waits_for_nobody(rule: str, completes: bool) -> None:
    book = Book()

    async def handler() -> None:
        async with book.call(rule) as effect:
            if completes:
                effect.complete()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(handler())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert book.ended == []
    assert [ending.state for ending in book.later] == [COMPLETED if completes else UNKNOWN]


async def test_the_effects_own_word_on_an_exception_counts() -> None:
    def not_done(error: BaseException) -> bool:
        return isinstance(error, LookupError)

    book = Book()
    with pytest.raises(LookupError):
        async with book.call(not_done=not_done):
            raise LookupError
    assert book.said == [(FAILED, None, None)]


# ------------------------------------------------------------------------------------------------------------ results


async def test_a_result_that_cannot_be_kept_is_an_error_and_the_call_counts_all_the_same() -> None:
    book = Book()
    with pytest.raises(ResultRefused, match="more than result_bytes_max=10"):
        async with book.call(result_bytes_max=10) as effect:
            effect.complete("x" * 100, "x-1")
    assert book.said == [(COMPLETED, None, "x-1")]
    assert "result_bytes_max=10" in book.ended[0].error


async def test_a_repeat_of_a_call_whose_result_was_not_kept_says_so_and_does_not_call() -> None:
    book = Book(done(error="the result has 102 bytes of JSON, more than result_bytes_max=10"))
    async with book.call() as effect:
        assert effect.is_done
        with pytest.raises(ResultRefused, match="102 bytes"):
            _ = effect.result
        assert effect.external_id == "x-1"


# ------------------------------------------------------------------------------------------------------------- time


async def test_the_time_that_is_left_shrinks_and_is_never_nothing() -> None:
    book = Book()
    async with book.call() as effect:
        assert effect.timeout_s == 10.0
        book.now_s += 4
        assert effect.timeout_s == 6.0
        book.now_s += 60
        assert effect.timeout_s == TIMEOUT_MIN_S
        effect.complete()


async def test_a_call_whose_time_is_over_before_it_began_is_not_made() -> None:
    """The process stood still between the check and the call: what narrows the hole that no fence can close."""
    book = Book()

    async def handler() -> None:
        async with book.call() as effect:
            book.now_s += 10
            _ = effect.timeout_s

    with pytest.raises(EffectTooLate):
        await handler()
    assert book.said == [(FAILED, None, None)]


async def test_a_call_whose_time_is_over_behind_another_try_may_have_been_made() -> None:
    book = Book()

    async def handler() -> None:
        async with book.call() as effect:
            _ = effect.timeout_s
            raise EffectTooLate("a second try of the handler's own")

    with pytest.raises(EffectUnknown):
        await handler()
    assert book.said == [(UNKNOWN, None, None)]


# ------------------------------------------------------------------------------------------------------------ misuse


async def test_a_call_is_entered_once() -> None:
    book = Book()
    call = book.call()
    async with call as effect:
        effect.complete()
        with pytest.raises(EffectMisused, match="entered twice"):
            await call.__aenter__()
    with pytest.raises(EffectMisused, match="entered twice"):
        await call.__aenter__()
    assert len(book.ended) == 1


MISUSES: dict[str, Callable[[EffectCall], object]] = {
    "complete": lambda effect: effect.complete(),
    "refused": lambda effect: effect.refused("no"),
}


@pytest.mark.parametrize("misuse", MISUSES)
async def test_what_is_said_outside_the_with_is_an_error(misuse: str) -> None:
    call = Book().call()
    with pytest.raises(EffectMisused, match="inside its `with`"):
        MISUSES[misuse](call)
    async with call as effect:
        effect.complete()
    with pytest.raises(EffectMisused, match="inside its `with`"):
        MISUSES[misuse](call)


@pytest.mark.parametrize("misuse", MISUSES)
@pytest.mark.parametrize("first", MISUSES)
async def test_a_call_ends_in_one_way(first: str, misuse: str) -> None:
    book = Book()
    async with book.call() as effect:
        MISUSES[first](effect)
        with pytest.raises(EffectMisused, match="only one"):
            MISUSES[misuse](effect)
    assert len(book.ended) == 1


@pytest.mark.parametrize("name", ["key", "timeout_s", "attempt"])
def test_an_attribute_of_a_call_that_was_never_entered_names_the_fix(name: str) -> None:
    with pytest.raises(EffectMisused, match="async with"):
        getattr(Book().call(), name)


async def test_who_calls_although_it_is_done_is_told_before_and_reported_behind() -> None:
    book = Book(done())
    with pytest.raises(EffectMisused, match="is_done"):
        async with book.call() as effect:
            _ = effect.timeout_s
    assert book.ended == []
    with pytest.raises(EffectMisused, match="was done before"):
        async with book.call() as effect:
            effect.complete({"id": 2}, "x-2")
    assert book.said == [(COMPLETED, None, "x-2")], "the ledger compares it: two external ids are an alarm"


async def test_a_call_that_is_refused_at_its_beginning_writes_nothing() -> None:
    book = Book(refusal=EffectPending(7, NOW, "under way"))
    call = book.call()
    with pytest.raises(EffectPending):
        async with call:
            raise AssertionError("nobody gets here")
    assert book.ended == []
    assert call.was_entered
