"""What an exception means: the one walk that leads from it to a decision. No IO; a walk over rules and tables.

The walk looks at the exception, then at what it was raised `from`, outermost first. First the user's rules are asked
(the handler's, then the app's), in their order, of every link of that chain; then the tables: the first link that is
known decides. Four answers do not wait for their turn, wherever they stand: a lost partition (nothing may be written),
a fatal error (nothing may go on), and the ledger's two, a call that may have been made and one that may be under way
(a rule about them would be a guess). Of an exception group `decisions.RANKS` says which member counts. What nobody
knows is the handler's own error: rejected.

A rule's own code may fail, and never hides the event. A condition that raises leaves open whether the rule fits, so
going on would be a guess: the event is dead, with a text that names the rule. A wait that cannot be read changes
nothing about trying again: the policy's own backoff is used, and the decision says so.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeAlias, final

from ..inbox.errors import RetryLater
from ..inbox.exception_slots import CHAIN_MAX, cause_of, causes_of, known_as, members_of
from ..inbox.faults import Fault
from ..inbox.outcome import Reason
from .deadline import DeadlineError
from .decisions import (
    DeadNow,
    Decision,
    DependencyAway,
    Fatal,
    LedBy,
    Lost,
    Postponed,
    ReviewNow,
    Said,
    SkipNow,
    Transient,
    rank,
)
from .failure_text import CLASSES_MAX, exception_type, name_of
from .guard import Raised, contained_call
from .outcomes import outcome_of
from .policy import Rule, Then
from .retry import is_wait
from .retry_after import retry_after_s
from .rule_match import named, takes
from .rule_tables import ABSOLUTE, DATABASE, LANGUAGE, NAMED, OF_FAULT, OURS, OWN, Line

__all__ = [
    "DATABASE", "DeadNow", "DeadlineError", "Decision", "DependencyAway", "Fatal", "Faults", "Lost", "Postponed",
    "RetryLater", "ReviewNow", "SkipNow", "Transient", "decide",
    "may_be_an_outage", "outcome_of",
]  # fmt: skip

Faults: TypeAlias = Callable[[BaseException], Fault]
"""The database's own classifier: `tidegate.inbox.faults.classify`."""


def decide(
    exc: BaseException, faults: Faults, rules: Sequence[Rule] = (), now: datetime.datetime | None = None
) -> Decision:
    """What `exc`, raised by a handler, leads to. Total: every exception has a decision.

    Args:
        exc: what was raised.
        faults: the database's classifier.
        rules: the user's, in the order in which they are asked (`FailurePolicy.rules`). Without them for what our own
            statements raised: a rule speaks of the handler.
        now: the wall clock, for a Retry-After that is a date without the answer's own date beside it.
    """
    if isinstance(exc, Said):
        return exc.decision
    if absolute := [(line, link) for link in _all_links(exc) for line in _absolute_of(type(link))]:
        for line, link in sorted(absolute, key=lambda pair: ABSOLUTE.index(pair[0])):
            if (decision := _of_line(line, link, now)) is not None:
                return decision
    return _Walk(faults, rules, now).of(exc, 0)


@lru_cache(CLASSES_MAX)
def _absolute_of(cls: type[BaseException]) -> tuple[Line, ...]:
    return tuple(line for line in ABSOLUTE if isinstance(line.kind, type) and issubclass(cls, line.kind))


def may_be_an_outage(exc: BaseException, decision: Decision, faults: Faults) -> bool:
    """Whether a rule led to `decision` although the tables say that the database may be away.

    A rule for `Exception` or `OSError` also takes what an outage raises. Its health check goes first then: an outage is
    no event's fault, whatever a rule says of the exception.
    """
    if not decision.led_by.rule:
        return False
    return decide(exc, faults) == DependencyAway(DATABASE)


def _all_links(exc: BaseException) -> Iterable[BaseException]:
    """`exc`, its causes, its members, their causes and members: each once, however they hang together."""
    if cause_of(exc) is None and not members_of(exc):  # nearly always
        return (exc,)
    return _links_of_many(exc)


def _links_of_many(exc: BaseException) -> Iterator[BaseException]:
    waiting, seen = [exc], set[int]()
    while waiting:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        cause = cause_of(link)
        waiting += members_of(link) if cause is None else (*members_of(link), cause)


