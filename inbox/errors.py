"""The product's errors: whose fault is it, does time heal it, who owns the partition, may we go on?

| error | whose fault | does time heal it | what happens |
|---|---|---|---|
| `ConfigurationError` | the operator's | no | at start, every problem at once, exit code 78 |
| `RecordError` | the record's | no | the record is dead at once, with the error's reason |
| `TransientError` | the world's | yes | counted, retried by a bounded policy |
| `RetryLater` | the world's | yes, after a while | the same, after the seconds that the handler asks for |
| `DependencyError` | a dependency's | yes, when it comes back | partitions pause, no attempt is counted, no bound |
| `EffectPending` | nobody's | at its deadline | the event waits in the queue until then, no attempt is counted |
| `EffectUnknown` | nobody's | no | the event waits for a person: nobody can know whether the call was made |
| `EffectTooLate` | the world's | yes | the call was not made; counted and tried again like any transient error |
| `EffectMisused` | the handler's | no | like any bug of a handler: the event is dead; nothing was called by it |
| `OwnershipLost` | nobody's | - | the work is dropped and counted: no retry, no dead letter, no commit |
| `FatalError` | needs a person | no | the process leaves with an exit code, offsets unadvanced |
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from .outcome import Reason

EXIT_FATAL = 70
"""EX_SOFTWARE of sysexits.h: a supervisor may restart, but a person has to look."""

EXIT_NOT_PERMITTED = 77
"""EX_NOPERM of sysexits.h: trying again does not help before somebody is granted more."""

EXIT_CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: restarting does not help before the configuration is changed."""


class TidegateError(Exception):
    """The root of everything that tidegate raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the configuration: the key, what is wrong with it, and the fix."""

    key: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.key}: {self.what}. Fix: {self.fix}"


class ConfigurationError(TidegateError):
    """Everything that is wrong with the configuration, all at once."""

    exit_code = EXIT_CONFIGURATION

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def of(cls, key: str, what: str, fix: str) -> ConfigurationError:
        """A single problem."""
        return cls((Problem(key, what, fix),))


class RecordError(TidegateError):
    """A record that no retry can help. `reason` comes from the closed vocabulary; the message never holds payload."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class TransientError(TidegateError):
    """The world is bad right now: the attempt is counted and tried again within the handler's bounds."""


class RetryLater(TransientError):
    """A handler asks for another attempt, after `after_s` seconds: a wish, kept within its policy's bounds."""

    def __init__(self, because: str, *, after_s: float | None = None) -> None:
        self.after_s = after_s
        super().__init__(because)


class DependencyError(TransientError):
    """A dependency is away. Its users pause until its own health check passes; no attempt is counted."""

    def __init__(self, dependency: str, message: str) -> None:
        self.dependency = dependency
        super().__init__(f"{dependency}: {message}")


class EffectPending(TransientError):
    """Another attempt's call may still be under way: look again at `due`. No attempt is counted."""

    def __init__(self, effect_id: int, due: datetime.datetime, message: str) -> None:
        self.effect_id = effect_id
        self.due = due
        super().__init__(message)


class EffectUnknown(TidegateError):
    """Nobody can know whether the call was made, or the call contradicts what is known of it: a person decides."""

    def __init__(self, effect_id: int, message: str) -> None:
        self.effect_id = effect_id
        super().__init__(message)


class EffectTooLate(TransientError):
    """The deadline of an effect passed before its call was made, so it was not made."""


class EffectMisused(TidegateError):
    """An effect is used in a way that could double or lose it; the message names the fix."""


class OwnershipLost(TidegateError):
    """The partition belongs to somebody else by now: drop the work, count it, write nothing."""


class FatalError(TidegateError):
    """The process must leave, with the offsets where they are; `fix` tells a person what to do."""

    def __init__(self, message: str, *, fix: str, exit_code: int = EXIT_FATAL) -> None:
        self.fix = fix
        self.exit_code = exit_code
        super().__init__(f"{message}. Fix: {fix}")
