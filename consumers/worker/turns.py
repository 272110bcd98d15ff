"""When a row of the slow way has its turn: with nothing beside it, or as its handler's rate allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from ...inbox.failure_rows import Failure
from ...inbox.holding import Holding

Alone = Callable[[Failure, Holding], AbstractAsyncContextManager[None]]
"""The block in which nothing else is in flight."""

Turn = Callable[[str, Callable[[], bool]], Awaitable[None]]
"""Returns when one more of this handler may begin; raises OwnershipLost where it has to give way meanwhile."""


def beside(row: Failure, holding: Holding) -> AbstractAsyncContextManager[None]:
    """Together with whatever else is in flight."""
    return nullcontext()


async def at_once(handler: str, gives_way: Callable[[], bool]) -> None:
    """Without any rate."""
