"""What an exception means: every one has a decision, and the tables are walked as they say."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from tidegate.dlq.rules import (
    DATABASE,
    DeadlineError,
    DeadNow,
    Decision,
    DependencyAway,
    Fatal,
    Lost,
    Transient,
    decide,
)
from tidegate.inbox.errors import DependencyError, FatalError, OwnershipLost, RecordError, TransientError
from tidegate.inbox.faults import SQLSTATE_FAULTS, Fault, classify
from tidegate.inbox.outcome import Reason

REJECTED = DeadNow(Reason.REJECTED)


class DriverError(Exception):
    """Shaped like the driver's error that SQLAlchemy wraps."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate
        super().__init__("text that must not matter")


def database_error(sqlstate: str) -> DBAPIError:
    return DBAPIError("SELECT 1", {}, DriverError(sqlstate))


def remote(module: str, name: str, base: type[Exception] = Exception, **attributes: object) -> Exception:
    """An error of a library that is not installed here."""
    error = type(name, (base,), {"__module__": module})("refused")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


class Response:
    """An HTTP answer, as far as it is looked at."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (RecordError(Reason.UNDECODABLE, "no"), DeadNow(Reason.UNDECODABLE)),
        (RecordError(Reason.NO_KEY, "no"), DeadNow(Reason.NO_KEY)),
        (OwnershipLost(), Lost()),
        (FatalError("stop", fix="look"), Fatal()),
        (DependencyError("registry", "away"), DependencyAway("registry")),
        (TransientError("later"), Transient(Reason.EXHAUSTED)),
        (DeadlineError("too long"), Transient(Reason.TIMEOUT)),
        (ValueError("a bug"), REJECTED),
        (KeyError("amount"), REJECTED),
        (json.JSONDecodeError("bad", "x", 0), REJECTED),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), REJECTED),
        (RecursionError(), REJECTED),
        (MemoryError(), Transient()),
        (FileNotFoundError("template.html"), REJECTED),
        (asyncio.CancelledError(), Transient()),
        (KeyboardInterrupt(), REJECTED),
        (SystemExit(1), REJECTED),
    ],
)
def test_errors_of_ours_and_of_the_language(error: BaseException, decision: Decision) -> None:
    assert decide(error, classify) == decision


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "x"),
        OSError(5, "x"),
        TimeoutError(),
        ConnectionResetError(),
        asyncpg.InterfaceError("connection is closed"),
    ],
)
def test_what_a_database_that_is_down_raises_waits_for_its_health_check(error: Exception) -> None:
    """A bare OSError or a closed connection never is a dead letter: a database that is down raises nothing else.

    Case: B48
    Parts: -
    Red when: dlq/rule_tables.py `OF_FAULT` maps Fault.DEPENDENCY to None
    """
    assert decide(error, classify) == DependencyAway(DATABASE)


@pytest.mark.parametrize("sqlstate", ["08006", "57P01", "57P03", "53300", "40001", "40P01", "55P03", "57014"])
def test_a_database_that_has_trouble_never_kills_an_event(sqlstate: str) -> None:
    """Lost connections, shutdowns, deadlocks and timeouts are waited out, however the driver wraps them.

    Case: B35
    Parts: -
    Red when: dlq/rule_tables.py `OF_FAULT` maps Fault.TRANSIENT to None
    """
    for error in (
        database_error(sqlstate),
        DriverError(sqlstate),
        raised_from(ValueError("x"), database_error(sqlstate)),
    ):
        assert isinstance(decide(error, classify), (Transient, DependencyAway))


@pytest.mark.parametrize(
    "sqlstate", ["22003", "22001", "22000", "22021", "22P02", "23505", "23502", "54000", "42P01", "42601"]
)
def test_a_value_that_does_not_fit_or_a_wrong_statement_is_rejected(sqlstate: str) -> None:
    """No retry makes 2,147,483,648 fit into an int4.

    Case: B45
    Parts: -
    Red when: dlq/rule_tables.py `OF_FAULT` maps Fault.DATA to Transient()
    """
    assert decide(database_error(sqlstate), classify) == REJECTED
    assert decide(IntegrityError("S", {}, DriverError(sqlstate)), classify) == REJECTED


def test_every_fault_has_a_place_in_the_table() -> None:
    for fault in Fault:
        decide(ValueError("x"), lambda _, fault=fault: fault)
    for sqlstate, fault in SQLSTATE_FAULTS.items():
        waits = isinstance(decide(database_error(sqlstate.ljust(5, "0")), classify), (Transient, DependencyAway))
        if len(sqlstate) == 5:
            assert waits == (fault in (Fault.DEPENDENCY, Fault.TRANSIENT)), sqlstate


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (remote("httpx", "TransportError"), Transient()),
        (remote("httpx._exceptions", "ConnectTimeout", type(remote("httpx", "TransportError"))), Transient()),
        (remote("httpx", "UnsupportedProtocol", type(remote("httpx", "TransportError"))), REJECTED),
        (remote("httpx", "HTTPStatusError", response=Response(503)), Transient()),
        (remote("httpx", "HTTPStatusError", response=Response(429)), Transient()),
        (remote("httpx", "HTTPStatusError", response=Response(404)), REJECTED),
        (remote("httpx", "HTTPStatusError"), REJECTED),
        (remote("requests.exceptions", "HTTPError", OSError, response=Response(422)), REJECTED),
        (remote("requests.exceptions", "ConnectionError", OSError), Transient()),
        (remote("requests.exceptions", "RequestException", OSError), REJECTED),
        (remote("aiohttp", "ClientResponseError", status=502), Transient()),
        (remote("aiohttp", "ClientResponseError", status=400), REJECTED),
        (remote("aiohttp", "ServerDisconnectedError", type(remote("aiohttp", "ClientError"))), Transient()),
        (remote("urllib.error", "HTTPError", OSError, code=504), Transient()),
        (remote("urllib.error", "HTTPError", OSError, code=404), REJECTED),
        (remote("mine.httpx", "TransportError"), REJECTED),
    ],
)
def test_http_clients_are_known_by_the_names_of_their_errors(error: Exception, decision: Decision) -> None:
    assert decide(error, classify) == decision


def test_the_cause_decides_where_the_error_itself_says_nothing() -> None:
    assert decide(raised_from(ValueError("x"), ConnectionError()), classify) == DependencyAway(DATABASE)
    assert decide(raised_from(ValueError("x"), RecordError(Reason.NO_KEY, "x")), classify) == DeadNow(Reason.NO_KEY)
    assert decide(raised_from(TransientError("x"), RecordError(Reason.NO_KEY, "x")), classify) == Transient()


def test_an_error_raised_while_handling_another_is_its_own() -> None:
    error = ValueError("x")
    error.__context__ = ConnectionError()
    assert decide(error, classify) == REJECTED


def test_a_lost_partition_and_a_fatal_error_go_first_wherever_they_stand() -> None:
    assert decide(raised_from(TransientError("x"), OwnershipLost()), classify) == Lost()
    assert decide(raised_from(RecordError(Reason.NO_KEY, "x"), FatalError("x", fix="y")), classify) == Fatal()


def test_of_a_group_the_decision_that_waits_wins() -> None:
    group = ExceptionGroup("two tasks", [ValueError("x"), database_error("40001")])
    assert decide(group, classify) == Transient()
    assert decide(ExceptionGroup("one task", [ValueError("x")]), classify) == REJECTED
    assert decide(ExceptionGroup("deep", [ExceptionGroup("in", [OwnershipLost()]), group]), classify) == Lost()
    assert decide(BaseExceptionGroup("cancelled", [asyncio.CancelledError(), ValueError()]), classify) == Transient()


def test_an_invalidated_connection_is_no_fault_of_the_event() -> None:
    error = OperationalError("S", {}, Exception("cannot switch to state 15"), connection_invalidated=True)
    assert decide(error, classify) == DependencyAway(DATABASE)


def test_a_chain_of_causes_that_bites_its_tail_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert decide(first, classify) == REJECTED


@given(st.recursive(
    st.sampled_from([ValueError, OSError, OwnershipLost, MemoryError]).map(lambda cls: cls("x")),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda errors: ExceptionGroup("g", errors)),
    max_leaves=8,
))  # fmt: skip
def test_every_exception_has_a_decision(error: Exception) -> None:
    assert isinstance(decide(error, classify), (Transient, DependencyAway, Fatal, Lost, DeadNow))
