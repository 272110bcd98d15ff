"""What the guide shows for a web request and for a script, on a real database."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.support.pages import page
from tidegate.inbox.blocking_ledger import BlockingLedger, open_ledger
from tidegate.inbox.effect_rules import Effect, review
from tidegate.inbox.errors import EffectPending, EffectUnknown
from tidegate.inbox.store import Store


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's Python, run."""
    module = ModuleType("effects_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in page("docs/guides/effects.md").blocks("python"):
        exec(compile(block.text, "docs/guides/effects.md", "exec", dont_inherit=True), vars(module))
    return module


async def test_a_double_click_pays_once(guide: ModuleType, migrated_url: str) -> None:
    charged: list[str] = []
    answers = asyncio.Event()

    class Bank(guide.Bank):
        async def charge(self, order_id: str, cents: int, key: str, timeout_s: float) -> str:
            charged.append(order_id)
            await answers.wait()
            return f"p-{order_id}"

    async with open_ledger(migrated_url) as ledger:
        clicks = [asyncio.create_task(guide.pay(ledger, Bank(), "t1", "o1", 500)) for _ in range(2)]
        await asyncio.wait(clicks, return_when=asyncio.FIRST_COMPLETED)
        answers.set()
        ended = await asyncio.gather(*clicks, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ended) == ["EffectPending", "dict"]
        assert await guide.pay(ledger, Bank(), "t1", "o1", 500) == {"payment": "p-o1"}
        with pytest.raises(EffectUnknown):
            await guide.pay(ledger, Bank(), "t1", "o1", 600)
        assert await guide.pay(ledger, Bank(), "t2", "o1", 600) == {"payment": "p-o1"}
    assert charged == ["o1", "o1"]


async def test_a_script_pays_once_however_often_it_is_run(guide: ModuleType, migrated_url: str, store: Store) -> None:
    assert await asyncio.to_thread(guide.pay_in_a_script, migrated_url, "o1", 500) == "paid 500"
    assert await asyncio.to_thread(guide.pay_in_a_script, migrated_url, "o1", 700) == "paid 500"


async def test_threads_share_a_blocking_ledger(migrated_url: str) -> None:
    effect = Effect("print", review(), 5.0)
    printed: list[int] = []

    def work(ledger: BlockingLedger, n: int) -> Any:
        with ledger.effect(effect, f"op-{n % 10}", owner="tests") as called:
            if not called.is_done:
                printed.append(n % 10)
                called.complete(n % 10)
        return called.result

    def run() -> list[Any]:
        with BlockingLedger(migrated_url) as ledger:
            return [work(ledger, n) for n in range(20)]

    assert await asyncio.to_thread(run) == [n % 10 for n in range(20)]
    assert printed == list(range(10))


async def test_a_blocking_call_waits_for_nobodys_loop(migrated_url: str) -> None:
    def run() -> None:
        effect = Effect("print", review(), 60.0)
        first, second = BlockingLedger(migrated_url), BlockingLedger(migrated_url)
        with first.effect(effect, "op-1", owner="tests") as called:
            with pytest.raises(EffectPending), second.effect(effect, "op-1", owner="tests"):
                raise AssertionError("nobody gets here")
            called.complete()
        first.close()
        first.close()
        second.close()

    await asyncio.to_thread(run)
