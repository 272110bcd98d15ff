"""Resources of the app's lifespan in a running worker: by annotation, closed at the end, replaced by a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from tests.services.topics import Topic
from tests.support.desk import Do
from tests.support.running import Sent, Stage, reader
from tidegate.consumers import App, Event
from tidegate.inbox.errors import ConfigurationError


@dataclass
class Post:
    letters: list[str] = field(default_factory=list[str])
    open: bool = True


@dataclass
class Fax:
    pages: list[str] = field(default_factory=list[str])


def with_resources(app: App, opened: list[object]) -> None:
    """A handler that wants two resources of one lifespan; what was opened stands in `opened`."""
    (consumer,) = app.consumers.values()

    @app.lifespan
    async def resources() -> AsyncIterator[tuple[Post, Fax]]:
        post, fax = Post(), Fax()
        opened.extend((post, fax))
        yield post, fax
        post.open = False

    @app.handler(Do)
    async def do(command: Do, fax: Fax, post: Post) -> None:
        post.letters.append(command.id)
        fax.pages.append(command.id)

    @consumer.command("do", on="Thing")
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)


async def test_handlers_get_their_resources_and_they_are_closed_at_the_end(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = reader(name)
    opened: list[object] = []
    with_resources(app, opened)
    await stage.send(name, Sent("a"))
    replaced = Post()
    with app.override(Post, replaced):
        worker = await stage.start(app)
        await worker.until_counted("events", "do", "completed", n=1)
    post, fax = opened
    assert isinstance(post, Post)
    assert isinstance(fax, Fax)
    assert (replaced.letters, post.letters, fax.pages) == (["a"], [], ["a"])
    assert post.open
    assert await worker.stop() == 0
    assert not post.open


@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


class PaymentFailed(BaseModel):
    order_id: str
    reason: str


async def test_payloads_are_dataclasses_and_pydantic_models_and_go_to_who_takes_them(
    stage: Stage, topic: Topic
) -> None:
    """What is annotated is what comes, by the type's name; a value that does not fit its class is dead."""
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()
    topic(partitions=1, name=f"{name}.{consumer.name}.dlq")
    made: list[object] = []

    @app.handler(Do)
    def do(command: Do) -> None: ...

    @consumer.command("placed")
    def placed(event: Event[OrderPlaced]) -> None:
        made.append(event.value)

    @consumer.command("either")
    def either(event: Event[OrderPlaced | PaymentFailed]) -> Do:
        made.append(event.value.order_id)
        return Do(event.id_text, {})

    await stage.send(
        name,
        Sent("1", {"order_id": "o1", "amount": 7}, type="OrderPlaced"),
        Sent("2", {"order_id": "o2", "reason": "card"}, type="PaymentFailed"),
        Sent("3", {"order_id": "o3", "amount": "seven"}, type="OrderPlaced"),
    )
    worker = await stage.start(app)
    await worker.until_counted("events", "either", "completed", n=2)
    await worker.until_counted("events", "placed", "skipped", n=1)
    assert OrderPlaced("o1", 7) in made
    assert {"o1", "o2"} < {*made}
    assert await stage.failures() == [(f"{name}/0@2", "dead", "schema_incompatible")]


async def test_everything_that_is_wrong_with_an_app_is_told_at_once(stage: Stage, topic: Topic) -> None:
    """Two handlers, none, a parameter that nothing fills, a trigger that is a coroutine: nothing starts."""
    app = reader(topic(partitions=1))
    (consumer,) = app.consumers.values()

    @app.handler(Do)
    async def do(command: Do, post: Post, fax: Fax) -> None: ...

    @app.handler(Do)
    async def do_too(command: Do, post: Post, fax: Fax) -> None: ...

    @consumer.command("later", on="Thing")
    async def to_do_later(event: Event[Any]) -> Do:
        return Do("", {})

    @consumer.command("nobody", on="Thing")
    def to_nobody(event: Event[Any]) -> Post:
        return Post()

    told = "\n".join(str(problem) for problem in app.problems())
    assert "command Do: it has two handlers" in told
    assert "it makes Post, which has no handler" in told
    assert "'later'" in told
    assert "async" in told
    worker = await stage.start(app)
    ended = await worker.ends()
    assert isinstance(ended, ConfigurationError)
    missing = "\n".join(str(problem) for problem in ended.problems)
    assert "no resource for the parameter 'post'" in missing
    assert "no resource for the parameter 'fax'" in missing


async def test_a_resource_that_cannot_be_opened_ends_the_worker_with_its_own_error(stage: Stage, topic: Topic) -> None:
    app = reader(topic(partitions=1))
    with_resources(app, [])

    @app.lifespan
    async def broken() -> AsyncIterator[int]:
        raise ConnectionError("no provider")
        yield 1

    worker = await stage.start(app)
    with pytest.raises(ConnectionError, match="no provider"):
        raise await worker.ends() or AssertionError
