"""A stand-in for a service outside: a real HTTP server on loopback that counts what it did, and is the judge.

It does a thing for each `POST /do` with a JSON body: `{"operation": ..., ...}`. An `Idempotency-Key` that it knows gets
the first answer again. What it does besides is scripted by the operation: delays, refusals, answers that never come.
`GET /done/OPERATION` says what became of it, for probes.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

REQUEST_BYTES_MAX: Final = 1_000_000


@dataclass(frozen=True)
class Behaviour:
    """How the service treats one request. What is first: the delay, then the work, then the answer.

    `works`: whether the thing is done. `status`: of the answer. `resets`: the connection breaks instead of the answer.
    `hangs`: no answer ever comes. `body`: instead of the usual answer (an error inside a 200, say).
    """

    delay_s: float = 0.0
    works: bool = True
    status: int = 200
    resets: bool = False
    hangs: bool = False
    body: dict[str, Any] | None = None


Script = Callable[[str, int], Behaviour]
"""(operation, n-th request for it, from 1) -> how it is treated."""

FINE: Final = Behaviour()


@dataclass
class Provider:
    """What the service saw and did."""

    url: str = ""
    port: int = 0
    honours_keys: bool = True
    script: Script = lambda operation, n: FINE
    requests: Counter[str] = field(default_factory=Counter[str])
    done: Counter[str] = field(default_factory=Counter[str])
    """Operation -> how often the thing was done: more than 1 is what the ledger exists to prevent."""
    keys: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    probes: Counter[str] = field(default_factory=Counter[str])
    probe_status: int = 200
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each request; clear it to wait for the next one."""
    gates: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    """Requests of these operations wait until the gate is opened, before the work."""
    _answers: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict[str, tuple[int, dict[str, Any]]])
    _external: dict[str, str] = field(default_factory=dict[str, str])
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[Any])

    @property
    def doubled(self) -> dict[str, int]:
        """What was done more than once."""
        return {operation: n for operation, n in self.done.items() if n > 1}

    def external_id(self, operation: str) -> str | None:
        """By which it knows the thing, None where it was not done."""
        return self._external.get(operation)

    def known(self, operation: str, external_id: str) -> None:
        """Somebody had it done, unseen by this server."""
        self._external.setdefault(operation, external_id)

    def slowly(self, seconds_max: float, seed: int = 0) -> None:
        """Every request takes up to so long."""
        chance = random.Random(seed)
        self.script = lambda operation, n: Behaviour(delay_s=chance.uniform(0, seconds_max))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._treat(writer, *request):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _treat(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> bool:
        if method == "GET":
            await _answer(writer, *self._look_up(path.rsplit("/", 1)[-1]))
            return True
        asked: dict[str, Any] = json.loads(body or b"{}")
        operation, key = str(asked["operation"]), headers.get("idempotency-key")
        self.requests[operation] += 1
        if key is not None:
            self.keys[operation].add(key)
        behaviour = self.script(operation, self.requests[operation])
        self.seen.set()
        if behaviour.delay_s:
            await asyncio.sleep(behaviour.delay_s)
        if gate := self.gates.get(operation):
            await gate.wait()
        status, answer = self._work(operation, key, behaviour)
        if behaviour.hangs:
            await asyncio.Event().wait()
        if behaviour.resets:
            writer.transport.abort()
            return False
        await _answer(writer, status, answer)
        return True

    def _work(self, operation: str, key: str | None, behaviour: Behaviour) -> tuple[int, dict[str, Any]]:
        if self.honours_keys and key is not None and key in self._answers:
            return self._answers[key]
        if not behaviour.works:
            return behaviour.status, behaviour.body or {"error": "refused"}
        self.done[operation] += 1
        external = f"x-{operation}-{self.done[operation]}"
        self._external.setdefault(operation, external)
        answer = (behaviour.status, behaviour.body or {"id": external})
        if key is not None:
            self._answers[key] = (200, answer[1])
        return answer

    def _look_up(self, operation: str) -> tuple[int, dict[str, Any]]:
        self.probes[operation] += 1
        if self.probe_status != 200:
            return self.probe_status, {"error": "not now"}
        if operation not in self._external:
            return 404, {"error": "no such thing"}
        return 200, {"id": self._external[operation]}


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes] | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size = int(headers.get("content-length", "0"))
    assert size <= REQUEST_BYTES_MAX
    return method, path, headers, await reader.readexactly(size)


async def _answer(writer: asyncio.StreamWriter, status: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


@asynccontextmanager
async def provider(**options: Any) -> AsyncGenerator[Provider]:
    """A service that runs in this loop until the end of the `with`."""
    service = Provider(**options)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    service.url = f"http://127.0.0.1:{service.port}"
    try:
        yield service
    finally:
        server.close()
        for task in tuple(service.tasks):
            task.cancel()
        await asyncio.gather(*tuple(service.tasks), return_exceptions=True)
        await server.wait_closed()


# ------------------------------------------------------------------------------------------------------- its client


class Answered(Exception):
    """The service answered that it did not do it; shaped like what HTTP clients raise."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"HTTP {status}")


async def call(
    port: int, operation: str, *, key: str | None = None, timeout_s: float = 5.0, **said: Any
) -> dict[str, Any]:
    """Ask the service to do a thing; its answer. Raises TimeoutError, ConnectionError, Answered."""
    body = json.dumps({"operation": operation, **said}).encode()
    lines = [f"POST /do HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"]
    if key is not None:
        lines.append(f"idempotency-key: {key}\r\n")
    async with asyncio.timeout(timeout_s):
        return await _exchange(port, "".join(lines).encode() + b"\r\n" + body)


async def look_up(port: int, operation: str, *, timeout_s: float = 5.0) -> str | None:
    """By which the service knows the thing, None where it was not done. Raises like `call`."""
    async with asyncio.timeout(timeout_s):
        try:
            found = await _exchange(port, f"GET /done/{operation} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        except Answered as error:
            if error.status == 404:
                return None
            raise
        return str(found["id"])


async def _exchange(port: int, request: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split(" ")[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        answer: dict[str, Any] = json.loads(await reader.readexactly(int(headers["content-length"])))
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the service broke the connection") from error
    finally:
        writer.close()
    if status >= 400:
        raise Answered(status)
    return answer
