"""What may be done now about an operation whose row stands already: one walk, total. No IO; time is an argument.

The question is whether it is safe, and every answer is one of seven. Times are the database's, read with the row.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from .effect_rows import NOT_TOLD, Call, EffectRow
from .effect_rules import Effect, IdempotentKey, Probe, probe_of, rule_name
from .effect_states import EffectState, Resolution

UNSURE_MAX: Final = 10
"""Calls in a row that nobody knows the end of, each found not done by the probe: then the service does not work as it
was declared, and a person looks.
"""

CLOCK_S: Final = 5.0
"""How far a key's first use may lie in the future: the time is read before the row, and perhaps on another server than
the one that wrote it. More means that a clock was set back, and then nobody knows how old the key is.
"""


@final
@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """Give the stored result."""


@final
@dataclass(frozen=True, slots=True)
class TakeOver:
    """Call (again). `in_doubt`: an earlier call may have been done, and this one has its key. `key_since` bounds the
    key's age; None: nobody ever used it for anything that was done.
    """

    in_doubt: bool
    unsure: int
    key_since: datetime.datetime | None


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """Another attempt's call may be under way until `due`."""

    due: datetime.datetime


@final
@dataclass(frozen=True, slots=True)
class Ask:
    """The service knows: ask it."""

    probe: Probe


@final
@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody can know: a person decides."""

    why: str


@final
@dataclass(frozen=True, slots=True)
class Contradiction:
    """Another request under the same operation id: a person decides, and nothing is called."""


@final
@dataclass(frozen=True, slots=True)
class NotWanted:
    """A person said that nobody wants it any more."""


Judgement: TypeAlias = AlreadyDone | TakeOver | Wait | Ask | GiveUp | Contradiction | NotWanted


def judge(row: EffectRow, call: Call, *, withdrawn: bool = False) -> Judgement:
    """What to do about `call`, of which `row` is known.

    `withdrawn`: the row is open for an attempt that never called. Nobody waits for it; but what it took over in doubt
    is in doubt as before.
    """
    if row.resolution is Resolution.DISCARDED:
        return NotWanted()
    if _surely_not_done(row):
        # What a probe found stays counted: it says nothing about why the service never answers.
        unsure = 0 if row.state is EffectState.FAILED else row.unsure
        return TakeOver(in_doubt=False, unsure=unsure, key_since=None)
    if withdrawn and not row.in_doubt:
        return TakeOver(in_doubt=False, unsure=row.unsure, key_since=row.key_since)
    if _contradicts(row.fingerprint, call.fingerprint):
        return Contradiction()
    if row.is_done:
        return AlreadyDone()
    if row.state is EffectState.INTENDED and row.now < row.due and not withdrawn:
        return Wait(row.due)
    return _of_unknown(row, call.effect, calls=0 if withdrawn else 1)


def judge_open(row: EffectRow, effect: Effect) -> Judgement:
    """What to do about an open row that no call is about to be made for: whoever goes through them asks."""
    return _of_unknown(row, effect, calls=1)


def judge_missing(call: Call, now: datetime.datetime) -> TakeOver | None:
    """What to do about `call` that has no row, in a database that may have forgotten it; None: it opens as unknown.

    The key cannot be older than the record that led to it. A record from the future says nothing.
    """
    rule = call.effect.rule
    at = None if call.event is None else call.event.timestamp
    if isinstance(rule, IdempotentKey) and at is not None and at <= now and _is_valid(rule, call.effect, at, now):
        return TakeOver(in_doubt=True, unsure=1, key_since=at)
    return None


def _surely_not_done(row: EffectRow) -> bool:
    """What a copy of an earlier day says of a call that failed then is not what happened later."""
    if row.state is not EffectState.FAILED and row.resolution is not Resolution.NOT_DONE:
        return False
    return row.restored_at is None or row.ended_at is None or row.ended_at >= row.restored_at


def _contradicts(known: bytes, told: bytes) -> bool:
    return known != told and NOT_TOLD not in (known, told)


def _of_unknown(row: EffectRow, effect: Effect, *, calls: int) -> Judgement:
    """By the rule. `calls`: how many the attempt that counts made, of which nobody knows the end."""
    rule = effect.rule
    # A call that was made under another rule did not carry the key, for all that we know.
    keyed = isinstance(rule, IdempotentKey) and row.rule == rule_name(rule)
    if isinstance(rule, IdempotentKey) and keyed and _is_valid(rule, effect, row.key_since, row.now):
        return TakeOver(in_doubt=True, unsure=row.unsure + calls, key_since=row.key_since)
    probe = probe_of(rule)
    if probe is None:
        return GiveUp(_why_no_key(row) if keyed else "nobody can be asked whether the call was made")
    if row.unsure >= UNSURE_MAX:
        return GiveUp(f"{row.unsure} calls in a row ended without an answer")
    return Wait(row.due) if row.now < row.due else Ask(probe)


def _is_valid(rule: IdempotentKey, effect: Effect, since: datetime.datetime, now: datetime.datetime) -> bool:
    """Whether a call that begins now still reaches the service while it remembers the key."""
    age_s = (now - since).total_seconds()
    return age_s >= -CLOCK_S and age_s + effect.deadline_s <= rule.valid_s


def _why_no_key(row: EffectRow) -> str:
    if row.key_since > row.now:
        return "nobody knows how old its idempotency key is: a clock was set back"
    return "its idempotency key is too old"
