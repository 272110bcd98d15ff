"""An outside service that counts what it was asked to do, and is the judge of whether anything was done twice.

It runs in the test's process; workers that are killed talk to it over a socket, a line of JSON each way. It knows its
callers' keys: a repeat under a known key gets the first answer and is no second effect.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, final

from tidegate.inbox.effect_rules import Done, NotDone, ProbeAnswer


@final
class CountingProvider:
    """What it did, by key and by what the caller calls an operation."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Operation -> calls, repeats included."""
        self.done: dict[str, str] = {}
        """Key -> the operation that it was first used for."""
        self.address = ""

    def effects_of(self, operation: str) -> int:
        """How often it was really done: repeats under one key are one."""
        return sum(done == operation for done in self.done.values())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[CountingProvider]:
        """Answer callers until the end of the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # the caller was killed
        finally:
            writer.close()

    def _answer(self, request: dict[str, str]) -> dict[str, Any]:
        key = request["key"]
        if request["ask"] == "send":
            self.calls[request["operation"]] += 1
            self.done.setdefault(key, request["operation"])
        return {"id": f"answer-{key}" if key in self.done else None}


@final
class Client:
    """The worker's side. `sent(name)` is called when a request is on its way and its answer is not here."""

    def __init__(self, address: str, sent: Callable[[str], None]) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._sent = sent

    async def send(self, name: str, key: str, operation: str) -> str:
        """Do it; the provider's id of it."""
        answer = await self._exchange({"ask": "send", "key": key, "operation": operation}, name)
        return str(answer["id"])

    async def ask(self, key: str) -> ProbeAnswer:
        """Was it done?"""
        answer = await self._exchange({"ask": "status", "key": key}, None)
        found = answer["id"]
        return NotDone() if found is None else Done({"id": found}, found)

    async def _exchange(self, request: dict[str, str], name: str | None) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            await writer.drain()
            if name is not None:
                self._sent(name)
            answer: dict[str, Any] = json.loads(await reader.readline())
            return answer
        finally:
            writer.close()
