"""The HTTP server: it answers whatever the rest of the process does."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tidegate.consumers.health import REQUESTS_MAX, HealthBoard, HealthServer
from tidegate.consumers.metrics import Metrics
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import ConfigurationError

POLL_STALL_S = 30.0


@pytest.fixture
def board() -> HealthBoard:
    return HealthBoard()


@pytest.fixture
def server(board: HealthBoard) -> Iterator[HealthServer]:
    # 0 is "off" to the settings; to the socket it is "any free port"
    health = HealthServer("127.0.0.1", 0, board, Metrics("c"), POLL_STALL_S)
    health.start()
    yield health
    health.stop()


def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_probes_answer_while_the_event_loop_is_blocked() -> None:
    """A handler that sleeps in the event loop leaves probes and metrics answering within a second.

    Case: B16
    Parts: real (HTTP server, event loop)
    Red when: health.py `live` takes `self.loop_stall_s()` for `self.poll_age_s()`
    """
    clock = ManualClock()
    board = HealthBoard(clock.monotonic_s)
    server = HealthServer("127.0.0.1", 0, board, Metrics("c"), POLL_STALL_S)
    server.start()
    release, blocked = threading.Event(), threading.Event()

    async def blocking_handler() -> None:
        board.beat()
        blocked.set()
        release.wait(20)  # a blocking call inside `async def`, which gives the interpreter lock away

    loop = threading.Thread(target=lambda: asyncio.run(blocking_handler()))
    loop.start()
    try:
        assert blocked.wait(5)
        clock.advance(2 * POLL_STALL_S)
        board.assigned, board.polled_at = 4, clock.monotonic_s
        began_s = time.monotonic()
        statuses = [get(server, path)[0] for path in ("/livez", "/readyz", "/metrics") for _ in range(3)]
        assert statuses == [200] * 9
        assert time.monotonic() - began_s < 2
        assert loop.is_alive()
        assert b'tidegate_loop_stall_seconds{consumer="c"} 60.0' in get(server, "/metrics")[1]
    finally:
        release.set()
        loop.join()
        server.stop()


def test_a_silent_client_does_not_keep_others_waiting(server: HealthServer, board: HealthBoard) -> None:
    board.assigned = 1
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "/livez")[0] == 200


def test_more_clients_than_places_are_hung_up_on(server: HealthServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(REQUESTS_MAX)]
    try:
        extra = socket.create_connection(("127.0.0.1", server.port), timeout=2)
        assert extra.recv(1) == b""
        extra.close()
    finally:
        for one in silent:
            one.close()


def test_the_answers_are_what_the_board_says(server: HealthServer, board: HealthBoard) -> None:
    status, body = get(server, "/readyz")
    assert (status, json.loads(body)["ready"]) == (503, False)
    board.assigned = 2
    status, body = get(server, "/readyz?verbose=1")
    assert (status, json.loads(body)["assigned"]) == (200, 2)
    board.fatal = "group authorisation failed"
    assert get(server, "/livez")[0] == 503
    assert get(server, "/elsewhere")[0] == 404
    assert get(server, "/livez", "HEAD") == (503, b"")


def test_a_port_that_is_taken_is_a_configuration_problem(server: HealthServer, board: HealthBoard) -> None:
    with pytest.raises(ConfigurationError, match=r"health\.port.*cannot listen"):
        HealthServer("127.0.0.1", server.port, board, Metrics("c"), POLL_STALL_S)
