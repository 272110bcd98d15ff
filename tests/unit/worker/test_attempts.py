"""Attempts at one event: what passes while a dependency is away is nobody's time."""

from __future__ import annotations

from tidegate.consumers.worker.attempts import Attempts, Subject
from tidegate.consumers.worker.dependencies import Dependencies
from tidegate.consumers.worker.worker import POSTGRESQL
from tidegate.dlq.guard import HandlerRaised
from tidegate.dlq.policy import FailurePolicy
from tidegate.dlq.reporting import COMMAND
from tidegate.dlq.retry import RetryPolicy
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import DependencyError, TransientError
from tidegate.inbox.event import Event, Record
from tidegate.inbox.meter import NoMeter


async def test_an_outage_between_two_attempts_is_not_counted_among_their_age() -> None:
    """1. It fails. 2. The database is away for an hour. 3. It fails again, and still has its tries.

    Case: B34
    Parts: -
    Red when: consumers/worker/attempts.py's until_settled does not spare what it waited
    """
    clock = ManualClock()

    async def answers() -> bool:
        clock.advance(3_600.0)
        return True

    async def rest(seconds: float) -> None:
        clock.advance(seconds)

    ends: list[Exception | None] = [TransientError("busy"), DependencyError(POSTGRESQL, "away"), TransientError("busy")]

    async def attempt() -> str:
        if ends and (error := ends.pop(0)) is not None:
            raise HandlerRaised(error)
        return "done"

    dependencies = Dependencies({POSTGRESQL: answers}, lambda _: None, lambda _: None)
    attempts = Attempts(dependencies, NoMeter(), clock)
    event = Event(None, Record("orders", 0, 1, b"k", b"v"))
    policy = FailurePolicy(retry=RetryPolicy(age_max_s=300.0, in_place_max_s=60.0))
    settled = await attempts.until_settled(Subject("charge", COMMAND, event, policy, rest), attempt)
    assert (settled.value, settled.fate) == ("done", None)
