"""A schema registry on loopback that answers by script: outages, delays and nonsense, on demand."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast, final


@dataclass(frozen=True)
class Answer:
    """A status and a body."""

    status: int
    body: bytes
    content_type: str = "application/vnd.schemaregistry.v1+json"


RESET = "reset"
"""Cut the connection without an answer."""
SILENCE = "silence"
"""Keep the connection and say nothing, until the test is over."""
HTML = Answer(503, b"<html><body>Bad gateway, come again</body></html>", "text/html")
NOT_FOUND = Answer(404, b'{"error_code": 40403, "message": "Schema not found"}')


def answer(content: Any, status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status, json.dumps(content).encode())


def schema_answer(schema: Any, references: list[dict[str, Any]] | None = None, **more: Any) -> Answer:
    """What the registry says about a schema."""
    return answer({"schema": json.dumps(schema), "references": references or [], **more})


@final
@dataclass
class ScriptedRegistry:
    """Answers the requests in turn by `script`; when that is used up, by path from `standing`, else 404."""

    script: list[Answer | str] = field(default_factory=list[Answer | str])
    standing: dict[str, Answer] = field(default_factory=dict[str, Answer])
    asked: list[str] = field(default_factory=list[str])
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    def next(self, path: str) -> Answer | str:
        """The answer to the next request."""
        self.asked.append(path)
        return self.script.pop(0) if self.script else self.standing.get(path.partition("?")[0], NOT_FOUND)


@contextlib.contextmanager
def running() -> Generator[ScriptedRegistry]:
    """A registry that runs until the block ends."""
    registry = ScriptedRegistry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry))
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(registry: ScriptedRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(registry.next(self.path))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._say(registry.next(self.path))

        def _say(self, said: Answer | str) -> None:
            if isinstance(said, str):
                self._fall_silent(said)
                return
            self.send_response(said.status)
            self.send_header("Content-Type", said.content_type)
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def _fall_silent(self, said: str) -> None:
            if said == SILENCE:
                registry.over.wait()
            # Lingering for no time at all makes close() a reset.
            connection = cast("socket.socket", self.connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """The test says what matters."""

    return Handler
