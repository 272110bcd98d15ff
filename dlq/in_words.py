"""A handler's failure policy in plain English, and the path of one exception through it. No IO; time is an argument.

What is told here is read from the same rules and tables that `rules.decide` walks. A class is enough: where a line
needs the exception itself (its status, its code, a rule's condition) the text says what it depends on.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..inbox.errors import DependencyError
from ..inbox.exception_slots import known_as
from ..inbox.faults import CONNECTION_LOST, Fault, fault_of
from .policy import AtLimit, BreakerPolicy, FailurePolicy, Rule, Then, When
from .retry import RetryPolicy
from .rule_match import named, takes
from .rule_tables import ABSOLUTE, FAULT_SAYS, OURS, Line
from .rules import lines_of


class Item(NamedTuple):
    """One line of a section: a term and what is said of it."""

    term: str
    text: str


class Section(NamedTuple):
    """A heading and its lines."""

    title: str
    items: tuple[Item, ...]


OWN_ERROR: Final = "dead (rejected): the handler's own error"

TABLES: Final = (
    *(Item(line.on, line.says) for line in OURS),
    Item("HTTP clients", "httpx, aiohttp, requests, urllib3: no answer, or 408, 425, 429 and 500, 502, 503, 504 are "
         "retried, after the answer's Retry-After if it has one; other answers are dead (rejected)"),
    Item("Kafka clients", "confluent-kafka, aiokafka, kafka-python: brokers away, leaders moving, time-outs are "
         "retried; what a broker will never take is dead (rejected)"),
    Item("PostgreSQL", "asyncpg, SQLAlchemy, by SQLSTATE: away is a pause, no attempt counts; deadlocks, serialization "
         "failures, time-outs are retried; a value or a statement that it refuses is dead (rejected)"),
    Item("the system", "sockets and time-outs: a pause if PostgreSQL is away, else retried; a full disk, no handles: "
         "retried; a path that is missing or not allowed: dead (rejected)"),
    Item("anything else", OWN_ERROR),
)  # fmt: skip
"""The tables of rule_tables.py, as a person wants to know them."""

_ASKED: Final = "it is asked first whether it answers; while it is away this is a pause, and no attempt counts"


# -------------------------------------------------------------------------------------------------------------- policy


def policy_sections(policy: FailurePolicy) -> list[Section]:
    """The whole policy: what decides, in the order in which it is asked, then what becomes of the event and its key."""
    own, defaults = policy.own_rules, policy.rules[len(policy.own_rules) :]
    asked = (Item("PostgreSQL", f"where its outage raises the same: {_ASKED}"),)
    sections = [
        Section("Certain, wherever it stands: no rule is asked", tuple(Item(line.on, line.says) for line in ABSOLUTE)),
        Section("Before a rule counts, unless it says stop", asked if policy.rules else ()),
        Section("Then the handler's rules, the first that fits", _rules(own, 1)),
        Section("Then the app's rules", _rules(defaults, len(own) + 1)),
        Section("Then the tables", TABLES),
    ]
    return [section for section in sections if section.items] + [
        Section("A retry", tuple(_retry(policy.retry))),
        Section("The key", tuple(_key(policy))),
        Section("The limits", tuple(_limits(policy))),
    ]


def _rules(rules: Sequence[Rule], first: int) -> tuple[Item, ...]:
    return tuple(Item(f"rule {number}", rule_words(rule)) for number, rule in enumerate(rules, first))


def rule_words(rule: Rule) -> str:
    """A rule as a sentence.

    >>> rule_words(Rule("bank.Closed", Then.RETRY, "it opens at nine"))
    'bank.Closed is retried, because it opens at nine'
    """
    when = f", {condition(rule.when)}," if rule.when is not None else ""
    return f"{named(rule.on)}{when} is {_end(rule)}, because {rule.because.removeprefix('because ')}"


def _end(rule: Rule) -> str:
    match rule.then:
        case Then.RETRY:
            return "retried" if rule.after_s is None else f"retried after the seconds that {_code(rule.after_s)} reads"
        case Then.SKIP:
            return "skipped (claimed, counted and logged)"
        case Then.FAIL:
            return f"dead ({rule.reason})"
        case Then.REVIEW:
            return "put to review"
        case Then.STOP:
            return "the end of the process (exit code 70, offsets unadvanced)"


def condition(when: When) -> str:
    """A predicate as a condition.

    >>> def is_lost(error): "The card was reported as lost."
    >>> condition(is_lost)
    'if is_lost says so (the card was reported as lost)'
    """
    told = (inspect.getdoc(when) or "").partition("\n")[0].strip().rstrip(".") if inspect.isfunction(when) else ""
    return f"if {_code(when)} says so" + (f" ({told[:1].lower()}{told[1:]})" if told else "")


def _code(function: object) -> str:
    """A function's name; of one without a name, where it stands."""
    function = inspect.unwrap(function) if callable(function) else function
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if name != "<lambda>" or code is None:
        return str(name)
    return f"the lambda at {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


