"""The doors between the product and a user's code: whatever it raises comes out as a value."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, final
from weakref import WeakKeyDictionary

import structlog

from ..inbox.finishing import looked_at
from .deadline import DeadlineError, frame_of

T = TypeVar("T")

FRAMES_MAX: Final = 20
"""From the handler function down to what it waits for, with a few layers of a library."""

CANCEL_MAX_S: Final = 5.0
"""A function that is cancelled gives back what it holds, which takes moments. One that still runs five seconds later
swallows its cancellation or hangs in a `finally`; its key waits meanwhile, and behind a projection its partitions."""

STEP_MIN_S: Final = 0.05
"""How often it is looked whether a function whose time is over still waits for what is not its own."""

log = structlog.get_logger("tidegate.events")


class Returned(NamedTuple, Generic[T]):
    """The function came back with this."""

    value: T


@dataclass(slots=True)
class Raised:
    """The function raised this. `timed_out`: we cut it off at its deadline. `alive`: and it goes on all the same, so
    that what it holds has to be taken from it.
    """

    error: Exception
    timed_out: bool = False
    alive: bool = False


class HandlerRaised(Exception):
    """Carries what a user's function raised through our own code, apart from our own errors."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(f"a handler function raised {type(error).__name__}")


class OpenCalls(Protocol):
    """The calls to the outside that a function has open: while there are any, it is not cancelled."""

    def left_s(self) -> float | None:
        """How long they may still take; None where none is open."""
        ...

    def released(self) -> asyncio.Future[None]:
        """Done once none is open."""
        ...


async def guarded(call: Awaitable[T], deadline_s: float, calls: OpenCalls | None = None) -> Returned[T] | Raised:
    """Wait for a user's function, at most `deadline_s` seconds; longer while one of its `calls` is open.

    Cancellation from outside is re-raised: a stop is no failure. Past the deadline the function is cancelled, and
    `Raised.error` is a `DeadlineError` that carries where it stood. One whose calls outlast even their own deadlines is
    left to itself: cancelling it would lose what it may still learn. So is one that its cancellation does not end.
    """
    task = asyncio.ensure_future(contained(call))
    try:
        await _until(task, deadline_s)
    except asyncio.CancelledError:
        await call_off(task, calls)
        raise
    return result_of(task) if task.done() else await past_deadline(task, deadline_s, calls)


async def past_deadline(
    task: asyncio.Future[T], deadline_s: float, calls: OpenCalls | None = None
) -> Returned[T] | Raised:
    """What `guarded` does with a function whose time is over, unless it was not its own time (`not_counted`)."""
    try:
        await _whole_time(task)
        closed = task.done() or await _calls_closed(task, calls)
    except asyncio.CancelledError:
        await call_off(task, calls)
        raise
    if task.done():
        return result_of(task)
    frames = _frames(task)
    where = "".join(_shown(frame) for frame in frames)
    log.warning("handler_past_deadline", deadline_s=deadline_s, where=where, threads=thread_stacks())
    stood_at = [frame_of(frame, frame.f_lineno) for frame in frames]
    if closed:
        await _cancel(task)
    else:
        task.add_done_callback(looked_at)
    error = DeadlineError(f"no end after {deadline_s:g} s; it stood at {where}", stood_at)
    return Raised(error, timed_out=True, alive=not task.done())


@contextmanager
def not_counted() -> Generator[None]:
    """What the function that runs waits for in here is no time of its own: its deadline moves by as much."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "a function runs in a task"
    wait = _waits.setdefault(task, _Wait())
    wait.since_s = loop.time()
    try:
        yield
    finally:
        wait.total_s += loop.time() - wait.since_s
        wait.since_s = None


@final
class _Wait:
    """Of one function."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.since_s: float | None = None


_waits: Final[WeakKeyDictionary[asyncio.Future[Any], _Wait]] = WeakKeyDictionary()
"""Only of those that ever waited."""


async def _whole_time(task: asyncio.Future[Any]) -> None:
    """The function's deadline is over: return once it is done, or had as much time as it has waited."""
    wait, given_s, loop = _waits.get(task), 0.0, asyncio.get_running_loop()
    while wait is not None and not task.done():
        waiting_s = 0.0 if wait.since_s is None else loop.time() - wait.since_s
        owed_s = wait.total_s + waiting_s - given_s
        if owed_s <= 0:
            return
        step_s = owed_s if wait.since_s is None else max(owed_s, STEP_MIN_S)
        await _until(task, step_s)
        given_s += step_s


