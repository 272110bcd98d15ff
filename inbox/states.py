"""The life of a failure row: which act leads from which state to which, as data. No IO.

The statements in `failure` take their conditions from here, and the database refuses rows that are in no legal state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .outcome import FailureState


class Act(enum.StrEnum):
    """What is done to a failure row."""

    RETRY = "retry"
    FAIL = "fail"
    REVIEW = "review"
    LINK = "link"
    REPLAY = "replay"
    RESOLVE = "resolve"
    DISCARD = "discard"
    SEND = "send"
    COMPLETE = "complete"


NO_ROW: Final = None
"""Before its first failure, and after its success (then a claim stands in its place), an event has no row."""

TRANSITIONS: Final[Mapping[tuple[FailureState | None, Act], FailureState | None]] = MappingProxyType(
    {
        (NO_ROW, Act.RETRY): FailureState.QUEUED,
        (NO_ROW, Act.FAIL): FailureState.DEAD,
        (NO_ROW, Act.REVIEW): FailureState.UNKNOWN,
        (NO_ROW, Act.LINK): FailureState.LINKED,
        (FailureState.QUEUED, Act.RETRY): FailureState.QUEUED,
        (FailureState.QUEUED, Act.FAIL): FailureState.DEAD,
        (FailureState.QUEUED, Act.REVIEW): FailureState.UNKNOWN,
        (FailureState.QUEUED, Act.COMPLETE): NO_ROW,
        (FailureState.QUEUED, Act.DISCARD): FailureState.DISCARDED,
        (FailureState.DEAD, Act.REPLAY): FailureState.QUEUED,
        (FailureState.DEAD, Act.DISCARD): FailureState.DISCARDED,
        # It goes to its source topic once more, and comes back as a new record of the same event.
        (FailureState.DEAD, Act.SEND): NO_ROW,
        (FailureState.UNKNOWN, Act.RESOLVE): FailureState.QUEUED,
        (FailureState.UNKNOWN, Act.DISCARD): FailureState.DISCARDED,
        # A person says that it was done without its handler.
        (FailureState.UNKNOWN, Act.COMPLETE): NO_ROW,
        # A linked row is touched by no act of its own: it ends with its original, when that one completes.
        (FailureState.LINKED, Act.COMPLETE): NO_ROW,
    }
)


def sources(act: Act) -> frozenset[FailureState]:
    """The states of rows that `act` may be done to."""
    return frozenset(state for state, done in TRANSITIONS if done is act and state is not None)


def target(state: FailureState | None, act: Act) -> FailureState | None:
    """Where `act` leads; KeyError where it is not legal."""
    return TRANSITIONS[(state, act)]


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for (state, act), to in TRANSITIONS.items():
        lines.append(f"    {state or '[*]'} --> {to or '[*]'}: {act}")
    return "\n".join(lines)
