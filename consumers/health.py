"""Probes and metrics over HTTP, from a thread that waits for nobody: it answers while the event loop is blocked.

`/livez` says whether the poll loop turns and nothing is fatal; never whether the database or the broker answers,
because a restart heals neither. `/readyz` says whether this process can do its work, and if not, every reason.
`/metrics` is Prometheus' text format.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, final
from urllib.parse import urlsplit

from ..inbox.errors import ConfigurationError
from .metrics import Metrics

REQUEST_TIMEOUT_S: Final = 5.0
"""Longer than any probe waits; a client that sends nothing holds its thread no longer than this."""

REQUESTS_MAX: Final = 16
"""Requests at once: two probes and a few scrapers. More are hung up on, so that nobody can pile up threads."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe is told."""

    ok: bool
    body: Mapping[str, Any]


@final
class HealthBoard:
    """What the worker knows of itself, written by its threads and read by the health thread without a lock.

    Every field is replaced as a whole (an assignment is atomic), so a reader sees the old or the new value, never half.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = monotonic_s
        self._loop_beat_s = monotonic_s()
        self.polled_at: Callable[[], float] | None = None
        """The client's monotonic time of its last turn; None before it started."""
        self.assigned: int | None = None
        """Partitions owned; 0 once the group has answered with none; None while it has not answered yet."""
        self.stopping = False
        self.fatal: str | None = None
        self._away: Mapping[str, float] = {}
        self._topics: Mapping[str, str] = {}
        self._held: Mapping[str, str] = {}

    def beat(self) -> None:
        """The event loop turned."""
        self._loop_beat_s = self._now_s()

    def away(self, dependency: str) -> None:
        """A dependency stopped answering; the first report counts."""
        self._away = {dependency: self._now_s(), **self._away}

    def back(self, dependency: str) -> None:
        """It answers again."""
        self._away = {name: since for name, since in self._away.items() if name != dependency}

    def hold(self, what: str, why: str) -> None:
        """Something holds its events back on purpose: a breaker, a limit."""
        self._held = {**self._held, what: why}

    def let_go(self, what: str) -> None:
        """It goes on."""
        self._held = {name: why for name, why in self._held.items() if name != what}

    def topic_error(self, topic: str, error: str | None) -> None:
        """Latch a subscription error until it is cleared with None."""
        others = {name: what for name, what in self._topics.items() if name != topic}
        self._topics = others if error is None else {**others, topic: error}

    @property
    def topic_errors(self) -> Mapping[str, str]:
        """Latched subscription errors by topic."""
        return self._topics

    @property
    def dependencies_away(self) -> Mapping[str, float]:
        """Dependencies that do not answer: name -> monotonic time since when."""
        return self._away

    def loop_stall_s(self) -> float:
        """Seconds since the event loop last turned."""
        return max(0.0, self._now_s() - self._loop_beat_s)

    def poll_age_s(self) -> float:
        """Seconds since the poll loop last turned; 0 before the client started."""
        polled_at = self.polled_at
        return 0.0 if polled_at is None else max(0.0, self._now_s() - polled_at())

    def live(self, poll_stall_s: float) -> Answer:
        """Alive: the poll loop turned within `poll_stall_s` and nothing is fatal. Before the client started it is."""
        age_s = self.poll_age_s()
        fatal = self.fatal
        stalled = age_s > poll_stall_s
        reasons = [f"fatal: {fatal}"] if fatal is not None else []
        reasons += [f"the poll loop has not turned for {age_s:.0f} s"] if stalled else []
        return Answer(not reasons, {"live": not reasons, "reasons": reasons, "poll_age_s": round(age_s, 3)})

    def ready(self) -> Answer:
        """Ready: the group has answered, every dependency answers, every topic can be read, nothing is held back."""
        now_s = self._now_s()
        away, topics, held, assigned = self._away, self._topics, self._held, self.assigned
        reasons = ["stopping"] if self.stopping else []
        reasons += [f"fatal: {self.fatal}"] if self.fatal is not None else []
        reasons += ["no assignment yet"] if assigned is None else []
        reasons += [f"{name} is away for {now_s - since:.0f} s" for name, since in sorted(away.items())]
        reasons += [f"topic {topic}: {what}" for topic, what in sorted(topics.items())]
        reasons += [f"{what} is held back: {why}" for what, why in sorted(held.items())]
        body = {
            "ready": not reasons,
            "reasons": reasons,
            "assigned": assigned,
            "dependencies_away": {name: round(now_s - since, 3) for name, since in away.items()},
            "topics": dict(topics),
            "held_back": dict(held),
            "loop_stall_s": round(self.loop_stall_s(), 3),
        }
        return Answer(not reasons, body)


@final
class HealthServer:
    """The HTTP server and its thread. Raises ConfigurationError where the address cannot be listened on."""

    def __init__(self, host: str, port: int, board: HealthBoard, metrics: Metrics, poll_stall_s: float) -> None:
        metrics.read_at_scrape("loop_stall_seconds", board.loop_stall_s)
        metrics.read_at_scrape("poll_age_seconds", board.poll_age_s)
        pages: dict[str, Callable[[], tuple[bool, str, bytes]]] = {
            "/livez": lambda: _json(board.live(poll_stall_s)),
            "/readyz": lambda: _json(board.ready()),
            "/metrics": lambda: (True, "text/plain; version=0.0.4; charset=utf-8", metrics.exposition()),
        }
        self._server = _listen(host, port, pages)
        self._thread = threading.Thread(target=self._server.serve_forever, name="tidegate-health", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_address[1]

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; a request that is being answered ends with the process."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _json(answer: Answer) -> tuple[bool, str, bytes]:
    return answer.ok, "application/json", json.dumps(answer.body).encode() + b"\n"


def _listen(host: str, port: int, pages: Mapping[str, Callable[[], tuple[bool, str, bytes]]]) -> _Server:
    try:
        return _Server((host, port), pages)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError.of(
            "health.port",
            f"cannot listen on {host}:{port} ({why})",
            "set a free TIDEGATE_HEALTH_PORT, or 0 to turn it off",
        ) from error


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    address_family = socket.AF_INET

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[], tuple[bool, str, bytes]]]) -> None:
        self.pages = pages
        self.free = threading.Semaphore(REQUESTS_MAX)
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        # HTTPServer asks DNS for its own name here, which may take seconds; nothing needs that name
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is not worth a traceback on standard error."""


class _Request(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - no other server makes this handler

    def do_GET(self) -> None:
        page = self.server.pages.get(urlsplit(self.path).path)
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"/livez, /readyz, /metrics\n")
            return
        ok, kind, body = page()
        self._answer(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, kind, body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "tidegate"

    def log_message(self, format: str, *args: Any) -> None:
        """A probe a second is no news."""
