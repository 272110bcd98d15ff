"""One call to the outside: `async with` around it, durable before and after.

An attempt that is known to have succeeded, under a rule by which another call with the same key does no harm, is not
waited for at the end of the `with` where something else holds back whatever depends on it (`Place.unwritten`: for a
handler, that is its event's end). What if the process stops in between? The service is called again, with that key.

What if the body is left without a word? Then nobody knows, and that is what is written down. What if it is left by an
exception? The table of `effect_faults` says whether the call was surely not made; else the effect's rule decides. What
if it is cancelled? The doubt is queued, nobody waits for it, and the cancellation goes on.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Final, Protocol, final

from .effect_faults import Sureness, sureness
from .effect_rows import EXTERNAL_ID_CHARS_MAX, Call, EffectRow, ResultRefused, result_text
from .effect_rules import IdempotentKey, Probe
from .effect_states import EffectState
from .effects import Ending, Made
from .errors import EffectMisused, EffectPending, EffectTooLate, EffectUnknown
from .points import Point, reach
from .provider_answers import answered
from .safe_text import safe_text
from .secrets_in_text import told

TIMEOUT_MIN_S: Final = 0.001
"""What is left once a client has asked before: it takes 0 for no limit at all."""


class Begun:
    """An attempt whose intent is durable. `until_s` is its deadline by our clock, counted from before we asked."""

    __slots__ = ("attempt", "attempt_id", "key", "made", "until_s")

    def __init__(self, made: Made, attempt_id: bytes, key: str, attempt: int, until_s: float) -> None:
        self.made = made
        self.attempt_id = attempt_id
        self.key = key
        self.attempt = attempt
        self.until_s = until_s


class Book(Protocol):
    """The ledger, as a call sees it."""

    async def begin(self, call: Call) -> Begun | EffectRow:
        """Write the intent down, or give what is known already."""
        ...

    def end(self, call: Call, ending: Ending) -> Awaitable[None]:
        """Write down how it ended; done once that is durable."""
        ...

    def end_later(self, call: Call, ending: Ending) -> asyncio.Future[None]:
        """The same, and nobody waits for it now."""
        ...

    def monotonic_s(self) -> float:
        """Our clock."""
        ...


class Place(Protocol):
    """Where calls are made: what allows one, and wants to know which are open."""

    def enter(self, call: EffectCall) -> None:
        """A call begins. Raises EffectMisused where it may not."""
        ...

    def opened(self, call: EffectCall) -> None:
        """Its intent is durable: whoever makes the call must not be cancelled."""
        ...

    def closed(self, call: EffectCall) -> None:
        """It is over."""
        ...

    def holds_back(self) -> bool:
        """Whether something still waits for `unwritten`: what depends on this call's ending."""
        ...

    def unwritten(self, ending: asyncio.Future[None]) -> None:
        """It ended well, which is on its way to the database: nothing that depends on it may be durable before."""
        ...


class _Step(enum.Enum):
    MADE = "made"
    OPEN = "open"
    ENDED = "ended"


