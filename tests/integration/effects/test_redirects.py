"""A service that does what it is asked for and sends the client on to look at it: a real client, a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from tests.support.calling import reviewed, value
from tidegate.inbox.effect_rules import Effect
from tidegate.inbox.errors import EffectUnknown
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store


@dataclass
class Shop:
    """Answers a POST with the place of what it made, where nothing is found (yet)."""

    url: str = ""
    made: list[str] = field(default_factory=list[str])


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()

    class Asked(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            shop.made.append(self.path)
            self._answer(303, "/orders/1")

        def do_GET(self) -> None:
            self._answer(404)

        def _answer(self, status: int, location: str | None = None) -> None:
            self.send_response(status)
            if location is not None:
                self.send_header("location", location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Asked) as server:
        shop.url = f"http://127.0.0.1:{server.server_port}/orders"
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield shop
        server.shutdown()
        serving.join()


async def order(ledger: Ledger, effect: Effect, shop: Shop) -> None:
    def post() -> None:
        requests.post(shop.url, data=b"x", timeout=30).raise_for_status()

    async with ledger.effect(effect, "op-1", owner="tests") as opened:
        await asyncio.to_thread(post)
        opened.complete()


async def test_what_a_redirect_leads_to_does_not_say_that_it_was_not_done(
    ledger: Ledger, store: Store, shop: Shop
) -> None:
    for _ in range(2):
        with pytest.raises(EffectUnknown):
            await order(ledger, reviewed(deadline_s=60.0), shop)
    assert await value(store, "state") == "unknown"
    assert shop.made == ["/orders"]
