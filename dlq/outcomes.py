"""What a handler function gave back, or raised, as an outcome. No IO; time is an argument.

A handler that returns says how its event ended: None (done), or one of the outcomes. Anything else is a mistake that
must not pass for success: a forgotten `await`, or a value for nobody.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Final, cast

from ..inbox.errors import FatalError
from ..inbox.event import Record
from ..inbox.exception_slots import causes_of
from ..inbox.outcome import Dead, Handled, Outcome, Reason, Retry, Skipped, Unknown
from .decisions import DeadNow, Fatal, ReviewNow, Said, SkipNow, Transient
from .failure_text import alone, dead, exception_type, safe_text
from .retry import is_wait

FIX: Final = "return None when it is done, or Skipped, Retry, Dead or Unknown"


def outcome_of(value: object, record: Record | None = None) -> Outcome:
    """The outcome that `value` is. `record`: whose own values are left out of what the outcome says.

    >>> outcome_of(None), outcome_of(Skipped("nobody asked for it"))
    (Handled(), Skipped(why='nobody asked for it'))
    >>> outcome_of(True).why.partition(". Fix: ")[0]
    'the handler returned a bool, which says nothing'
    """
    payload = () if record is None else (record.key, record.value)
    match value:
        case None | Handled():
            return Handled()
        case Skipped() | Unknown():
            return replace(value, why=_told(value.why, payload))
        case Retry():
            return _retry(value, payload)
        case Dead():
            return _dead(value, payload)
        case _:
            return _nonsense(value)


def said(value: Skipped | Retry | Dead | Unknown, record: Record | None = None) -> Said:
    """The same outcome as an error, of what a function returned for one event or for many, by which many are searched.

    >>> said(Skipped("switched off")).decision
    SkipNow(because='switched off', led_by=LedBy(line='', rule=0))
    """
    match outcome_of(value, record):
        case Skipped(why):
            return Said(SkipNow(why or Skipped().why))
        case Retry(why, after_s):
            return Said(Transient(after_s=after_s, because=why))
        case Unknown(why):
            return Said(ReviewNow(why))
        case Dead(reason, why):
            return Said(DeadNow(reason, why))
        case Handled():
            raise AssertionError("it says nothing")


def dead_by(decision: DeadNow | Transient, exc: BaseException, record: Record) -> Dead:
    """The outcome of `record` that `exc` led to: dead at once, or because no further attempt is due.

    Where a rule decided, its reason stands before the exception's own message.
    """
    reason = decision.reason if isinstance(decision, DeadNow) else decision.exhausted
    if isinstance(exc, Said):  # nothing was raised
        return Dead(reason, _told(decision.because, (record.key, record.value)))
    return dead(reason, exc, record, decision.because if decision.led_by.rule else "")


def fatal_by(decision: Fatal, exc: BaseException, record: Record | None = None) -> FatalError:
    """The error with which the process leaves: the one that was raised, or a rule's, without secrets or payload.

    Without a `record` (of a batch nobody knows which it was) the exception's own message is left out.
    """
    fatal = next((link for link in causes_of(exc) if isinstance(link, FatalError)), None)
    if fatal is not None:
        return fatal
    what = f"{exception_type(alone(exc))}: {decision.because}"
    if record is not None:
        why = dead(Reason.REJECTED, exc, record, decision.because).why
        what = f"{record.topic}/{record.partition}@{record.offset}: {exception_type(alone(exc))}: {why}"
    return FatalError(what, fix="repair the cause, then start again")


def _retry(value: Retry, payload: Any) -> Outcome:
    after_s = cast(object, value.after_s)
    if after_s is None or is_wait(after_s):
        return replace(value, why=_told(value.why, payload))
    return _rejected(f"a Retry whose after_s is a {type(after_s).__name__} that is no wait", "give seconds, or None")


def _dead(value: Dead, payload: Any) -> Outcome:
    reasons = {reason.value: reason for reason in Reason}
    reason = reasons.get(str(value.reason))
    if reason is None:
        return _rejected("a Dead with a reason of its own", f"take one of {', '.join(reasons)}")
    return replace(value, reason=reason, why=_told(value.why, payload))


def _nonsense(value: object) -> Outcome:
    forgotten = next((outcome for outcome in (Skipped, Retry, Dead, Unknown) if value is outcome), None)
    if forgotten is not None:
        return _rejected(f"the class {forgotten.__name__}", f"return an instance: {forgotten.__name__}(...)")
    if inspect.iscoroutine(value):
        value.close()  # else Python warns, later and elsewhere, that nobody awaited it
        return _rejected("a coroutine that nobody awaited", "await it before the handler returns")
    return _rejected(f"a {type(value).__name__}, which says nothing", FIX)


def _rejected(what: str, fix: str) -> Dead:
    return Dead(Reason.REJECTED, f"the handler returned {what}. Fix: {fix}")


def _told(why: object, payload: Any) -> str:
    """The handler's words, as rows, headers and terminals can hold them."""
    return safe_text(why if isinstance(why, str) else type(why).__name__, payload)
