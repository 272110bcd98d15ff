"""Work that a cancellation must not interrupt: a BEGIN, COMMIT or ROLLBACK that is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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


def looked_at(task: asyncio.Future[Any]) -> None:
    """Take the error of a task that is done and whose result nobody needs, so that the loop does not report it lost."""
    if not task.cancelled():
        task.exception()