# --------------------------------------------------------------------------------------------------------------- retry

WAITS_TOLD: Final = 6
"""After six doublings one sees where it goes."""


def _retry(retry: RetryPolicy) -> Iterator[Item]:
    yield Item(
        "tries", f"{retry.attempts_max} for one class of exception, the first included; another class begins anew"
    )
    if waits := waits_s(retry):
        more = ", ..." if retry.attempts_max - 1 > len(waits) else ""
        yield Item("waits", f"a random share of {', '.join(f'{wait_s:g}' for wait_s in waits)}{more} s")
        yield Item("a wish", f"a Retry-After or after_s counts instead, up to {retry.cap_s:g} s")
        yield Item("where", f"up to {retry.in_place_max_s:g} s in place, longer as a row in the queue")
    yield Item(
        "the end",
        f"no try starts later than {retry.age_max_s:g} s after the first failure; then the event is dead (exhausted; "
        "timeout if the handler ran past its deadline)",
    )


def waits_s(retry: RetryPolicy) -> list[float]:
    """The longest waits before the second try, the third, and so on, in seconds; the first few of them.

    >>> waits_s(RetryPolicy())
    [0.2, 0.4, 0.8, 1.6]
    """
    return [retry.ceiling_s(attempts) for attempts in range(1, min(retry.attempts_max, WAITS_TOLD + 1))]


# ------------------------------------------------------------------------------------------------------ key and limits

_ON_FAILURE: Final = {
    "block": "later events of its key wait behind it, in their order; other keys go on",
    "continue": "later events of its key go on without it",
    "stop": "the process leaves (exit code 70, offsets unadvanced) before anything of its key is left behind",
}
_AFTER_DEAD: Final = {
    "release": "a dead event lets its key go on",
    "hold": "a dead event holds its key until a person replays or discards it",
}
_AT_LIMIT: Final[dict[AtLimit, str]] = {
    "pause": "reading pauses until some are done",
    "dead": "the newcomers are dead (skipped_limit)",
}
_ON_CONFLICT: Final = {"dead": "dead (conflict)", "review": "put to review: a person decides"}


def _key(policy: FailurePolicy) -> Iterator[Item]:
    yield Item("while it waits", _ON_FAILURE[policy.on_failure])
    yield Item("once dead", _AFTER_DEAD[policy.after_dead])
    yield Item("under review", "it keeps its place until a person says what happened")
    yield Item("same id, new bytes", _ON_CONFLICT[policy.on_conflict])


def _limits(policy: FailurePolicy) -> Iterator[Item]:
    yield Item(
        "parked",
        f"at {policy.key_parked_max:,} events of one key, or {policy.parked_max:,} of the handler, "
        f"{_AT_LIMIT[policy.at_limit]}",
    )
    yield Item("breaker", _breaker(policy.breaker))


