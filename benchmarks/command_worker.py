"""tidegate's side of the benchmarks of commands: a worker in a process of its own, as `tidegate run` runs it.

`python -m benchmarks.command_worker KIND URL BOOTSTRAP TOPIC COUNT` prints its figures once all COUNT events ended:

| kind | its handler |
|---|---|
| `plain` | does nothing: what is measured is what every command costs |
| `poison` | the same, but 1 % of the events fail for good, and 1 % in their first attempt |
| `effects` | calls the stand-in, inside an effect |
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import json
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import uvloop

from benchmarks.orders import ID_HEADER, SCHEMAS, OrderPlaced
from benchmarks.stand_in import call
from tidegate.consumers import App, Avro, Context, Event, header, idempotent_key, logs, review
from tidegate.consumers.cli.running import tune_interpreter
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.run import run_consumer
from tidegate.inbox.migrate import upgrade

HANDLER: Final = "charge"
CONCURRENCY: Final = 100
KEYS: Final = 20_000
"""Of `poison` and what it is measured beside."""

PARKED_MAX: Final = 10_000_000
"""Above what `parked` parks: at a handler's limit its consumer would pause, as it should."""

ENDS: Final = ("completed", "failed", "skipped_duplicate")
LOOK_S: Final = 0.005

QUIET_MAX_S: Final = 60.0
"""When nothing comes to its end for so long, nothing will: a rebalance behind a machine that stood still takes less."""

LEAVE_MAX_S: Final = 60.0
"""To stop and to end the process takes half a minute at most; what takes longer shows where each thread stands."""

STEADY: Final = (0.25, 0.95)
"""A steady rate is counted between these shares of the ends. In the first quarter connections are opened, and what was
decoded while something else was waited for comes for nothing: a window of 25,000 and what waits before it. At the end
the last retry's wait and the last group of letters come once, however many events went before."""


@dataclass(slots=True)
class Charge:
    """Take an order's money."""

    order_id: str
    amount: int


