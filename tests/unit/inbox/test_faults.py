"""The table of faults: walked whole, and asked with what the driver really raises."""

from __future__ import annotations

import asyncpg
import pytest
from asyncpg import exceptions
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi

from tidegate.inbox.faults import SQLSTATE_FAULTS, Fault, classify, sqlstate
from tidegate.inbox.store import STORE_ERRORS

ALL_ERRORS = {
    error.sqlstate: error
    for error in vars(exceptions).values()
    if isinstance(error, type) and issubclass(error, exceptions.PostgresError) and getattr(error, "sqlstate", None)
}


@pytest.mark.parametrize("state", sorted(ALL_ERRORS))
def test_every_error_that_the_server_may_raise_has_one_fault(state: str) -> None:
    """By its SQLSTATE, else by its class, else it is the program's; but for a stale plan, which is told by its kind."""
    expected = SQLSTATE_FAULTS.get(state) or SQLSTATE_FAULTS.get(state[:2], Fault.PROGRAM)
    assert classify(ALL_ERRORS[state]("text")) in (expected, Fault.TRANSIENT if state == "0A000" else expected)


@pytest.mark.parametrize("key", sorted(SQLSTATE_FAULTS))
def test_the_table_holds_only_states_and_classes_that_exist(key: str) -> None:
    if len(key) == 5:
        assert key in ALL_ERRORS or key in {"57P05", "25P04", "58P01"}
        assert SQLSTATE_FAULTS[key] is not SQLSTATE_FAULTS.get(key[:2]), "says nothing that its class does not"
    else:
        assert any(state.startswith(key) for state in ALL_ERRORS)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (exceptions.DeadlockDetectedError("x"), Fault.TRANSIENT),
        (exceptions.SerializationError("x"), Fault.TRANSIENT),
        (exceptions.LockNotAvailableError("x"), Fault.TRANSIENT),
        (exceptions.QueryCanceledError("x"), Fault.TRANSIENT),
        (exceptions.IdleInTransactionSessionTimeoutError("x"), Fault.TRANSIENT),
        (exceptions.InvalidCachedStatementError("x"), Fault.TRANSIENT),
        (exceptions.AdminShutdownError("x"), Fault.DEPENDENCY),
        (exceptions.CannotConnectNowError("x"), Fault.DEPENDENCY),
        (exceptions.TooManyConnectionsError("x"), Fault.DEPENDENCY),
        (exceptions.ConnectionDoesNotExistError("x"), Fault.DEPENDENCY),
        (exceptions.ReadOnlySQLTransactionError("x"), Fault.DEPENDENCY),
        (exceptions.InterfaceError("connection is closed"), Fault.DEPENDENCY),
        (exceptions.InterfaceError("cannot perform operation: another operation is in progress"), Fault.PROGRAM),
        (ConnectionRefusedError(), Fault.DEPENDENCY),
        (TimeoutError(), Fault.DEPENDENCY),
        (exc.TimeoutError("QueuePool limit"), Fault.TRANSIENT),
        (exceptions.UniqueViolationError("x"), Fault.DATA),
        (exceptions.CharacterNotInRepertoireError("x"), Fault.DATA),
        (exceptions.ProgramLimitExceededError("x"), Fault.DATA),
        (exceptions.DataError("value out of int32 range"), Fault.DATA),
        (exceptions.UndefinedTableError("x"), Fault.PROGRAM),
        (exceptions.InsufficientPrivilegeError("x"), Fault.PROGRAM),
        (exceptions.InvalidPasswordError("x"), Fault.PROGRAM),
        (exceptions.PostgresError("no state"), Fault.PROGRAM),
        (ValueError("a handler's own"), Fault.PROGRAM),
    ],
)
def test_what_the_driver_raises_is_understood(error: Exception, fault: Fault) -> None:
    assert classify(error) is fault


def test_a_lost_connection_goes_before_whatever_it_looks_like() -> None:
    """Killed backends were seen as InterfaceError and as InternalError "cannot switch to state 15".

    Case: B48
    Parts: fake (errors as they were seen)
    Red when: inbox/faults.py does not look at `connection_invalidated`
    """
    error = exc.InternalError("SELECT 1", {}, Exception("cannot switch to state 15"), connection_invalidated=True)
    assert classify(error) is Fault.DEPENDENCY
    error = exc.InternalError("SELECT 1", {}, Exception("cannot switch to state 15"), connection_invalidated=False)
    assert classify(error) is Fault.PROGRAM


def test_a_driver_that_lost_its_state_lost_the_connection() -> None:
    """A COPY on a backend that a restart had ended raised the driver's own error, which no DBAPI class wraps.

    Case: B48
    Parts: fake (the error as it was seen)
    Red when: inbox/faults.py or STORE_ERRORS leaves InternalClientError out
    """
    error = asyncpg.InternalClientError('cannot switch to state 11; protocol is in the "failed" state')
    assert classify(error) is Fault.DEPENDENCY
    assert isinstance(error, STORE_ERRORS)


def test_a_parameter_that_cannot_be_made_is_the_datas_fault() -> None:
    """Decimal or bytes in a JSON column: a plain StatementError without an SQLSTATE."""
    assert classify(exc.StatementError("x", "INSERT", {}, TypeError("not JSON serializable"))) is Fault.DATA


def test_the_state_of_a_wrapped_error_is_that_of_its_cause() -> None:
    cause = AsyncAdapt_asyncpg_dbapi.Error("x", exceptions.DeadlockDetectedError("x"))
    assert sqlstate(exc.DBAPIError("SELECT", {}, cause)) == "40P01"
    assert sqlstate(ValueError()) is None
