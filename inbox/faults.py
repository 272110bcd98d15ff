"""What an error of the database means: whose fault it is, and whether time heals it. No IO.

A connection that is lost looks like anything (an `InterfaceError`, an `InternalError` "cannot switch to state 15", a
bare `OSError`), so that question goes first; then the SQLSTATE decides, by one table.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import asyncpg
from sqlalchemy import exc


class Fault(enum.Enum):
    """Whose fault an error of the database is."""

    DEPENDENCY = "dependency"
    """The database may be away: ask its health check. Where that passes (a backend was terminated) it is transient."""
    TRANSIENT = "transient"
    """Bad luck: another attempt may well succeed."""
    DATA = "data"
    """What was written cannot be stored or breaks a rule of the user's schema: no attempt with it will succeed."""
    PROGRAM = "program"
    """A wrong statement, a missing right or table, or no error of the database at all: no attempt helps."""


STORE_ERRORS: Final = (
    exc.SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Everything that a statement, a checkout or a commit can end with; `classify` tells what it means."""

CONNECTION_LOST: Final = (asyncpg.InternalClientError, OSError, asyncio.IncompleteReadError, exc.DisconnectionError)
"""Raised by a connection that was lost, whatever they say: the driver's own says "protocol is in the failed state" of a
backend that ended between two statements."""

SQLSTATE_FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "08": Fault.DEPENDENCY,  # connection exception
        "08P01": Fault.PROGRAM,  # protocol violation
        "0A": Fault.PROGRAM,  # feature not supported; a cached plan that went stale is told by its class
        "20": Fault.DATA,  # case not found
        "21": Fault.DATA,  # cardinality violation
        "22": Fault.DATA,  # value out of range, text that cannot be stored, and the driver's own refusals
        "23": Fault.DATA,  # integrity constraint
        "25": Fault.PROGRAM,  # transaction state
        "25006": Fault.DEPENDENCY,  # read-only: we are connected to a standby, a failover is on its way
        "25P03": Fault.TRANSIENT,  # idle in transaction for too long: the backend was terminated
        "25P04": Fault.TRANSIENT,  # transaction timeout
        "40": Fault.TRANSIENT,  # serialization failure, deadlock
        "40002": Fault.DATA,  # a deferred constraint was broken at commit
        "44": Fault.DATA,  # WITH CHECK OPTION
        "53": Fault.DEPENDENCY,  # out of disk, memory, connections
        "54": Fault.DATA,  # too large, too complex: an index row, a tuple
        "55": Fault.PROGRAM,  # object not in the state that is needed
        "55006": Fault.TRANSIENT,  # object in use
        "55P03": Fault.TRANSIENT,  # lock_timeout
        "57": Fault.DEPENDENCY,  # shut down, crashed, starting up
        "57014": Fault.TRANSIENT,  # statement_timeout or cancelled
        "57P05": Fault.TRANSIENT,  # idle session timeout
        "58": Fault.DEPENDENCY,  # the server's own IO
        "58P01": Fault.PROGRAM,  # a library that is not installed
        "72": Fault.TRANSIENT,  # snapshot too old
        "P0001": Fault.DATA,  # RAISE in a user's trigger
        "P0002": Fault.DATA,
        "P0003": Fault.DATA,
        "P0004": Fault.DATA,
        "XX": Fault.PROGRAM,
    }
)
"""SQLSTATE or its class (the first two characters) -> fault; whatever is not here is the program's."""


def classify(error: BaseException) -> Fault:
    """The fault of an error that a database call raised; PROGRAM for what did not come from the database."""
    if _is_connection_lost(error):
        return Fault.DEPENDENCY
    if isinstance(error, exc.TimeoutError) or _is_stale_plan(error):
        return Fault.TRANSIENT
    state = sqlstate(error)
    if state is not None:
        return fault_of(state)
    return Fault.DATA if _is_refused_value(error) else Fault.PROGRAM


def fault_of(state: str) -> Fault:
    """The fault that a SQLSTATE names.

    >>> fault_of("40P01"), fault_of("23505")
    (<Fault.TRANSIENT: 'transient'>, <Fault.DATA: 'data'>)
    """
    return SQLSTATE_FAULTS.get(state) or SQLSTATE_FAULTS.get(state[:2]) or Fault.PROGRAM


def sqlstate(error: BaseException) -> str | None:
    """The five characters by which PostgreSQL names the error; None where there are none."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    state = getattr(cause, "sqlstate", None)
    return state if isinstance(state, str) and len(state) == 5 else None


def _is_connection_lost(error: BaseException) -> bool:
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error) or "closing" in str(error)
    return isinstance(error, CONNECTION_LOST)


def _is_stale_plan(error: BaseException) -> bool:
    """After ALTER TABLE the first use of a cached statement fails once; the next one is prepared anew."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    stale = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)
    return isinstance(cause, stale) or isinstance(getattr(cause, "__cause__", None), stale)


def _is_refused_value(error: BaseException) -> bool:
    """A value that could not even be sent: the driver's `DataError`, or SQLAlchemy's while it made the parameters."""
    if isinstance(error, asyncpg.DataError):
        return True
    return isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError)
