"""A policy in plain English says what the walk does."""

from __future__ import annotations

import asyncio
import datetime

import asyncpg
import pytest
import requests
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError, IntegrityError

from tidegate.dlq.in_words import path_section, policy_sections, rule_words, waits_s
from tidegate.dlq.policy import BreakerPolicy, FailurePolicy, Rule, fail_on, retry_on, review_on, skip_on, stop_on
from tidegate.dlq.retry import RetryPolicy
from tidegate.dlq.rules import DATABASE, DeadNow, DependencyAway, SkipNow, Transient, decide, may_be_an_outage
from tidegate.inbox.errors import DependencyError, EffectPending, OwnershipLost, RetryLater, TransientError
from tidegate.inbox.faults import classify
from tidegate.inbox.outcome import Reason


class Declined(Exception):
    """A user's own."""


class Stolen(Declined):
    """A user's own, more exact."""


def is_busy(_: Declined) -> bool:
    """The bank is busy.

    More that nobody needs.
    """
    return True


def seconds(_: Declined) -> float:
    return 3.0


class Condition:
    """A condition that is no function."""

    def __call__(self, _: object) -> bool:
        return True


def text_of(policy: FailurePolicy) -> str:
    return "\n".join(
        f"{section.title}\n" + "\n".join(f"{item.term}: {item.text}" for item in section.items)
        for section in policy_sections(policy)
    )


HERE = f"{__name__}.Declined"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (retry_on(Declined, because="it is night"), "is retried, because it is night"),
        (retry_on(Declined, because="because it is night"), "is retried, because it is night"),
        (
            retry_on(Declined, because="x", after_s=seconds),
            "is retried after the seconds that seconds reads, because x",
        ),
        (skip_on(Declined, because="x"), "is skipped (claimed, counted and logged), because x"),
        (fail_on(Declined, because="x"), "is dead (rejected), because x"),
        (fail_on(Declined, because="x", reason=Reason.NO_KEY), "is dead (no_key), because x"),
        (review_on(Declined, because="x"), "is put to review, because x"),
        (stop_on(Declined, because="x"), "is the end of the process (exit code 70, offsets unadvanced), because x"),
        (skip_on(Declined, because="x", when=is_busy), ", if is_busy says so (the bank is busy), is skipped"),
        (skip_on(Declined, because="x", when=Condition()), ", if Condition says so, is skipped"),
        (skip_on(Declined, because="x", when=lambda _: True), ", if the lambda at test_in_words.py:"),
    ],
)
def test_a_rule_reads_like_a_sentence(rule: Rule, words: str) -> None:
    assert rule_words(rule).startswith(HERE)
    assert words in rule_words(rule)


def test_the_tree_has_its_parts_in_the_order_in_which_they_are_asked() -> None:
    policy = FailurePolicy(rules=(skip_on(Declined, because="own"), stop_on(KeyError, because="default")), defaults=1)
    titles = [section.title for section in policy_sections(policy)]
    assert titles == [
        "Certain, wherever it stands: no rule is asked",
        "Before a rule counts, unless it says stop",
        "Then the handler's rules, the first that fits",
        "Then the app's rules",
        "Then the tables",
        "A retry",
        "The key",
        "The limits",
    ]
    by_title = {section.title: section.items for section in policy_sections(policy)}
    assert [item.term for item in by_title["Then the handler's rules, the first that fits"]] == ["rule 1"]
    assert [item.term for item in by_title["Then the app's rules"]] == ["rule 2"]


def test_what_is_declared_is_told() -> None:
    plain = text_of(FailurePolicy())
    assert "rules" not in plain.partition("Then the tables")[0].partition("no rule is asked")[2]
    assert "0.2, 0.4, 0.8, 1.6 s" in plain
    assert "later events of its key wait behind it" in plain
    assert "at 10,000 events of one key, or 1,000,000 of the handler, reading pauses" in plain
    assert "100 dead in a row, or more than 50% of the last 1,000" in plain
    other = text_of(
        FailurePolicy(
            "stop", RetryPolicy(attempts_max=100, cap_s=5.0), (), "hold", 10, 20, "dead", "review", breaker=None
        )
    )
    assert "0.2, 0.4, 0.8, 1.6, 3.2, 5, ... s" in other
    assert "the process leaves (exit code 70" in other
    assert "holds its key until a person replays or discards it" in other
    assert "at 10 events of one key, or 20 of the handler, the newcomers are dead (skipped_limit)" in other
    assert "same id, new bytes: put to review" in other
    assert "breaker: none" in other
    assert "go on without it" in text_of(FailurePolicy("continue", breaker=BreakerPolicy(row_max=3)))


def test_one_try_has_no_waits() -> None:
    assert waits_s(RetryPolicy(attempts_max=1)) == []
    assert "a random share" not in text_of(FailurePolicy(retry=RetryPolicy(attempts_max=1)))


RULES = (
    retry_on(Stolen, because="x", when=is_busy),
    fail_on(Stolen, because="stolen cards stay stolen"),
    skip_on(f"{__name__}.Declined", because="y"),
    review_on("nowhere.Error", because="z"),
)


