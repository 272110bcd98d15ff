"""Work that a cancellation must not interrupt (a BEGIN, COMMIT or ROLLBACK on its way), and work that one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Set
from typing import Any, Final, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_S: Final = 1.0
"""What a task needs to end, cancelled: a rollback, mostly."""


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even when cancelled meanwhile; then the cancellation is raised, before any error."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        looked_at(task)
        raise asyncio.CancelledError
    return task.result()


async def cancelled(tasks: Set[asyncio.Task[Any]]) -> None:
    """Return once all of these are done and gone from the set, each cancelled; one that goes on, because a library lost
    its cancellation or because it was begun meanwhile, once more.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tuple(tasks), timeout=CANCEL_AGAIN_S)


def looked_at(task: asyncio.Future[Any]) -> None:
    """Take the error of a task that is done and whose result nobody needs, so that the loop does not report it lost."""
    if not task.cancelled():
        task.exception()