async def call_off(task: asyncio.Future[Any], calls: OpenCalls | None = None) -> None:
    """Cancel a user's function, once no call of it is open; one whose calls outlast their deadlines is left."""
    if await _calls_closed(task, calls):
        await _cancel(task)


async def _until(task: asyncio.Future[Any], timeout_s: float) -> None:
    """Return once the task is done or the time is over: what `asyncio.wait` does for one, at half its cost."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    timer = loop.call_later(timeout_s, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        task.remove_done_callback(wake)


async def _calls_closed(task: asyncio.Future[Any], calls: OpenCalls | None) -> bool:
    """Let open calls come to their end; False where they outlast their deadlines."""
    while calls is not None and not task.done() and (left_s := calls.left_s()) is not None:
        if left_s <= 0:
            return False
        await asyncio.wait((task, calls.released()), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    return True


class HandlerLeft(Exception):
    """A function raised what is no `Exception` (`sys.exit`, a library's own way out): its event's failure like any."""


async def contained(call: Awaitable[T]) -> T:
    """What asyncio would end the whole process for ends one event. A cancellation is nobody's failure.

    No Ctrl-C comes this way: signals are the process's own business, and a KeyboardInterrupt is what somebody raised.
    """
    try:
        return await call
    except BaseException as error:
        if (left := left_by(error)) is not None:
            raise left from error
        raise


def left_by(error: BaseException) -> HandlerLeft | None:
    """What stands for an error that asyncio would end the whole process for; None where it stands for itself.

    So does a GeneratorExit, by which Python closes a coroutine that nobody runs any more: who asks for the result of
    one that ran to its end (`result_of`) knows that somebody raised it.
    """
    return None if isinstance(error, Exception | asyncio.CancelledError | GeneratorExit) else _left(error)


def _left(error: BaseException) -> HandlerLeft:
    left = HandlerLeft(f"the handler raised {type(error).__name__}, which is no way to end an event")
    left.__cause__ = error
    return left


def contained_call(function: Callable[..., T], *args: Any, **named: Any) -> Returned[T] | Raised:
    """Call a user's code that does not wait (a trigger, a payload class): whatever it raises is an end like any."""
    try:
        try:
            return Returned(function(*args, **named))
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            raise _left(error) from error
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything; it is its record's outcome
        return Raised(error)


def result_of(task: asyncio.Future[T]) -> Returned[T] | Raised:
    """What a task that ran `contained` came to.

    What it raised is asked for and not raised anew: its traceback would hold the frames of whoever asks, and these hold
    the answer, in a circle that only the collector finds.
    """
    try:
        error = task.exception()
    except asyncio.CancelledError as cancelled:
        return Raised(RuntimeError(f"the handler cancelled itself: {cancelled}"))
    if error is None:
        return Returned(task.result())
    return Raised(error if isinstance(error, Exception) else _left(error))


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Nobody waits for ever for one that goes on."""
    task.add_done_callback(looked_at)
    task.cancel()
    await asyncio.wait((task,), timeout=CANCEL_MAX_S)
    if not task.done():
        log.error(
            "handler_outlives_its_cancellation",
            waited_s=CANCEL_MAX_S,
            where="".join(_shown(frame) for frame in _frames(task)),
            fix="let asyncio.CancelledError out, and bound what a `finally` waits for",
        )


def _frames(task: asyncio.Future[T]) -> list[FrameType]:
    """Where the task stands, outermost first."""
    awaited: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    frames: list[FrameType] = []
    while awaited is not None and len(frames) < FRAMES_MAX:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            frames.append(frame)
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return frames


def _shown(frame: FrameType) -> str:
    """File, line and function; no values."""
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}; "


def _first(thing: object, *names: str) -> Any:
    """What a coroutine, a generator or an asynchronous generator calls it."""
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


def thread_stacks() -> str:
    """Where every thread stands, for a log line about a blocked loop: files, lines and functions, no values."""
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage] - the documented way to see all threads
        summary = traceback.extract_stack(frame, limit=6)
        places = " < ".join(f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno} {f.name}" for f in reversed(summary))
        lines.append(f"thread {ident}: {places}")
    return "\n".join(lines)