@final
class EffectCall:
    """`async with` it, once: `call` says what is called. Times are seconds."""

    __slots__ = ("_answer", "_book", "_found", "_place", "_step", "_timed", "_too_late", "begun", "call")

    def __init__(self, book: Book, call: Call, place: Place | None = None) -> None:
        self.begun: Begun | None = None
        self._book = book
        self.call = call
        self._place = place
        self._step = _Step.MADE
        self._found: EffectRow | None = None
        self._answer: Ending | None = None
        self._timed = False
        self._too_late = False

    # ------------------------------------------------------------------------------------------ what a handler sees

    @property
    def key(self) -> str:
        """The idempotency key: send it with the call. The same in every attempt."""
        if self._found is not None:
            return self._found.key
        return self._attempt.key

    @property
    def is_done(self) -> bool:
        """It was done before (or `complete` was called): do not call, use `result`."""
        return self._found is not None or (self._answer is not None and self._answer.state is EffectState.COMPLETED)

    @property
    def result(self) -> Any:
        """What `complete` was given, now or in an earlier attempt. Raises ResultRefused where that was not kept."""
        if self._found is not None:
            value, lost = self._found.result, self._found.error
        elif self._answer is not None and self._answer.state is EffectState.COMPLETED:
            value, lost = None if self._answer.result is None else json.loads(self._answer.result), self._answer.error
        else:
            raise EffectMisused(f"{self} has no result yet: look at is_done before you use it")
        if lost and value is None:
            raise ResultRefused(f"{self} was done, but its result was not kept: {lost}")
        return value

    @property
    def external_id(self) -> str | None:
        """By which the service knows it, None where nobody said."""
        if self._found is not None:
            return self._found.external_id
        return None if self._answer is None else self._answer.external_id

    @property
    def attempt(self) -> int:
        """1 for the first call of this operation."""
        return self._found.attempts if self._found is not None else self._attempt.attempt

    @property
    def timeout_s(self) -> float:
        """How long the call may take from now on. Raises EffectTooLate where nothing is left before the first use."""
        if self._found is not None:
            raise EffectMisused(f"{self} is done: look at is_done before you call")
        left_s = self._attempt.until_s - self._book.monotonic_s()
        if left_s <= 0 and not self._timed:
            self._too_late = True
            raise EffectTooLate(f"{self}: the deadline passed before the call was made")
        self._timed = True
        return max(TIMEOUT_MIN_S, left_s)

    def complete(self, result: Any = None, external_id: str | None = None) -> None:
        """The service did it. `result` is JSON, given back to every later attempt.

        Durable at the end of the `with`; in a handler, under `idempotent_key`, before the event's end is. Raises
        ResultRefused for a result that cannot be kept: the call counts as done all the same.
        """
        external = None if external_id is None else safe_text(str(external_id), EXTERNAL_ID_CHARS_MAX)
        if self._step is _Step.OPEN and self._found is not None:
            self._answer = Ending(self._found.id, self._found.attempt_id, EffectState.COMPLETED, external_id=external)
            raise EffectMisused(f"{self} was done before: look at is_done before you call")
        begun = self._say_once()
        try:
            text = result_text(result, self.call.effect.result_bytes_max)
        except ResultRefused as refused:
            self._answer = self._ending(EffectState.COMPLETED, external_id=external, error=str(refused))
            raise
        self._answer = Ending(
            begun.made.effect_id, begun.attempt_id, EffectState.COMPLETED, text, external, "", answered=True
        )

    def refused(self, why: str) -> None:
        """The service surely did not do it, and will not: another attempt may call. An error inside a 200, say."""
        self._say_once()
        self._answer = self._ending(EffectState.FAILED, error=told(why))

    def __repr__(self) -> str:
        return f"effect {self.call.effect.name!r} of operation {safe_text(self.call.operation_id, 100)!r}"

    # ------------------------------------------------------------------------------------------------- in and out

    @property
    def is_in_doubt(self) -> bool:
        """Nobody knows whether it was done, by this attempt or by an earlier one."""
        begun, ending = self.begun, self._answer
        if begun is None or (ending is not None and ending.state is EffectState.COMPLETED):
            return False
        return ending is None or ending.state is EffectState.UNKNOWN or begun.made.in_doubt

    @property
    def was_entered(self) -> bool:
        """`async with` has begun."""
        return self._step is not _Step.MADE

    async def __aenter__(self) -> EffectCall:
        if self._step is not _Step.MADE:
            raise EffectMisused(f"{self} is entered twice: make one with ctx.effect(...) for each `async with`")
        self._step = _Step.OPEN
        opened = False
        try:
            if self._place is not None:
                self._place.enter(self)
            begun = await self._book.begin(self.call)
            opened = True
        finally:
            if not opened:
                self._step = _Step.ENDED
        if isinstance(begun, EffectRow):
            self._found = begun
            return self
        self.begun = begun
        if self._place is not None:
            self._place.opened(self)
        reach(Point.BEFORE_CALL, self.call.effect.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._found is None:
            reach(Point.AFTER_CALL, self.call.effect.name)
        try:
            answer, place = self._answer, self._place
            if answer is not None and place is not None and error is None and self._may_be_left(answer, place):
                place.unwritten(self._book.end_later(self.call, answer))
            else:
                await self._leave(error)
        finally:
            self._step = _Step.ENDED
            if self._place is not None and self.begun is not None:
                self._place.closed(self)

    async def _leave(self, error: BaseException | None) -> None:
        ending = self._answer
        if ending is None and self._found is None:
            ending = self._answer = self._without_a_word(error)
        if ending is None:
            return
        if error is not None and isinstance(error, CUT_OFF):
            self._book.end_later(self.call, ending)
            return
        await self._book.end(self.call, ending)
        if ending.state is EffectState.UNKNOWN:
            self._by_rule(error)

    def _without_a_word(self, error: BaseException | None) -> Ending:
        if error is None:
            return self._ending(EffectState.UNKNOWN, error=UNSAID, answered=None)
        sure = self._too_late and not self._timed and isinstance(error, EffectTooLate)
        said = sureness(error, self.call.effect.not_done)
        state = EffectState.FAILED if sure or said is not Sureness.UNSURE else EffectState.UNKNOWN
        return self._ending(state, error=f"the call ended with {type(error).__name__}", answered=answered(error))

    def _by_rule(self, error: BaseException | None) -> None:
        """What the body's end means: the exception goes on where the same key makes another call safe."""
        effect, begun = self.call.effect, self._attempt
        if error is None:
            raise EffectUnknown(begun.made.effect_id, f"{self}: {UNSAID}")
        if self._is_repeatable:
            return
        if isinstance(effect.rule, Probe):
            due = begun.made.deadline + datetime.timedelta(seconds=effect.margin_s)
            why = f"{self}: the call ended with {type(error).__name__}; the service is asked after its deadline"
            raise EffectPending(begun.made.effect_id, due, why) from error
        why = f"{self}: the call ended with {type(error).__name__}, and nobody can be asked what became of it"
        raise EffectUnknown(begun.made.effect_id, why) from error

    def _may_be_left(self, ending: Ending, place: Place) -> bool:
        """Nobody has to wait for it here."""
        return ending.state is EffectState.COMPLETED and self._is_repeatable and place.holds_back()

    @property
    def _is_repeatable(self) -> bool:
        """Another call with the same key does no harm."""
        return isinstance(self.call.effect.rule, IdempotentKey)

    @property
    def _attempt(self) -> Begun:
        if self.begun is None:
            raise EffectMisused(f"{self} was not entered: write `async with ctx.effect(...) as effect:`")
        return self.begun

    def _say_once(self) -> Begun:
        begun = self.begun
        if self._step is not _Step.OPEN or begun is None:
            raise EffectMisused(f"{self} is over (or never began): complete() and refused() belong inside its `with`")
        if self._answer is not None:
            raise EffectMisused(f"{self}: only one of complete() and refused() counts, and it was called already")
        return begun

    def _ending(
        self,
        state: EffectState,
        result: str | None = None,
        external_id: str | None = None,
        error: str = "",
        *,
        answered: bool | None = True,
    ) -> Ending:
        begun = self._attempt
        return Ending(begun.made.effect_id, begun.attempt_id, state, result, external_id, error, answered)


CUT_OFF: Final = (asyncio.CancelledError, GeneratorExit)
"""What ends a body from outside: nobody waits for anything then."""

UNSAID: Final = "it was left without complete() or refused(): say one of them, directly behind the call"


@final
class BlockingEffectCall:
    """The same for a thread: a plain `with`, whose ends wait for the loop that owns the ledger."""

    __slots__ = ("_call", "_loop")

    def __init__(self, call: EffectCall, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self._call.key

    @property
    def is_done(self) -> bool:
        """It was done before: do not call."""
        return self._call.is_done

    @property
    def result(self) -> Any:
        """What `complete` was given."""
        return self._call.result

    @property
    def external_id(self) -> str | None:
        """By which the service knows it."""
        return self._call.external_id

    @property
    def attempt(self) -> int:
        """1 for the first call of this operation."""
        return self._call.attempt

    @property
    def timeout_s(self) -> float:
        """How long the call may take from now on."""
        return self._call.timeout_s

    def complete(self, result: Any = None, external_id: str | None = None) -> None:
        """The service did it."""
        self._call.complete(result, external_id)

    def refused(self, why: str) -> None:
        """The service surely did not do it."""
        self._call.refused(why)

    def __repr__(self) -> str:
        return repr(self._call)

    def __enter__(self) -> BlockingEffectCall:
        asyncio.run_coroutine_threadsafe(self._call.__aenter__(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._call.__aexit__(kind, error, trace), self._loop).result()
