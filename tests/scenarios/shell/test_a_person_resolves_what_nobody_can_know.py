"""`tidegate review`: each verb as an operator types it, on rows of a real database."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.dlq.conftest import Graveyard
from tests.support.cli import Ended, tidegate
from tests.support.review_desk import ReviewDesk
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.tables import tables


class Operator:
    """A desk with cases, and somebody at the command line."""

    def __init__(self, desk: ReviewDesk, url: str) -> None:
        self.desk = desk
        self._url = url

    async def types(self, *arguments: str) -> Ended:
        """Run `tidegate review ...`."""
        return await asyncio.to_thread(tidegate, "review", *arguments, variables={"TIDEGATE_DATABASE_URL": self._url})

    async def says(self, *arguments: str) -> None:
        """Resolve, which must work."""
        ended = await self.types("resolve", *arguments, "--reason", "asked them")
        assert ended.code == 0, ended.err + ended.out


@pytest.fixture
async def operator(migrated_url: str) -> AsyncIterator[Operator]:
    """Somebody at the command line of a database of this test's own."""
    t = tables()
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=2, tx_pool_max=1))
    try:
        async with database.transaction() as conn:
            handlers = await register_handlers(conn, t, "billing", ["revenue", "invoices"])
        yield Operator(ReviewDesk(Graveyard(database, t, handlers)), migrated_url)
    finally:
        await database.close()


async def test_done_with_its_result(operator: Operator) -> None:
    row, call = await operator.desk.case(1)
    await operator.says(str(row), "--done", "--result", '{"id": "in-7"}', "--external-id", "in-7")
    known = await operator.desk.call(call)
    assert (known["resolution"], known["result"], known["external_id"]) == ("done", {"id": "in-7"}, "in-7")
    assert await operator.desk.row(row) == ("queued", 2)
    ((act, actor, allowed, failure_id, _),) = await operator.desk.audit()
    assert (act, actor, allowed, failure_id) == ("review_resolve", f"os:{getpass.getuser()}", True, row)


async def test_not_done_with_the_same_key_and_with_a_new_one(operator: Operator) -> None:
    (first, kept), (second, changed) = await operator.desk.case(1), await operator.desk.case(2)
    await operator.says(str(first), "--not-done", "--same-key")
    await operator.says(str(second), "--not-done", "--new-key")
    assert (await operator.desk.call(kept))["key"] == "key-o-1"
    assert (await operator.desk.call(changed))["key"] != "key-o-2"
    assert [await operator.desk.row(row) for row in (first, second)] == [("queued", 2)] * 2


async def test_several_are_discarded_at_once(operator: Operator) -> None:
    (first, _), second = await operator.desk.case(1), await operator.desk.event(2)
    await operator.says(str(first), str(second), "--discard")
    assert [await operator.desk.row(row) for row in (first, second)] == [("discarded", 2)] * 2


async def test_without_a_call_it_runs_again_or_was_done_by_hand(operator: Operator) -> None:
    again, by_hand = await operator.desk.event(1), await operator.desk.event(2)
    await operator.says(str(again), "--run-again")
    await operator.says(str(by_hand), "--done")
    assert await operator.desk.row(again) == ("queued", 2)
    assert await operator.desk.row(by_hand) is None


async def test_what_does_not_fit_is_refused_with_exit_1_and_the_rest_is_done(operator: Operator) -> None:
    (row, _), plain = await operator.desk.case(1), await operator.desk.event(2)
    ended = await operator.types("resolve", str(row), str(plain), "--run-again", "--reason", "r", "--json")
    assert ended.code == 1
    told: dict[str, Any] = json.loads(ended.out)
    assert told["resolved"] == [str(plain)]
    assert "say whether it was done" in told["refused"][str(row)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("1", "--reason", "r"), "it is not said what became of it"),
        (("1", "--done", "--discard", "--reason", "r"), "it is not said what became of it"),
        (("1", "--done", "--result", "{", "--reason", "r"), "it is no JSON"),
        (("1", "--not-done", "--reason", "r"), "whether the key is kept"),
        (("1", "--done"), "--reason"),
    ],
)
async def test_half_a_command_line_is_told_what_is_missing(
    operator: Operator, arguments: tuple[str, ...], why: str
) -> None:
    ended = await operator.types("resolve", *arguments)
    assert ended.code != 0
    assert why in ended.err


async def test_what_waits_is_listed_and_shown_with_the_words_that_fit(operator: Operator) -> None:
    row, call = await operator.desk.case(1)
    lone = await operator.desk.effect("web-1", owner="checkout")
    listed = json.loads((await operator.types("list", "--json")).out)
    assert [(case["case"], case["call"]["id"]) for case in listed] == [(str(row), call), (f"effect:{lone}", lone)]
    assert all("result" not in case["call"] for case in listed)
    table = (await operator.types("list")).out
    assert "send-invoice (unknown, 1 x)" in table
    shown = (await operator.types("show", str(row))).out
    assert f"tidegate review resolve {row} --not-done --same-key --reason" in shown
    assert "key-o-1" in shown


async def test_a_calls_result_is_revealed_with_a_reason_and_a_line(operator: Operator) -> None:
    """What a call returned may hold anything, so that it was shown stands in the audit, and why.

    Case: B38
    Parts: real (PostgreSQL, process)
    Red when: dlq/review_cases.py's show does not write the reveal's line
    """
    lone = await operator.desk.effect("web-1", owner="checkout")
    masked = json.loads((await operator.types("show", f"effect:{lone}", "--json")).out)
    assert "result" not in masked["call"]
    for said in ((), ("--reason", " ")):
        unsaid = await operator.types("show", f"effect:{lone}", "--payload", *said)
        assert (unsaid.code, "--reason" in unsaid.err, unsaid.out) == (78, True, "")
    assert await operator.desk.audit() == []
    shown = await operator.types("show", f"effect:{lone}", "--payload", "--reason", "ticket 4711", "--json")
    assert "result" in json.loads(shown.out)["call"]
    ((act, actor, allowed, *_),) = await operator.desk.audit()
    assert (act, actor, allowed) == ("reveal_result", f"os:{getpass.getuser()}", True)
