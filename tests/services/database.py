"""A fresh database for each test, on the run's one PostgreSQL server."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import asyncpg


def run(work: Coroutine[None, None, object]) -> None:
    """Run `work` to its end in a thread and an event loop of its own: the caller may stand in one."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, work).result()


def execute(url: str, *statements: str) -> None:
    """Run `statements`, each in a transaction of its own."""
    run(_execute(url, statements))


@contextlib.contextmanager
def fresh(server_url: str, template_url: str | None = None) -> Generator[str]:
    """A database with an empty search_path, given by its URL and dropped afterwards, whoever is still connected.

    It begins as a copy of the database at `template_url`, to which nobody may be connected meanwhile; else empty.
    """
    name = f"test_{uuid.uuid4().hex[:12]}"
    template = urlsplit(template_url).path.removeprefix("/") if template_url else "template1"
    execute(
        server_url,
        f'CREATE DATABASE "{name}" TEMPLATE "{template}"',
        f"ALTER DATABASE \"{name}\" SET search_path = ''",
    )
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def _execute(url: str, statements: tuple[str, ...]) -> None:
    connection = await asyncpg.connect(url, timeout=5)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
