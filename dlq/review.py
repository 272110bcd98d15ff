"""A person's word on what nobody can know: an outcome is resolved, and the event goes on or is done with.

| verb | what the person says | the call | the event |
|---|---|---|---|
| `done` | it was done, with this result or external id | resolved: done | runs again, gets the result, makes no call |
| `not_done` | it was not done; a repeat keeps the key, or gets a new one | resolved: not done | runs again, and calls |
| `run_again` | it may run again: nothing is in doubt (any more) | stays as it is | runs again |
| `discard` | nobody wants it any more | resolved: discarded, if its own | is discarded, and stays as a memory |

Other events that wait for the same call run again with it. A call that they wait for, or that was made for another one
(an operation id came twice), outlives the discarding of an event: nobody ruled on them.

An event without a call can be `done` too: then it gets its claim, as if its handler had come back. In all other cases
the handler writes claim and outbox itself, by running again.

Call, row and audit line change in one transaction, in the lock order 2, 3, 4, 6, 7, and only as they were read: what a
worker, a probe or another person changed meanwhile is refused, never overwritten.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import claim, effect_findings, effects, failure
from ..inbox.effect_findings import Finding
from ..inbox.effect_rows import EXTERNAL_ID_CHARS_MAX, ResultRefused, result_text
from ..inbox.effect_rules import RESULT_BYTES_MAX
from ..inbox.effect_states import EffectState, Resolution
from ..inbox.errors import TidegateError
from ..inbox.outcome import FailureState
from ..inbox.safe_text import Detail
from ..inbox.states import Act as RowAct
from ..inbox.tables import Tables
from . import verbs
from .permission import Gate
from .review_cases import Case, EffectShown, is_of_event_alone, named, waiting_for
from .selection import Entry


class Verb(enum.StrEnum):
    """What a person says."""

    DONE = "done"
    NOT_DONE = "not_done"
    RUN_AGAIN = "run_again"
    DISCARD = "discard"


class _NoResult(enum.Enum):
    NOT_GIVEN = 0


NOT_GIVEN: Final = _NoResult.NOT_GIVEN
"""No result was named; None is one: the call returned nothing."""


class Refused(TidegateError):
    """It is not resolved so, and why."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What is said about one case, and why. `result` is JSON as Python values."""

    reason: str
    reference: str
    verb: Verb
    result: Any = NOT_GIVEN
    external_id: str | None = None
    same_key: bool | None = None

    def __post_init__(self) -> None:
        if (self.same_key is not None) != (self.verb is Verb.NOT_DONE):
            raise Refused("say of what was not done, and only of that, whether the key is kept or must be a new one")
        if self.verb is not Verb.DONE and (self.result is not NOT_GIVEN or self.external_id is not None):
            raise Refused("a result and an external id belong to what was done")
        if self.external_id is not None and not 0 < len(self.external_id) <= EXTERNAL_ID_CHARS_MAX:
            raise Refused(f"an external id has 1 to {EXTERNAL_ID_CHARS_MAX} characters")

    def details(self, case: Case) -> dict[str, Detail]:
        """For the audit: never the result, which may hold anything."""
        details: dict[str, Detail] = {"verb": self.verb.value}
        if case.effect is not None:
            details |= {"effect_id": case.effect.id, "effect": case.effect.name, "effect_was": case.effect.state.value}
        if self.external_id is not None:
            details["external_id"] = self.external_id
        if self.same_key is not None:
            details["key"] = "kept" if self.same_key else "new"
        return details


async def resolve(gate: Gate, ruling: Ruling) -> Case:
    """Do what the ruling says, and give the case as it was before.

    Raises:
        NotPermitted: the caller may see the case, and not rule on it; that is audited.
        Refused: it does not fit the case, or the case changed meanwhile. Nothing was changed.
        TidegateError: nothing is known under the reference within the caller's reach.
    """
    async with gate.asked(verbs.Verb.REVIEW_RESOLVE, ruling.reason, named=True) as asked:
        case = await named(asked, ruling.reference)
        for place in case.places:
            asked.require(place)
        if (obstacle := obstacle_of(case, ruling)) is not None:
            raise Refused(obstacle)
        ended = await carry_out(asked.conn, asked.t, case, ruling)
        stays = case.effect is not None and case.effect.is_open and not ended
        await asked.write(case.place, ruling.details(case) | ({"effect_stays": True} if stays else {}))
    return case


