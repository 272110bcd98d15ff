"""A TCP proxy before PostgreSQL that lets a COMMIT through and loses its answer, as a network does now and then.

With another `marker` it is the answer to whatever statement carries those bytes (a parameter's, say) that is lost.
`spared` of them are answered first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, final
from urllib.parse import urlsplit, urlunsplit

COMMIT: Final = b"COMMIT;\0"
"""As the driver sends it: a simple query."""

CHUNK: Final = 65_536


@final
class LosingProxy:
    """Forwards everything; while `to_lose` is above 0, a COMMIT's answer is swallowed and the connection cut."""

    def __init__(self, host: str, port: int, marker: bytes = COMMIT, spared: int = 0) -> None:
        self.marker = marker
        self._spared = spared
        self._upstream = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.to_lose = 0
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, both ways, until either side ends it."""
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        losing = asyncio.Event()
        self._keep(self._up(reader, up_writer, losing))
        self._keep(self._down(up_reader, writer, up_writer, losing))

    async def end(self) -> None:
        """Cut every connection."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        try:
            while data := await reader.read(CHUNK):
                if self.marker in data and self.to_lose > 0:
                    if self._spared > 0:
                        self._spared -= 1
                    else:
                        self.to_lose -= 1
                        losing.set()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_writer: asyncio.StreamWriter,
        losing: asyncio.Event,
    ) -> None:
        """What the server says behind a COMMIT that is to be lost proves that it is done: then both sides are cut."""
        try:
            while data := await reader.read(CHUNK):
                if losing.is_set():
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            up_writer.close()


@asynccontextmanager
async def losing_proxy(url: str, marker: bytes = COMMIT, spared: int = 0) -> AsyncGenerator[tuple[str, LosingProxy]]:
    """The proxy before the server of `url`, and the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None, "tests name their servers"
    assert parts.port is not None, "tests name their servers' ports"
    proxy = LosingProxy(parts.hostname, parts.port, marker, spared)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = f"{parts.username}@" if parts.username else ""
    try:
        yield urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}")), proxy
    finally:
        server.close()
        await proxy.end()
