"""Resources of the app's lifespan in a running worker: by annotation, closed at the end, replaced by a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

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
