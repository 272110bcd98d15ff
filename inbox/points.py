"""Every point of an event's path at which a process may die, by its name; tests have it die there.

The code passes each point: `reach` where something just happened or is about to, `Store.transaction(writes)` on both
sides of a commit. A writing transaction is opened with its `Writes`, so a new one cannot be without its points
(`tests/tidy/test_points.py`), and the crash matrix walks through the enum, so a new point cannot be without its crash.

Nothing is armed but by a variable that is read at import: `TIDEGATE_TEST_CRASH_AT=after_handler@charge:2` ends the
process, as kill -9 does, the second time that the handler `charge` came back. `TIDEGATE_TEST_STOP_AT` freezes it there,
until somebody sends SIGCONT: so a zombie is made at a point. `TIDEGATE_TEST_CRASH_WHEN` may name a file: passes before
it exists do not count.
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar, final

T = TypeVar("T")

AT: Final = "TIDEGATE_TEST_CRASH_AT"
STOP_AT: Final = "TIDEGATE_TEST_STOP_AT"
WHEN: Final = "TIDEGATE_TEST_CRASH_WHEN"


class Point(enum.StrEnum):
    """A moment between two lines. Its value is its name in a test's variable."""

    POLLED = "polled"
    DECODED = "decoded"
    PROBED = "probed"
    CLAIMED = "claimed"
    BEFORE_HANDLER = "before_handler"
    AFTER_HANDLER = "after_handler"
    BEFORE_CALL = "before_call"
    IN_CALL = "in_call"
    """Passed by the caller's code: in the crash matrix between its request and the answer."""
    AFTER_CALL = "after_call"
    BEFORE_SEND = "before_send"
    AFTER_SEND = "after_send"
    BEFORE_OFFSETS = "before_offsets"
    AFTER_OFFSETS = "after_offsets"
    BEFORE_TAKEOVER = "before_takeover"
    AFTER_TAKEOVER = "after_takeover"

    BEFORE_BATCH = "before_batch"
    AFTER_BATCH = "after_batch"
    BEFORE_VERDICTS = "before_verdicts"
    AFTER_VERDICTS = "after_verdicts"
    BEFORE_GROUP = "before_group"
    AFTER_GROUP = "after_group"
    BEFORE_TX = "before_tx"
    AFTER_TX = "after_tx"
    BEFORE_REJECTS = "before_rejects"
    AFTER_REJECTS = "after_rejects"
    BEFORE_ROW = "before_row"
    AFTER_ROW = "after_row"
    BEFORE_HAND_OUT = "before_hand_out"
    AFTER_HAND_OUT = "after_hand_out"
    BEFORE_VERDICT = "before_verdict"
    AFTER_VERDICT = "after_verdict"
    BEFORE_INTENT = "before_intent"
    AFTER_INTENT = "after_intent"
    BEFORE_COMPLETION = "before_completion"
    AFTER_COMPLETION = "after_completion"
    BEFORE_RECONCILE = "before_reconcile"
    AFTER_RECONCILE = "after_reconcile"
    BEFORE_MARK = "before_mark"
    AFTER_MARK = "after_mark"
    BEFORE_NOTE = "before_note"
    AFTER_NOTE = "after_note"
    BEFORE_RAISE = "before_raise"
    AFTER_RAISE = "after_raise"
    BEFORE_WANT = "before_want"
    AFTER_WANT = "after_want"
    BEFORE_TAKE = "before_take"
    AFTER_TAKE = "after_take"
    BEFORE_START = "before_start"
    AFTER_START = "after_start"
    BEFORE_AGREE = "before_agree"
    AFTER_AGREE = "after_agree"
    BEFORE_GIVE_BACK = "before_give_back"
    AFTER_GIVE_BACK = "after_give_back"
    BEFORE_TOPIC = "before_topic"
    AFTER_TOPIC = "after_topic"
    BEFORE_SUSPECT = "before_suspect"
    AFTER_SUSPECT = "after_suspect"
    BEFORE_LEASE = "before_lease"
    AFTER_LEASE = "after_lease"
    BEFORE_BREAKER = "before_breaker"
    AFTER_BREAKER = "after_breaker"
    BEFORE_SEAL = "before_seal"
    AFTER_SEAL = "after_seal"
    BEFORE_REGISTER = "before_register"
    AFTER_REGISTER = "after_register"
    BEFORE_RELEASE = "before_release"
    AFTER_RELEASE = "after_release"


