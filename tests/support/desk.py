"""Commands whose handler stands at a desk: it says when it came and went, and waits where the test shut a gate."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from tests.services.topics import Topic
from tidegate.consumers import App, Context, Event


@dataclass(frozen=True)
class Do:
    """Whatever the event says."""

    id: str
    says: dict[str, Any]


Act = Callable[[Do, Context], Awaitable[None]]
"""What a test has its handler do behind the gate."""


@dataclass
class Desk:
    """What was seen of the handler."""

    came: list[str] = field(default_factory=list[str])
    went: list[str] = field(default_factory=list[str])
    gates: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    inside: set[str] = field(default_factory=set[str])
    most: int = 0
    calls: Counter[str] = field(default_factory=Counter[str])

    def shut(self, *ids: str) -> None:
        """Whoever handles one of these waits."""
        self.gates.update({id_: asyncio.Event() for id_ in ids})

    def open(self, *ids: str) -> None:
        """And goes on."""
        for id_ in ids:
            self.gates[id_].set()

    async def serve(self, id_: str) -> None:
        """Come, wait at the gate, go."""
        self.came.append(id_)
        self.calls[id_] += 1
        self.inside.add(id_)
        self.most = max(self.most, len(self.inside))
        try:
            if gate := self.gates.get(id_):
                await gate.wait()
        finally:
            self.inside.discard(id_)
        self.went.append(id_)


def at_desk(app: App, act: Act | None = None, name: str = "do", **options: Any) -> Desk:
    """Declare the command `name`, whose handler serves at a desk and then acts."""
    (consumer,) = app.consumers.values()
    desk = Desk()

    @app.handler(Do)
    async def do(command: Do, ctx: Context) -> None:
        await desk.serve(command.id)
        if act is not None:
            await act(command, ctx)

    @consumer.command(name, on="Thing", **options)
    def to_do(event: Event[dict[str, Any]]) -> Do | None:
        return None if event.value.get("nothing") else Do(event.id_text, event.value)

    return desk


def letters(app: App, topic: Topic) -> str:
    """Make the dead-letter topic of the app's first topic, so that letters go out at once; its name."""
    (consumer,) = app.consumers.values()
    return topic(partitions=1, name=f"{consumer.topics[0]}.{consumer.name}.dlq")


async def write(command: Do, ctx: Context) -> None:
    """A row of `public.effect`, through the handler's transaction."""
    await ctx.tx.execute(
        text("INSERT INTO public.effect VALUES (:id, :n)"), {"id": command.id, "n": command.says.get("n", 0)}
    )