def _breaker(breaker: BreakerPolicy | None) -> str:
    if breaker is None:
        return "none: any number of events may die"
    return (
        f"{breaker.row_max:,} dead in a row, or more than {breaker.share_max:.0%} of the last {breaker.window:,} once "
        f"{breaker.seen_min:,} were seen, hold its events back; one is tried after {breaker.retry_after_s:g} s"
    )


# ---------------------------------------------------------------------------------------------------------------- path


def path_section(cls: type[BaseException], policy: FailurePolicy) -> Section:
    """Where an exception of this class goes: every rule and line that is asked about it, up to the one that decides."""
    return Section(f"What {named(cls)} means", tuple(_steps(cls, policy)))


def _steps(cls: type[BaseException], policy: FailurePolicy) -> Iterator[Item]:
    if (line := _first(ABSOLUTE, cls)) is not None:
        yield Item(line.on, line.says)
        return
    asked_first = _asked_first(cls)
    for number, rule in enumerate(policy.rules, 1):
        if not takes(rule.on, cls):
            yield Item(f"rule {number}", f"is about {named(rule.on)}: not asked")
            continue
        if asked_first is not None and rule.then is not Then.STOP:
            yield asked_first
            asked_first = None
        yield Item(f"rule {number}", rule_words(rule))
        if rule.when is None:
            return
    yield from _by_tables(cls)


def _asked_first(cls: type[BaseException]) -> Item | None:
    """The health check before a rule counts, where an outage of the database raises this class too."""
    when = _outage(cls)
    return None if when is None else Item("PostgreSQL first", f"its outage raises this too{when}: {_ASKED}")


def _outage(cls: type[BaseException]) -> str | None:
    """When a class is what an outage raises too (`rules.may_be_an_outage`), as the end of a sentence; None: never."""
    if (line := next(lines_of(cls), None)) is not None:
        return _OUTAGE_OF.get(line.on)
    if issubclass(cls, CONNECTION_LOST):
        return ""
    state = _sqlstate(cls)
    if state is not None:
        return "" if fault_of(state) is Fault.DEPENDENCY else None
    return ", where it tells of one" if _is_database(cls) else None


_OUTAGE_OF: Final = {
    OSError.__name__: ", unless it is about a path",
    DependencyError.__name__: ", where PostgreSQL is what it names",
}


def _by_tables(cls: type[BaseException]) -> Iterator[Item]:
    if issubclass(cls, BaseExceptionGroup):
        yield Item("its members", _MEMBERS)
        return
    if (line := next(lines_of(cls), None)) is not None:
        yield Item(line.on, line.says)
        return
    if (database := _database(cls)) is not None:
        yield Item("PostgreSQL", database)
        return
    yield Item("the tables", f"do not know {named(cls)}")
    yield Item("its cause", "what it was raised from is asked the same, if there is any")
    yield Item("otherwise", OWN_ERROR)


def _database(cls: type[BaseException]) -> str | None:
    """What the database's table says of a driver's class, or of SQLAlchemy's, whose SQLSTATE comes with the error."""
    if issubclass(cls, CONNECTION_LOST):
        return FAULT_SAYS[Fault.DEPENDENCY]
    state = _sqlstate(cls)
    if state is not None:
        return f"SQLSTATE {state}: {FAULT_SAYS[fault_of(state)]}"
    return "by SQLSTATE: " + _POSTGRESQL if _is_database(cls) else None


def _sqlstate(cls: type[BaseException]) -> str | None:
    state: object = getattr(cls, "sqlstate", None)
    return state if isinstance(state, str) else None


def _is_database(cls: type[BaseException]) -> bool:
    return not {"sqlalchemy", "asyncpg"}.isdisjoint(known_as(base)[0] for base in cls.__mro__)


_MEMBERS: Final = (
    "each is asked by itself; waiting wins over dying, review over both, and it is skipped only if every member is"
)
_POSTGRESQL: Final = next(item.text.partition(": ")[2] for item in TABLES if item.term == "PostgreSQL")


def _first(lines: Sequence[Line], cls: type[BaseException]) -> Line | None:
    return next((line for line in lines if isinstance(line.kind, type) and issubclass(cls, line.kind)), None)
