"""What is said of an error of the database, on one line: never the statement, nor what was to be written. No IO."""

from __future__ import annotations

from typing import Final

import asyncpg
from sqlalchemy import exc

from ...dlq.failure_text import safe_message
from ...inbox.faults import Fault, classify
from ..settings import masked_address


def told(error: BaseException) -> str:
    """Of what was refused for its values: class, state and names. Of anything else what the driver says."""
    cause = _cause_of(error)
    name = type(cause).__name__
    if classify(error) is Fault.DATA:
        return f"{name}, {safe_message(error)}"
    lines = str(cause).splitlines()
    if isinstance(cause, asyncpg.PostgresError):  # lines behind the first one quote rows
        lines = lines[:1]
    return masked_address(" ".join(" ".join(lines).split())) or name


def told_with_fix(error: BaseException) -> str:
    """It cannot be reached, or it refused us: both are the operator's. Or what was to be written does not fit."""
    if classify(error) is Fault.DATA:
        return f"it refuses what was to be written: {told(error)}. Fix: {_GO_ROUND}"
    return f"{told(error)}. Fix: {_LOOK}"


_GO_ROUND: Final = "nothing of this step was written; report this line, and go round what it was about by a filter"
_LOOK: Final = "check database.url, that PostgreSQL answers there, and this role's rights"


def _cause_of(error: BaseException) -> BaseException:
    """The driver's own error, behind the one that quotes the statement."""
    behind = error.orig if isinstance(error, exc.StatementError) else None
    return error if behind is None else behind.__cause__ or behind
