"""The README's example, as it stands there, through a real worker on a real broker and database."""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.services.topics import Topic
from tests.support import running
from tests.support.avro import body, framed, save
from tests.support.pages import page
from tests.support.running import Sent, unique
from tidegate.consumers import App

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "OrderPlaced",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def example(topic: str, consumer: str, monkeypatch: pytest.MonkeyPatch) -> App:
    """The README's module, on a topic and a group of this test's own."""
    (block,) = page("README.md").blocks("python")
    for ours in ('"shop.orders"', '"billing-orders"'):
        assert block.text.count(ours) == 1, ours
    source = block.text.replace('"shop.orders"', repr(topic)).replace('"billing-orders"', repr(consumer))
    module = ModuleType("billing")
    monkeypatch.setitem(sys.modules, "billing", module)
    exec(compile(source, "README.md", "exec", dont_inherit=True), vars(module))
    return vars(module)["app"]


def order(order_id: str, cents: int) -> Sent:
    """An order as its producer sends it: framed Avro, with the headers that the example names."""
    value = framed(1, body(SCHEMA, {"order_id": order_id, "cents": cents, "placed_at": NOON})).value
    headers = (("ce_id", order_id.encode()), ("tenant", b"acme"), ("brand", b"shop"))
    return Sent(None, value, key=order_id.encode(), type=None, headers=headers)


async def test_the_readmes_example_does_what_it_says(
    database_url: str, kafka_bootstrap: str, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three orders, one of them twice: each counts once in the revenue, and has one invoice."""
    name, consumer, readme = topic(partitions=2), unique("billing"), page("README.md").text
    topic(partitions=1, name=f"{name}.{consumer}.dlq")
    save(tmp_path, {1: SCHEMA})
    app = example(name, consumer, monkeypatch)
    async with running.stage(database_url, kafka_bootstrap) as stage:
        await stage.execute(f'ALTER DATABASE "{urlsplit(database_url).path[1:]}" SET search_path = public')
        await stage.execute("SET search_path = public", *re.findall(r"^psql .* -c '([^']+)'", readme, re.MULTILINE))
        worker = await stage.start(app, variables={"TIDEGATE_REGISTRY_URL": str(tmp_path)})
        free = order("c", 0)
        await stage.send(name, order("a", 500), order("b", 300), free, order("a", 500))
        await worker.until_counted("events", "revenue-by-day", "completed", n=3)
        await worker.until_counted("dedup_hits", "revenue-by-day", n=1)
        await worker.until_counted("events", "send-invoice", "completed", n=2)
        assert await stage.rows("SELECT day, cents FROM public.revenue") == [(NOON.date(), 800)]
        assert await stage.rows("SELECT * FROM public.invoice ORDER BY 1") == [("a", 500), ("b", 300)]
        assert await stage.failures() == []
        assert await worker.stop() == 0


def test_the_schema_matches_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test sends is what the README's class names."""
    example("t", "c", monkeypatch)
    fields = sys.modules["billing"].OrderPlaced.__dataclass_fields__
    assert list(fields) == [field["name"] for field in SCHEMA["fields"]]
