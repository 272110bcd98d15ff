"""What the demo finds in database and topics, and how it differs from what must be. No IO; time is an argument."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at everything. Lists are sorted and hold a thing as often as it is there."""

    revenue: Mapping[tuple[str, datetime.date], tuple[int, int]]
    """The read model: (tenant, day) to (orders, cents)."""
    invoices: Sequence[str]
    """The order of each row in the shop's table of invoices."""
    published: Sequence[str]
    """The order of each record on shop.invoices; one that came twice under one id counts once, as for any reader."""
    repeats: Mapping[str, int]
    """For each handler: records without an effect, because their event was known."""
    dead: Sequence[str]
    """The reason of each letter that waits in the inbox."""
    letters: Sequence[str]
    """The reason of each letter on the dead-letter topic, counted like that."""

    @property
    def orders(self) -> int:
        """Orders in the read model."""
        return sum(orders for orders, _ in self.revenue.values())

    @property
    def cents(self) -> int:
        """Revenue in the read model."""
        return sum(cents for _, cents in self.revenue.values())


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: what it is about, how it is shown, and what of the facts it counts."""

    title: str
    shown: Callable[[Facts], str]
    counted: Callable[[Facts], Counter[str]]


def _things(title: str, things: Callable[[Facts], Sequence[str]]) -> Line:
    return Line(title, lambda facts: f"{len(things(facts)):,}", lambda facts: Counter(things(facts)))


def _repeats(handler: str) -> Line:
    return Line(
        f"repeats kept from {handler}",
        lambda facts: f"{facts.repeats.get(handler, 0):,}",
        lambda facts: Counter({handler: facts.repeats.get(handler, 0)}),
    )


def _by_day(facts: Facts, column: int) -> Counter[str]:
    return Counter({f"{day} of {tenant}": sums[column] for (tenant, day), sums in facts.revenue.items()})


LINES: Final = (
    Line("orders in revenue-by-day", lambda facts: f"{facts.orders:,}", lambda facts: _by_day(facts, 0)),
    Line("euros in it", lambda facts: f"{facts.cents / 100:,.2f}", lambda facts: _by_day(facts, 1)),
    _things("invoices in the shop's table", lambda facts: facts.invoices),
    _things("invoices on topic shop.invoices", lambda facts: facts.published),
    _repeats("revenue-by-day"),
    _repeats("send-invoice"),
    _things(
        "dead letters: unknown_schema", lambda facts: [reason for reason in facts.dead if reason == "unknown_schema"]
    ),
    _things("dead letters: rejected", lambda facts: [reason for reason in facts.dead if reason != "unknown_schema"]),
    _things("letters on the dead-letter topic", lambda facts: facts.letters),
)
"""The table, top to bottom."""


def broken(found: Facts, expected: Facts) -> list[str]:
    """Every line on which the two differ, for people."""
    return [text for line in LINES if (text := _difference(line, found, expected))]


def differs(line: Line, found: Facts, expected: Facts) -> bool:
    """Whether the two differ on `line`: equal totals of different things do differ."""
    return line.counted(found) != line.counted(expected)


def _difference(line: Line, found: Facts, expected: Facts) -> str:
    there, wanted = line.counted(found), line.counted(expected)
    wrong = sorted(name for name in {*there, *wanted} if there[name] != wanted[name])
    if not wrong:
        return ""
    first = wrong[0]
    totals = f"{line.shown(found)}, where {line.shown(expected)} must be"
    return f"{line.title}: {totals} ({first}: {there[first]:,} instead of {wanted[first]:,})"