@final
@dataclass(slots=True)
class _Walk:
    """One walk: what it asks, and what it found for the members of groups, which both rounds want to know."""

    faults: Faults
    rules: Sequence[Rule]
    now: datetime.datetime | None
    found: dict[int, Decision] = field(default_factory=dict[int, Decision])

    def of(self, exc: BaseException, depth: int) -> Decision:
        """The decision; `depth` counts groups in groups, which an error of somebody's making may nest without end."""
        links = list(causes_of(exc))
        for ask in (self._by_rules, self._by_tables) if self.rules else (self._by_tables,):
            for link in links:
                if depth < CHAIN_MAX and (decision := ask(link, depth)) is not None:
                    return decision
        return _own(type(exc))

    def _by_rules(self, link: BaseException, depth: int) -> Decision | None:
        for number, rule in enumerate(self.rules, 1):
            if (decision := self._of_rule(number, rule, link)) is not None:
                return decision
        members = self._members(link, depth)
        return min(members, key=rank) if any(member.led_by.rule for member in members) else None

    def _by_tables(self, link: BaseException, depth: int) -> Decision | None:
        if members := self._members(link, depth):
            return min(members, key=rank)
        for line in _lines_of(type(link)):
            if (decision := _of_line(line, link, self.now)) is not None:
                return decision
        told = contained_call(self.faults, link)
        return None if isinstance(told, Raised) else _of_fault(told.value, type(link))

    def _members(self, link: BaseException, depth: int) -> list[Decision]:
        """Asked once: twice in each of groups in groups would be a million times."""
        for member in members_of(link):
            if id(member) not in self.found:
                self.found[id(member)] = self.of(member, depth + 1)
        return [self.found[id(member)] for member in members_of(link)]

    def _of_rule(self, number: int, rule: Rule, link: BaseException) -> Decision | None:
        """What the rule says of `link`; None where it does not fit."""
        if not takes(rule.on, type(link)):
            return None
        led_by = LedBy(f"rule {number} ({rule.then} on {named(rule.on)})", number)
        fits = contained_call(_asked(rule), link)
        if isinstance(fits, Raised):
            broken = f"{led_by.line}: its condition raised {exception_type(fits.error)}, so nobody knows if it fits"
            return DeadNow(Reason.REJECTED, broken, led_by)
        return self._ruled(rule, link, led_by) if fits.value else None

    def _ruled(self, rule: Rule, link: BaseException, led_by: LedBy) -> Decision:
        match rule.then:
            case Then.RETRY:
                after_s, note = self._after_s(rule, link)
                exhausted = Reason.TIMEOUT if isinstance(link, DeadlineError) else Reason.EXHAUSTED
                return Transient(exhausted, after_s, rule.because + note, led_by)
            case Then.SKIP:
                return SkipNow(rule.because, led_by)
            case Then.FAIL:
                return DeadNow(rule.reason, rule.because, led_by)
            case Then.REVIEW:
                return ReviewNow(rule.because, led_by=led_by)
            case Then.STOP:
                return Fatal(rule.because, led_by)

    def _after_s(self, rule: Rule, link: BaseException) -> tuple[float | None, str]:
        """How long to wait, in seconds, and a note where the rule could not say it."""
        if rule.after_s is None:
            told = contained_call(retry_after_s, link, self.now)
            return (None, "") if isinstance(told, Raised) else (told.value, "")
        told = contained_call(rule.after_s, link)
        if isinstance(told, Raised):
            return None, f" (its after_s raised {exception_type(told.error)}: the backoff is used)"
        if told.value is None or is_wait(told.value):
            return told.value, ""
        return None, f" (its after_s gave a {type(told.value).__name__} that is no wait: the backoff is used)"


def lines_of(cls: type[BaseException]) -> Iterator[Line]:
    """The lines that know a class, in the order in which they are asked."""
    yield from (line for line in OURS if isinstance(line.kind, type) and issubclass(cls, line.kind))
    keys = map(known_as, cls.__mro__)
    yield from (NAMED[key] for key in keys if key in NAMED)
    yield from (line for line in LANGUAGE if isinstance(line.kind, type) and issubclass(cls, line.kind))


@lru_cache(CLASSES_MAX)
def _lines_of(cls: type[BaseException]) -> tuple[Line, ...]:
    return tuple(lines_of(cls))


@lru_cache(CLASSES_MAX)
def _of_fault(fault: Fault, cls: type[BaseException]) -> Decision | None:
    decision = OF_FAULT[fault]
    return None if decision is None else replace(decision, led_by=LedBy(f"the database's table: {named(cls)}"))


@lru_cache(CLASSES_MAX)
def _own(cls: type[BaseException]) -> Decision:
    return replace(OWN, led_by=LedBy(f"no line knows {name_of(cls)}"))


def _of_line(line: Line, link: BaseException, now: datetime.datetime | None) -> Decision | None:
    """What the line says; None where it does not know, or where a foreign exception cannot even be looked at."""
    if isinstance(line.kind, type) and not isinstance(link, line.kind):
        return None
    told = contained_call(line.leads, link, now)
    if isinstance(told, Raised) or told.value is None:
        return None
    return replace(told.value, led_by=LedBy(f"the tables' line {line.on}"))


def _asked(rule: Rule) -> Callable[[BaseException], bool]:
    """The rule's condition as a plain yes or no: also what it gives may be something that raises when it is asked."""
    when = rule.when
    return _ALWAYS if when is None else lambda link: bool(when(link))


_ALWAYS: Final[Callable[[BaseException], bool]] = lambda _: True  # noqa: E731 - a constant, not a function of its own
