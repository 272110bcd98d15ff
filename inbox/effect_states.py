"""The life of an effect's row: which act leads from which state to which, as data. No IO.

The statements in `effects` take their conditions from here, and the database refuses rows that are in no legal state.
A row is never deleted by an act: it is the memory of what was done outside.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class EffectState(enum.StrEnum):
    """Where an effect is."""

    INTENDED = "intended"
    """A call may be under way."""
    COMPLETED = "completed"
    """It was done, and its result is here."""
    FAILED = "failed"
    """It was surely not done: not sent, or refused."""
    UNKNOWN = "unknown"
    """The call ended, and nobody knows how."""
    RESOLVED = "resolved"
    """A person or a probe found out; `Resolution` says what."""


class Resolution(enum.StrEnum):
    """What was found out."""

    DONE = "done"
    NOT_DONE = "not_done"
    DISCARDED = "discarded"
    """Nobody wants it any more, done or not."""


class EffectAct(enum.StrEnum):
    """What is done to an effect's row."""

    INTEND = "intend"
    """A new attempt: of a stale intent or an unknown one only as its rule allows."""
    COMPLETE = "complete"
    """Evidence: the call was answered. Taken from any attempt, at any time."""
    FAIL = "fail"
    """The attempt that counts was not sent, or refused, and no earlier one is in doubt."""
    DOUBT = "doubt"
    """The attempt that counts ended without an answer; or the row opens so after a restore."""
    RESOLVE = "resolve"
    """A probe or a person knows."""


NO_ROW: Final = None

TRANSITIONS: Final[Mapping[tuple[EffectState | None, EffectAct], EffectState]] = MappingProxyType(
    {
        (NO_ROW, EffectAct.INTEND): EffectState.INTENDED,
        (NO_ROW, EffectAct.DOUBT): EffectState.UNKNOWN,
        (EffectState.INTENDED, EffectAct.INTEND): EffectState.INTENDED,
        (EffectState.FAILED, EffectAct.INTEND): EffectState.INTENDED,
        (EffectState.UNKNOWN, EffectAct.INTEND): EffectState.INTENDED,
        (EffectState.RESOLVED, EffectAct.INTEND): EffectState.INTENDED,
        (EffectState.INTENDED, EffectAct.COMPLETE): EffectState.COMPLETED,
        (EffectState.FAILED, EffectAct.COMPLETE): EffectState.COMPLETED,
        (EffectState.UNKNOWN, EffectAct.COMPLETE): EffectState.COMPLETED,
        (EffectState.RESOLVED, EffectAct.COMPLETE): EffectState.COMPLETED,
        (EffectState.INTENDED, EffectAct.FAIL): EffectState.FAILED,
        (EffectState.INTENDED, EffectAct.DOUBT): EffectState.UNKNOWN,
        (EffectState.FAILED, EffectAct.DOUBT): EffectState.UNKNOWN,
        (EffectState.RESOLVED, EffectAct.DOUBT): EffectState.UNKNOWN,
        (EffectState.INTENDED, EffectAct.RESOLVE): EffectState.RESOLVED,
        (EffectState.UNKNOWN, EffectAct.RESOLVE): EffectState.RESOLVED,
    }
)
"""A resolved row is intended anew only where it was found not done; one that was found done keeps its result. What
failed, or was found not done, comes into doubt only after a restore: what stands there is older than what happened."""


def sources(act: EffectAct) -> frozenset[EffectState]:
    """The states of rows that `act` may be done to."""
    return frozenset(state for state, done in TRANSITIONS if done is act and state is not None)


def target(state: EffectState | None, act: EffectAct) -> EffectState:
    """Where `act` leads; KeyError where it is not legal."""
    return TRANSITIONS[(state, act)]


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for (state, act), to in TRANSITIONS.items():
        lines.append(f"    {state or '[*]'} --> {to}: {act}")
    return "\n".join(lines)