def path(cls: type[BaseException], rules: tuple[Rule, ...] = RULES) -> list[tuple[str, str]]:
    return [(item.term, item.text) for item in path_section(cls, FailurePolicy(rules=rules)).items]


def test_a_path_shows_conditions_and_ends_at_the_rule_that_decides() -> None:
    steps = path(Stolen)
    assert [term for term, _ in steps] == ["rule 1", "rule 2"]
    assert "if is_busy says so" in steps[0][1]
    assert "dead (rejected), because stolen cards stay stolen" in steps[1][1]
    assert [term for term, _ in path(Declined)] == ["rule 1", "rule 2", "rule 3"]
    assert path(Declined)[0][1] == f"is about {__name__}.Stolen: not asked"


def test_a_path_without_a_rule_goes_to_the_tables_and_to_its_cause() -> None:
    assert [term for term, _ in path(ValueError)][-3:] == ["the tables", "its cause", "otherwise"]
    assert path(ValueError)[-1][1] == "dead (rejected): the handler's own error"
    assert path(OwnershipLost) == [("OwnershipLost", "the work is dropped: the partition is somebody else's")]
    assert path(ExceptionGroup, ())[0][0] == "its members"


@pytest.mark.parametrize(
    ("cls", "term", "text"),
    [
        (asyncpg.UniqueViolationError, "PostgreSQL", "SQLSTATE 23505: dead (rejected)"),
        (asyncpg.DeadlockDetectedError, "PostgreSQL", "SQLSTATE 40P01: retried"),
        (asyncpg.AdminShutdownError, "PostgreSQL", "SQLSTATE 57P01: a pause if the database is away"),
        (asyncpg.UndefinedTableError, "PostgreSQL", "SQLSTATE 42P01: dead (rejected), unless"),
        (asyncpg.InterfaceError, "PostgreSQL", "by SQLSTATE: "),
        (asyncio.IncompleteReadError, "PostgreSQL", "a pause if the database is away"),
        (DBAPIError, "PostgreSQL", "by SQLSTATE: away is a pause"),
        (IntegrityError, "PostgreSQL", "by SQLSTATE: "),
        (requests.HTTPError, "requests.HTTPError", "by its status"),
        (requests.Timeout, "requests.Timeout", "retried"),
        (KafkaException, "cimpl.KafkaException", "by its code"),
        (ConnectionResetError, "OSError", "about a path"),
        (TimeoutError, "OSError", "without a path the database may be away"),
        (RetryLater, "RetryLater", "retried, after the seconds"),
        (EffectPending, "EffectPending", "looked at again"),
    ],
)
def test_the_line_that_knows_a_class_is_told(cls: type[BaseException], term: str, text: str) -> None:
    ((found, says),) = path(cls, ())
    assert found == term
    assert text in says


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 1),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("protocol is in the failed state"),
        asyncpg.AdminShutdownError("it ends"),
        asyncpg.UniqueViolationError("it is there"),
        DependencyError(DATABASE, "away"),
        requests.ConnectionError("no answer"),
        KafkaException(),
        MemoryError(),
        ValueError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_where_an_outage_raises_it_too_the_database_is_asked_before_a_rule_counts(error: Exception) -> None:
    """The step stands in the path exactly where the worker makes it, before the first rule that may fit."""
    rules = (skip_on(KeyError, because="x"), retry_on(Exception, because="y", when=lambda _: False))
    rules += (fail_on(Exception, because="z"),)
    asked = may_be_an_outage(error, decide(error, classify, rules), classify)
    terms = [term for term, _ in path(type(error), rules)]
    assert terms == ["rule 1", *(("PostgreSQL first",) if asked else ()), "rule 2", "rule 3"]


def test_a_rule_that_stops_asks_nobody() -> None:
    rules = (stop_on(OSError, because="x", when=lambda _: True), fail_on(OSError, because="y"))
    assert [term for term, _ in path(OSError, rules)] == ["rule 1", "PostgreSQL first", "rule 2"]
    assert [term for term, _ in path(OSError, (stop_on(OSError, because="x"),))] == ["rule 1"]


def test_the_tree_says_that_the_database_is_asked_before_a_rule_counts() -> None:
    assert "while it is away this is a pause" in text_of(FailurePolicy(rules=RULES)).partition("Then the handler's")[0]
    assert "Before a rule counts" not in text_of(FailurePolicy())


@pytest.mark.parametrize("cls", [Stolen, Declined, ValueError, TransientError, MemoryError, ConnectionResetError])
def test_the_path_ends_where_the_walk_ends(cls: type[Exception]) -> None:
    decision = decide(cls(), classify, RULES, datetime.datetime.now(datetime.UTC))
    terms = [term for term, _ in path(cls)]
    if decision.led_by.rule:
        assert f"rule {decision.led_by.rule}" in terms
    words = {Transient: "retried", DeadNow: "dead", DependencyAway: "pause", SkipNow: "skipped"}
    expected = next(word for kind, word in words.items() if isinstance(decision, kind))
    assert any(expected in text for _, text in path(cls))
