"""A fresh database for each test, on the run's one PostgreSQL server."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import asyncpg


def execute(url: str, *statements: str) -> None:
    """Run `statements`, each in a transaction of its own, from a thread and an event loop of their own."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, _execute(url, statements)).result()


@contextlib.contextmanager
def fresh(server_url: str) -> Generator[str]:
    """A database with an empty search_path, given by its URL and dropped afterwards, whoever is still connected."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    execute(server_url, f'CREATE DATABASE "{name}"', f"ALTER DATABASE \"{name}\" SET search_path = ''")
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
