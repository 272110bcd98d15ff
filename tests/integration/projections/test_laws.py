"""Random batches of random trouble over a real database: nothing is lost, nothing lands twice, no key is overtaken."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, get_args

import pytest

from tests.support.batches import BatchDesk, Trouble, batch, of
from tidegate.dlq.policy import AfterDead, FailurePolicy, skip_on
from tidegate.dlq.retry import RetryPolicy
from tidegate.inbox.event import Event

BATCHES = 4
EVENTS_MAX = 14


class ClosedError(Exception):
    """What a rule skips."""


class SomeSkipped(Trouble):
    """Trouble, and events that a rule skips."""

    def _meet(self, event: Event[Any], ids: list[str]) -> None:
        super()._meet(event, ids)
        if event.value.get("closed"):
            raise ClosedError


def trouble_of(pick: random.Random, offset: int) -> dict[str, Any]:
    """What the event at `offset` does."""
    some: list[dict[str, Any]] = [
        {}, {}, {}, {"permanent": True}, {"transient": pick.randrange(1, 9)}, {"unknown": True}, {"closed": True},
        {"never_with": f"e{max(0, offset - pick.randrange(1, 4))}"},
    ]  # fmt: skip
    return pick.choice(some)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("on_failure", ["continue", "block"])
async def test_every_event_has_one_end_whatever_failed(desk: BatchDesk, seed: int, on_failure: str) -> None:
    """Permanent and transient failures, pairs that fail only together, skips, reviews, repeats, over several batches.

    Case: B36
    Parts: real (PostgreSQL)
    Red when: projections/steps.py `_line_up` takes `share.verdicts.fates` for `share.fates`
    """
    pick = random.Random(seed)
    policy = FailurePolicy(
        "block" if on_failure == "block" else "continue",
        RetryPolicy(attempts_max=4, base_s=0.001, in_place_max_s=pick.choice((0.0, 0.004, 10.0))),
        (skip_on(ClosedError, because="closed"),),
        after_dead=pick.choice(get_args(AfterDead)),
    )
    applier = desk.applier(await desk.declare("revenue", policy, SomeSkipped()))
    sent: list[Event[Any]] = []
    offset = 0
    for _ in range(BATCHES):
        events: list[Event[Any]] = []
        for _ in range(pick.randrange(1, EVENTS_MAX)):
            again = pick.choice(sent) if sent and pick.random() < 0.1 else None
            key, id_text = pick.choice(("a", "b", "c", None)), None
            value = trouble_of(pick, offset)
            if again is not None:
                key, id_text, value = (again.key or b"").decode() or None, again.id_text, again.value
            events.append(of(offset, key, id=id_text, **value))
            offset += 1
        await applier.apply(batch(*events))
        sent += events
    assert (await desk.checkpoints())[0] == offset
    await check_ends(desk, sent)
    if on_failure == "block":
        await check_order(desk, sent)


async def check_ends(desk: BatchDesk, sent: list[Event[Any]]) -> None:
    """Each id has landed once, or has one row that is no link, or was skipped: claimed without an effect."""
    landed = Counter(await desk.applied())
    rows = Counter(row[0] for row in await desk.rows("SELECT id_text FROM tidegate.failure WHERE state <> 'linked'"))
    claimed = {row[0] for row in await desk.rows("SELECT event_id FROM tidegate.claim_1")}
    for event in {event.id_text: event for event in sent}.values():
        is_skipped = event.event_id in claimed and event.id_text not in landed
        assert landed[event.id_text] + rows[event.id_text] + is_skipped == 1, event.id_text
        assert (event.event_id in claimed) == (rows[event.id_text] == 0)
        assert not is_skipped or event.value.get("closed")
    assert desk.counts["skipped", "revenue"] == len(claimed) - len(landed)


async def check_order(desk: BatchDesk, sent: list[Event[Any]]) -> None:
    """Of each key: what landed did so in its order, and nothing landed behind the first one that holds its key."""
    landed = await desk.applied()
    first_of = {event.id_text: event for event in reversed(sent)}
    for key in (b"a", b"b", b"c"):
        offsets = [first_of[id_text].offset for id_text in landed if first_of[id_text].key == key]
        assert offsets == sorted(offsets)
        lane = [first_of[id_text].offset for id_text in await desk.lane(key.decode())]
        assert lane == sorted(lane)
        assert not lane or not offsets or offsets[-1] < lane[0]
