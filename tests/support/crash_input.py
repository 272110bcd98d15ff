"""The input of a crash test, drawn from a seed, and what must come of it. No IO."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tidegate.inbox.identity import event_id16, event_prefix

CUSTOMERS: Final = tuple(f"c{number:02}" for number in range(12))
HANDLERS: Final = ("sums", "counts", "book", "announce")
TAKEN_BY: Final = {"Order": HANDLERS, "Refund": ("sums", "counts", "book")}

DUPLICATES: Final = 0.12
POISON: Final = 0.015
UNDECODABLE: Final = 0.005


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it was produced."""

    id: str
    type: str
    customer: str
    amount: int
    number: int
    poison: str = ""
    undecodable: bool = False

    @property
    def key(self) -> bytes:
        """All records of a customer share it."""
        return self.customer.encode()

    @property
    def value(self) -> bytes:
        """The bytes; a duplicate has the same."""
        if self.undecodable:
            return b'{"customer": '
        fields = {"customer": self.customer, "amount": self.amount, "number": self.number, "poison": self.poison}
        return json.dumps(fields).encode()

    def event_id(self, topic: str) -> bytes:
        """The key under which it is claimed."""
        return event_id16(event_prefix(topic, self.type, b""), self.id.encode())


@dataclass(slots=True)
class Input:
    """Draws records from a seed; remembers what was sent, in the order of each partition."""

    seed: int
    poisoned: bool = True
    """Some records cannot be handled."""
    sent: list[Sent] = field(default_factory=list[Sent])
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def burst(self, size: int) -> list[Sent]:
        """More records, some of them repeats of earlier ones, some that cannot be handled."""
        return [self._next() for _ in range(size)]

    def _next(self) -> Sent:
        chance = self._random
        repeats = self.sent and chance.random() < DUPLICATES
        record = chance.choice(self.sent[-200:]) if repeats else self._new()
        self.sent.append(record)
        return record

    def _new(self) -> Sent:
        chance, number = self._random, len(self.sent)
        type_name = "Order" if chance.random() < 0.7 else "Refund"
        amount = chance.randrange(1, 1000) * (1 if type_name == "Order" else -1)
        record = Sent(f"{self.seed}-{number}", type_name, chance.choice(CUSTOMERS), amount, number)
        if self.poisoned and chance.random() < UNDECODABLE:
            return dataclasses.replace(record, undecodable=True)
        if self.poisoned and chance.random() < POISON:
            return dataclasses.replace(record, poison=chance.choice(("sums", "book", "announce")))
        return record


@dataclass(slots=True)
class Expected:
    """What is true at the end, whatever happened in between."""

    sums: dict[str, int]
    counts: dict[str, int]
    claims: dict[str, frozenset[str]]
    """Handler -> the ids that it handled."""
    dead: dict[str, frozenset[str]]
    """Handler -> the ids that it refused."""
    journal: dict[str, list[str]]
    """Customer -> ids in their order."""
    announced: dict[str, list[str]]
    undecodable: int


def expected(sent: Iterable[Sent]) -> Expected:
    """Each id counts once, at its first place within its customer."""
    records = list(sent)
    events = list(dict.fromkeys(record for record in records if not record.undecodable))
    totals: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    claims: defaultdict[str, set[str]] = defaultdict(set)
    dead: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        for handler in TAKEN_BY[event.type]:
            (dead if event.poison == handler else claims)[handler].add(event.id)
        totals[event.customer] += 0 if event.poison == "sums" else event.amount
        numbers[event.customer] += 1
    booked = [event for event in events if event.poison != "book"]
    announced = [event for event in events if event.type == "Order" and event.poison != "announce"]
    return Expected(
        sums=dict(totals),
        counts=dict(numbers),
        claims={handler: frozenset(claims[handler]) for handler in HANDLERS},
        dead={handler: frozenset(dead[handler]) for handler in HANDLERS},
        journal=_by_customer(booked),
        announced=_by_customer(announced),
        undecodable=sum(record.undecodable for record in records),
    )


def _by_customer(events: Iterable[Sent]) -> dict[str, list[str]]:
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for event in events:
        grouped[event.customer].append(event.id)
    return dict(grouped)
