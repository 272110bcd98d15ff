"""Group commit: what is asked while a statement is under way goes together into the next one.

Owned by one event loop. A flusher runs while something waits, so nothing has to be started. An asker that is cancelled
leaves its place; what came of its ask is handed to `unclaimed`, because it may be durable. One bad member never harms
its neighbours: a group that fails for its data is split until the bad one fails alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, final

from .errors import TidegateError
from .faults import Fault, classify
from .store import STORE_ERRORS

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")

GROUP_MAX: Final = 500
"""Members of one statement: beyond it a group gains nothing and holds up the ones behind it."""

LOOK_S: Final = 0.002
"""How soon a group that is held back notices that it need not be."""

Waiting: TypeAlias = "tuple[Ask, asyncio.Future[Answer]]"


@final
class Grouped(Generic[Ask, Answer]):
    """One kind of statement. `run` makes many asks durable at once and gives their answers, in their order."""

    def __init__(
        self,
        run: Callable[[Sequence[Ask]], Awaitable[Sequence[Answer]]],
        unclaimed: Callable[[Ask, Answer], None] | None = None,
        spacing_s: Callable[[int], float] | None = None,
    ) -> None:
        """`spacing_s`: so many wait, how long is it at least from the start of the last group to that of the next? The
        first one after a rest starts at once.
        """
        self._spacing_s = spacing_s
        self._began_s = float("-inf")
        self._run = run
        self._unclaimed = unclaimed
        self._waiting: list[Waiting[Ask, Answer]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.statements = 0

    def enqueue(self, ask: Ask) -> asyncio.Future[Answer]:
        """Put it into the next group; nobody has to wait for the future."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((ask, future))
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush())
        return future

    async def put(self, ask: Ask) -> Answer:
        """The answer, once it is durable. Raises what the database said of this ask alone."""
        future = self.enqueue(ask)
        try:
            return await future
        except asyncio.CancelledError:
            self.leave(ask, future)
            raise

    def leave(self, ask: Ask, future: asyncio.Future[Answer]) -> None:
        """Whoever waited was cancelled: an answer that has come already is `unclaimed`."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self._left(ask, future.result())

    async def settle(self, patience_s: float) -> None:
        """Wait until nothing is under way, at most `patience_s`; then whatever waits is given up."""
        flusher = self._flusher
        if flusher is None:
            return
        _, late = await asyncio.wait((flusher,), timeout=patience_s)
        for task in late:
            task.cancel()
            await asyncio.wait((task,))

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await self._space()
                group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
                await self._answer(group)
        finally:
            self._flusher = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting = []

    async def _space(self) -> None:
        if self._spacing_s is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            early_s = self._began_s + self._spacing_s(len(self._waiting)) - loop.time()
            if early_s <= 0:
                break
            await asyncio.sleep(min(early_s, LOOK_S))
        self._began_s = loop.time()

    async def _answer(self, group: list[Waiting[Ask, Answer]]) -> None:
        settled = False
        try:
            self.statements += 1
            answers = await self._run([ask for ask, _ in group])
            settled = True
        except (*STORE_ERRORS, TidegateError) as error:
            settled = True
            await self._failed(group, error)
            return
        finally:
            if not settled:  # cancelled, or a bug: nobody may wait for ever
                for _, future in group:
                    future.cancel()
        for (ask, future), answer in zip(group, answers, strict=True):
            if future.done():
                self._left(ask, answer)
            else:
                future.set_result(answer)

    async def _failed(self, group: list[Waiting[Ask, Answer]], error: Exception) -> None:
        if len(group) > 1 and classify(error) in (Fault.DATA, Fault.PROGRAM):
            middle = len(group) // 2
            await self._answer(group[:middle])
            await self._answer(group[middle:])
            return
        for _, future in group:
            if not future.done():
                future.set_exception(error)

    def _left(self, ask: Ask, answer: Answer) -> None:
        if self._unclaimed is not None:
            self._unclaimed(ask, answer)