class Writes(enum.Enum):
    """What a writing transaction is for; its value: the points before and after its commit."""

    BATCH = (Point.BEFORE_BATCH, Point.AFTER_BATCH)
    """A batch of projections."""
    VERDICTS = (Point.BEFORE_VERDICTS, Point.AFTER_VERDICTS)
    """What became of a batch's events one by one, after one of them failed."""
    GROUP = (Point.BEFORE_GROUP, Point.AFTER_GROUP)
    """Commands' completions, and rows of those that failed."""
    TX = (Point.BEFORE_TX, Point.AFTER_TX)
    """A handler's own transaction, with its claim."""
    REJECTS = (Point.BEFORE_REJECTS, Point.AFTER_REJECTS)
    """Records that no handler can be given."""
    ROW = (Point.BEFORE_ROW, Point.AFTER_ROW)
    """A row of the slow way that was handled."""
    HAND_OUT = (Point.BEFORE_HAND_OUT, Point.AFTER_HAND_OUT)
    """A repaired record becomes a row for each of its handlers."""
    VERDICT = (Point.BEFORE_VERDICT, Point.AFTER_VERDICT)
    """A row of the slow way that failed again: later, dead, or to be reviewed."""
    INTENT = (Point.BEFORE_INTENT, Point.AFTER_INTENT)
    """Calls to the outside that are about to be made."""
    COMPLETION = (Point.BEFORE_COMPLETION, Point.AFTER_COMPLETION)
    """What is known of calls to the outside that were made."""
    RECONCILE = (Point.BEFORE_RECONCILE, Point.AFTER_RECONCILE)
    """What the reconciler found out about them, and events that go on with it."""
    MARK = (Point.BEFORE_MARK, Point.AFTER_MARK)
    """Records that were sent."""
    NOTE = (Point.BEFORE_NOTE, Point.AFTER_NOTE)
    """Offsets that are about to be committed to Kafka."""
    RAISE = (Point.BEFORE_RAISE, Point.AFTER_RAISE)
    """Checkpoints of handlers that had nothing to do."""
    WANT = (Point.BEFORE_WANT, Point.AFTER_WANT)
    """The first step of a takeover."""
    TAKE = (Point.BEFORE_TAKE, Point.AFTER_TAKE)
    """Its second."""
    START = (Point.BEFORE_START, Point.AFTER_START)
    """Where each handler begins to read."""
    AGREE = (Point.BEFORE_AGREE, Point.AFTER_AGREE)
    """The start as Kafka is told it."""
    GIVE_BACK = (Point.BEFORE_GIVE_BACK, Point.AFTER_GIVE_BACK)
    """A takeover that Kafka did not confirm."""
    TOPIC = (Point.BEFORE_TOPIC, Point.AFTER_TOPIC)
    """What a topic's name stands for."""
    SUSPECT = (Point.BEFORE_SUSPECT, Point.AFTER_SUSPECT)
    """The mark of what is handled alone."""
    LEASE = (Point.BEFORE_LEASE, Point.AFTER_LEASE)
    """Who does what only one may do."""
    BREAKER = (Point.BEFORE_BREAKER, Point.AFTER_BREAKER)
    """What replicas know of a provider."""
    SEAL = (Point.BEFORE_SEAL, Point.AFTER_SEAL)
    """Lines of the audit that get their place in the chain."""
    REGISTER = (Point.BEFORE_REGISTER, Point.AFTER_REGISTER)
    """The app's handlers, at the start of a process."""
    RELEASE = (Point.BEFORE_RELEASE, Point.AFTER_RELEASE)
    """A clean end."""

    @property
    def before(self) -> Point:
        """Everything is written, nothing is durable."""
        return self.value[0]

    @property
    def after(self) -> Point:
        """Everything is durable, nobody was told."""
        return self.value[1]


@final
class Fuse:
    """Ends the process, or freezes it, at one pass of one point; exists in tests only."""

    def __init__(self, at: str, when: str | None = None, sends: signal.Signals = signal.SIGKILL) -> None:
        """`at`: `point`, `point@of`, each with `:n` for the n-th pass."""
        self._sends = sends
        place, _, nth = at.partition(":")
        point, _, self._of = place.partition("@")
        self._point = Point(point)
        self._left = int(nth or "1")
        self._when = None if when is None else Path(when)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> tuple[Fuse, ...]:
        """What the variables ask for."""
        asked = ((environment.get(AT), signal.SIGKILL), (environment.get(STOP_AT), signal.SIGSTOP))
        return tuple(cls(at, environment.get(WHEN), sends) for at, sends in asked if at)

    def is_due(self, point: Point, of: str) -> bool:
        """Whether this pass is the one; counts it."""
        if point is not self._point or (self._of and of != self._of):
            return False
        if self._when is not None and not self._when.exists():
            return False
        self._left -= 1
        return self._left == 0

    def pass_by(self, point: Point, of: str) -> None:
        """Die, or stand still, if this pass is the one."""
        if self.is_due(point, of):
            os.kill(os.getpid(), self._sends)


_FUSES: Final = Fuse.from_environment(os.environ)


def are_armed() -> bool:
    """A test wants the process to die somewhere: what is one step without it has to have a middle."""
    return bool(_FUSES)


def reach(point: Point, of: str = "") -> None:
    """The code is here, on behalf of the handler, effect or topic `of`. Costs nothing unless a test armed it."""
    if _FUSES:
        for fuse in _FUSES:
            fuse.pass_by(point, of)


def between(
    writes: Writes | None, transaction: AbstractAsyncContextManager[T], of: str = ""
) -> AbstractAsyncContextManager[T]:
    """The transaction, with the points on both sides of its commit."""
    return transaction if not _FUSES or writes is None else _between(writes, transaction, of)


@asynccontextmanager
async def _between(writes: Writes, transaction: AbstractAsyncContextManager[T], of: str) -> AsyncGenerator[T]:
    async with transaction as conn:
        yield conn
        reach(writes.before, of)
    reach(writes.after, of)
