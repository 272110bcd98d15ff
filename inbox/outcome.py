"""What can become of an event, as values. No IO; time is an argument."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Reason(enum.StrEnum):
    """Why an event is dead. A closed vocabulary: a new word is a documented change of the dead-letter format."""

    UNDECODABLE = "undecodable"
    UNKNOWN_SCHEMA = "unknown_schema"
    SCHEMA_INCOMPATIBLE = "schema_incompatible"
    TOMBSTONE = "tombstone"
    UNMATCHED = "unmatched"
    NO_KEY = "no_key"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    CONFLICT = "conflict"
    KILLED_PROCESS = "killed_process"
    TIMEOUT = "timeout"
    SKIPPED_LIMIT = "skipped_limit"
    CANCELLED = "cancelled"


class FailureState(enum.StrEnum):
    """The states of a failure row."""

    QUEUED = "queued"
    DEAD = "dead"
    UNKNOWN = "unknown"
    DISCARDED = "discarded"
    LINKED = "linked"


class FinalStatus(enum.StrEnum):
    """The last word on an event, as logs and metrics show it."""

    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SKIPPED_DUPLICATE = "skipped_duplicate"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Handled:
    """The handler did its work."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """There was nothing to do (`to_command` returned None): claimed, so that a repeat asks no question."""

    why: str = "nothing to do"


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again later. `after_s` is a wish (Retry-After, say), kept within the policy's bounds."""

    why: str
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Dead:
    """No retry helps: a failure row and a dead letter with this reason."""

    reason: Reason
    why: str
    exception_type: str = ""
    stack_digest: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can know whether the effect happened: a person decides."""

    why: str


Outcome = Handled | Skipped | Retry | Dead | Unknown
