"""How other threads reach the client thread: calls that it carries out between two reads, and their answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, final

from .ports import ClientStopped

T = TypeVar("T")

Call = Callable[[], None]


@final
class Mail:
    """Calls for the client thread, in order. Unbounded, since callers are bounded: each owned partition has few."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, call: Call) -> None:
        """Leave a call; any thread may.

        Raises:
            ClientStopped: nobody serves any more.
        """
        with self._changed:
            if self._closed:
                raise ClientStopped
            self._calls.append(call)
            self._changed.notify()

    def serve(self, wait_s: float = 0.0) -> None:
        """Carry out what was left, waiting up to `wait_s` for the first call. Client thread only."""
        with self._changed:
            if not self._calls and wait_s > 0 and not self._closed:
                self._changed.wait(wait_s)
            calls, self._calls = self._calls, deque()
        for call in calls:
            call()

    def wake(self) -> None:
        """End a wait in `serve`."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Take no more; what was left and not served is dropped."""
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._changed.notify()


@final
class Reply(Generic[T]):
    """An answer that is waited for on an event loop and given in the client thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    def give(self, value: T) -> None:
        """Answer; a second answer, or one that nobody waits for any more, is dropped."""
        self._hop(self._future.set_result, value)

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self._hop(self._future.set_exception, error)

    def _hop(self, settle: Callable[[Any], None], value: object) -> None:
        def settle_once() -> None:
            if not self._future.done():
                settle(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(settle_once)

    def __await__(self) -> Generator[Any, None, T]:
        return self._future.__await__()


@final
class Replies:
    """The replies that somebody waits for, so that a stop leaves nobody waiting."""

    def __init__(self) -> None:
        self._open: set[Reply[Any]] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def expect(self, reply: Reply[Any]) -> Generator[None, None, None]:
        """Count `reply` as waited for until the block ends."""
        with self._lock:
            self._open.add(reply)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(reply)

    def fail_all(self, error: Exception) -> None:
        """Nobody will answer these any more."""
        with self._lock:
            for reply in self._open:
                reply.fail(error)
