"""`tidegate explain` tells what a handler's failures lead to; it needs no database, no broker and no settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import tidegate

SHOP = '''
from dataclasses import dataclass

from tidegate.consumers import App, Event, Json, fail_on, field, retry_on, stop_on


class Declined(Exception):
    pass


def for_good(error: Declined) -> bool:
    """The card is lost or stolen."""
    return True


@dataclass
class OrderPlaced:
    order_id: str


@dataclass
class Bill:
    order_id: str


app = App("shop", owner="sellers", rules=[stop_on("bank.BooksAreWrong", because="one more booking makes it worse")])
orders = app.consumer("orders", topics=["shop.orders"], codec=Json(), event_id=field("order_id"))


@orders.command(
    "bill",
    rules=[
        fail_on(Declined, when=for_good, because="a lost card stays lost"),
        retry_on(Declined, because="there may be money tomorrow"),
    ],
)
def bill(event: Event[OrderPlaced]) -> Bill:
    return Bill(event.value.order_id)


@app.handler(Bill)
async def do_bill(command: Bill) -> None: ...
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shopping.py").write_text(SHOP)
    return tmp_path


def test_the_whole_tree_fits_eighty_columns(folder: Path) -> None:
    ended = tidegate("explain", "bill", "--app", "shopping:app", cwd=folder, variables={"COLUMNS": "80"})
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "bill is a command of the consumer orders."
    assert max(map(len, lines)) <= 80
    told = " ".join(ended.out.split())
    assert "rule 1 shopping.Declined, if for_good says so (the card is lost or stolen), is dead (rejected)" in told
    assert "rule 2 shopping.Declined is retried, because there may be money tomorrow" in told
    assert "rule 3 bank.BooksAreWrong is the end of the process" in told
    assert "a random share of 0.2, 0.4, 0.8, 1.6 s" in told


def test_one_exceptions_path_shows_each_condition_on_its_way(folder: Path) -> None:
    ended = tidegate("explain", "bill", "--exception", "shopping.Declined", "--app", "shopping:app", cwd=folder)
    assert ended.code == 0
    terms = [line[:22].strip() for line in ended.out.splitlines() if line.startswith("  ")]
    assert [term for term in terms if term] == ["rule 1", "rule 2"]
    ended = tidegate("explain", "bill", "--exception", "ConnectionError", "--app", "shopping:app", cwd=folder)
    assert "rule 3              is about bank.BooksAreWrong: not asked" in ended.out
    assert "a pause if it is, else retried" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bil"], "HANDLER: no handler is called 'bil'. Fix: take bill"),
        (["bill", "--exception", "shopping.Decline"], "--exception: shopping has no 'Decline'. Fix: take Declined"),
        (["bill", "--exception", "bank.BooksAreWrong"], "--exception: there is no module 'bank' here or installed."),
    ],
)
def test_what_nobody_knows_is_one_clear_line(folder: Path, arguments: list[str], said: str) -> None:
    ended = tidegate("explain", *arguments, "--app", "shopping:app", cwd=folder)
    assert (ended.code, ended.out) == (78, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_rule_that_is_wrong_is_refused_with_its_handler_and_the_fix(folder: Path) -> None:
    """A rule that nothing reaches, and one without a reason, keep the app from starting.

    Case: B35
    Parts: -
    Red when: consumers/app.py's Consumer.problems leaves policy_problems out
    """
    wrong = SHOP.replace("when=for_good, ", "").replace('"one more booking makes it worse"', '""')
    (folder / "shopping.py").write_text(wrong)
    ended = tidegate("check", "--app", "shopping:app", cwd=folder)
    assert ended.code == 78
    assert "app 'shop', rule 1: it has no reason. Fix: " in ended.err
    assert "handler 'bill' of 'orders', rule 2: shopping.Declined never gets here: rule 1 takes every" in ended.err