@final
class Course:
    """When the first event came, in wall clock and processor time, and how many handlers came to their end."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.first_cpu_s = 0.0
        self.ended = 0

    def began(self) -> None:
        """An event came."""
        if self.first_at is None:
            self.first_at, self.first_cpu_s = time.time(), time.process_time()


class Moment(NamedTuple):
    """Wall clock, processor time, and how many handlers had come to their end."""

    at: float
    cpu_s: float
    ended: int


Handler = Callable[[Charge, Context], Awaitable[None]]


def plain(app: App, course: Course) -> Handler:
    """No work at all."""

    async def nothing(command: Charge, ctx: Context) -> None:
        course.ended += 1

    return nothing


def poison(app: App, course: Course) -> Handler:
    """No work, and some trouble: one in a hundred is never taken, another one at its second attempt."""

    async def sometimes_fails(command: Charge, ctx: Context) -> None:
        lot = (command.amount + command.amount // KEYS) % 100  # so that it is another key's turn each time
        if lot == 51 and ctx.attempt == 1:
            raise ConnectionResetError("the line went dead")
        course.ended += 1
        if lot == 1:
            raise ValueError("refused")

    return sometimes_fails


def effects(app: App, course: Course) -> Handler:
    """One call."""
    app.effect(HANDLER, rule=idempotent_key(valid_s=86_400, then=review()), deadline_s=10, provider="stand-in")

    async def pay(command: Charge, ctx: Context) -> None:
        request = {"order": command.order_id, "amount": command.amount}
        async with ctx.effect(HANDLER, request=request) as effect:
            if not effect.is_done:
                answer = await call(effect.key)
                effect.complete(result={"id": answer}, external_id=answer)
        course.ended += 1

    return pay


KINDS: Final = {"plain": plain, "poison": poison, "effects": effects}


def make_app(kind: str, topic: str, consumer: str, course: Course) -> App:
    """One command."""
    app = App("bench", owner="bench")
    orders = app.consumer(consumer, topics=[topic], codec=Avro(str(SCHEMAS)), event_id=header(ID_HEADER))

    @orders.command(HANDLER, on=OrderPlaced, concurrency=CONCURRENCY, parked_max=PARKED_MAX)
    def to_charge(event: Event[OrderPlaced]) -> Charge:
        course.began()
        return Charge(event.value.order_id, event.value.amount)

    app.handler(Charge)(KINDS[kind](app, course))
    return app


async def measure(kind: str, url: str, bootstrap: str, topic: str, count: int, consumer: str) -> dict[str, float]:
    """From the first event that a handler was asked about to the last one that is durable.

    `steady_per_s` counts between the shares `STEADY` of the handlers' ends.
    """
    environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    settings = load(os.environ | environment, None, {}, ("database.url", "kafka.bootstrap_servers")).settings
    logs.configure(settings.log)
    await upgrade(url)
    course, metrics, stop = Course(), Metrics(consumer), asyncio.Event()
    app = make_app(kind, topic, consumer, course)
    running = asyncio.ensure_future(run_consumer(app, consumer, settings, HealthBoard(), metrics, stop))
    watch = Watch(running, course, metrics)
    warm, late = [await watch.until(_have_ended(course, count * share)) for share in STEADY]
    done = await watch.until(lambda: course.ended >= count and watch.written() >= count)
    assert course.first_at is not None, "an event ended"
    faulthandler.dump_traceback_later(LEAVE_MAX_S, exit=True)
    stop.set()
    await running
    seconds, steadily = done.at - course.first_at, late.ended - warm.ended
    return {
        "seconds": seconds,
        "events_per_s": count / seconds,
        "first_at": course.first_at,
        "cpu_s": done.cpu_s - course.first_cpu_s,
        "steady_per_s": steadily / (late.at - warm.at),
        "steady_cpu_us": (late.cpu_s - warm.cpu_s) / steadily * 1e6,
    }


def _have_ended(course: Course, handlers: float) -> Callable[[], bool]:
    return lambda: course.ended >= handlers


@final
class Watch:
    """Waits for a worker that runs, as long as anything happens there."""

    def __init__(self, running: asyncio.Future[int], course: Course, metrics: Metrics) -> None:
        self._running = running
        self._course = course
        self._metrics = metrics

    def written(self) -> float:
        """How many events' ends are durable. A repeat is one, where the answer to a commit was lost.

        It takes a millisecond: not to be asked while the figures are counted.
        """
        return sum(self._ends().values())

    async def until(self, condition: Callable[[], bool]) -> Moment:
        """Wait, and say when it was.

        Raises:
            RuntimeError: the worker ended by itself, or no handler comes back any more; what there was of it is told.
        """
        course, seen, quiet_since_s = self._course, -1, time.monotonic()
        while not condition():
            if self._running.done():
                raise RuntimeError(f"the worker ended with {self._running.result()}: {self._so_far()}")
            if course.ended != seen:
                seen, quiet_since_s = course.ended, time.monotonic()
            elif time.monotonic() - quiet_since_s > QUIET_MAX_S:
                faulthandler.dump_traceback_later(LEAVE_MAX_S, exit=True)  # what stands still may not end either
                stacks = io.StringIO()
                for task in asyncio.all_tasks():
                    task.print_stack(limit=3, file=stacks)
                raise RuntimeError(f"nothing for {QUIET_MAX_S:.0f} s: {self._so_far()}\n{stacks.getvalue()}")
            await asyncio.sleep(LOOK_S)
        return Moment(time.time(), time.process_time(), course.ended)

    def _ends(self) -> dict[str, float]:
        return {end: self._metrics.value("events", HANDLER, end) for end in ENDS}

    def _so_far(self) -> str:
        return f"{self._course.ended} handlers came back, ends: {self._ends()}"


def main() -> None:
    """Measure once and print the figures as JSON."""
    kind, url, bootstrap, topic, count = sys.argv[1:6]
    consumer = sys.argv[6] if len(sys.argv) > 6 else f"bench-{uuid.uuid4().hex[:8]}"
    tune_interpreter()
    print(json.dumps(uvloop.run(measure(kind, url, bootstrap, topic, int(count), consumer))))


if __name__ == "__main__":
    main()