def obstacle_of(case: Case, ruling: Ruling) -> str | None:
    """Why the ruling does not fit the case, for people; None where it does."""
    entry, effect, verb = case.entry, case.effect, ruling.verb
    if entry is not None and entry.state is not FailureState.UNKNOWN:
        return f"it is {entry.state.value}, so nothing of it waits for a person"
    if effect is None:
        if verb is Verb.NOT_DONE:
            return "no call of it is in doubt: --run-again, --done or --discard"
        return "it made no call whose result could be kept" if ruling.result is not NOT_GIVEN else None
    if not effect.is_open:
        known = effect.state.value if effect.resolution is None else f"found {effect.resolution.value}"
        return None if entry is not None and verb in (Verb.RUN_AGAIN, Verb.DISCARD) else f"its call is {known} by now"
    if verb is Verb.RUN_AGAIN:
        return "its call is in doubt: say whether it was done (--done or --not-done)"
    return _what_done_lacks(effect, ruling) if verb is Verb.DONE else None


def _what_done_lacks(effect: EffectShown, ruling: Ruling) -> str | None:
    given = {"result": ruling.result is not NOT_GIVEN, "external_id": ruling.external_id is not None}
    if not any(given.values()):
        return "what was done needs its result or its external id: the handler goes on with it"
    lacking = [need for need in effect.done_needs if not given.get(need, True)]
    if not lacking:
        return None
    options = " and ".join(f"--{need.replace('_', '-')}" for need in lacking)
    return f"effect {effect.name!r} declares that its handler cannot go on without it: give {options} too"


async def carry_out(conn: AsyncConnection, t: Tables, case: Case, ruling: Ruling) -> bool:
    """Lock order 2 to 6, of a case as it was read: whether a call was resolved. Raises Refused where it has changed."""
    entry, effect = case.entry, case.effect
    rows = [] if entry is None else [(entry.id, entry.row_version)]
    ends = effect if effect is not None and await _ends_call(conn, t, entry, effect, ruling.verb) else None
    others = [] if ends is None else await waiting_for(conn, t, ends.id)
    locked = await failure.lock_lanes(conn, t, {*rows, *others})
    if effect is None and entry is not None and ruling.verb is Verb.DONE:
        await _claim(conn, t, entry)
        if not await failure.complete(conn, t, rows, locked):
            raise Refused(_CHANGED)
        return False
    if ruling.verb is Verb.DISCARD and rows:
        if not await failure.discard(conn, t, rows, locked):
            raise Refused(_CHANGED)
        again = [other for other in others if other not in rows]
    else:
        again = sorted({*rows, *others})
    due = (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
    done = await failure.requeue(conn, t, again, due, RowAct.RESOLVE, locked)
    if ruling.verb is not Verb.DISCARD and rows and rows[0][0] not in done:
        raise Refused(_CHANGED)
    if ends is not None:
        await _resolve_effect(conn, t, ends, ruling)
    return ends is not None


async def _ends_call(conn: AsyncConnection, t: Tables, entry: Entry | None, effect: EffectShown, verb: Verb) -> bool:
    """Whether the ruling is one on the call too. A discarded event leaves a call that is not its own as it is."""
    if not effect.is_open:
        return False
    return verb is not Verb.DISCARD or entry is None or await is_of_event_alone(conn, t, effect, entry)


_CHANGED: Final = "it was changed meanwhile: look at it again"


async def _claim(conn: AsyncConnection, t: Tables, entry: Entry) -> None:
    """Lock order 3 and 4, for an event that was done without its handler."""
    row = (
        await conn.execute(sa.select(t.failure.c.handler, t.failure.c.payload_hash8).where(t.failure.c.id == entry.id))
    ).one_or_none()
    if row is None:
        raise Refused(_CHANGED)
    await claim.lock_generations(conn, t)
    mine = [(entry.event_id, row.payload_hash8)]
    await claim.claim(conn, t, row.handler, entry.version, mine, optimistic=False)


async def _resolve_effect(conn: AsyncConnection, t: Tables, effect: EffectShown, ruling: Ruling) -> None:
    """Behind lock order 6."""
    row = await effects.read(conn, t, effect.id)
    if row is None or row.row_version != effect.row_version:
        raise Refused(_CHANGED)
    if row.state is EffectState.INTENDED and row.now < row.due:
        raise Refused("its call may still be under way: look again later")
    if not await effect_findings.resolve(conn, t, row, _finding(ruling)):
        raise Refused(_CHANGED)


def _finding(ruling: Ruling) -> Finding:
    match ruling.verb:
        case Verb.DONE:
            result = None if ruling.result is NOT_GIVEN else ruling.result
            return Finding(Resolution.DONE, _text(result), ruling.external_id)
        case Verb.NOT_DONE:
            return Finding(Resolution.NOT_DONE, new_key=not ruling.same_key)
        case Verb.DISCARD:
            return Finding(Resolution.DISCARDED)
        case Verb.RUN_AGAIN:
            raise AssertionError("what is in doubt does not simply run again")


def _text(result: Any) -> str | None:
    try:
        return result_text(result, RESULT_BYTES_MAX)
    except ResultRefused as error:
        raise Refused(str(error)) from error
