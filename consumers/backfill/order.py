"""What a person asks of a backfill, and the window as offsets. No IO; time is an argument."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ...inbox.backfills import Part, Run
from ...inbox.errors import ConfigurationError, Problem
from ...inbox.event import Partition
from ..app import Consumer

RATE_PER_S = 500.0
"""Events a second, unless another rate is asked for: a worker beside it keeps most of the database to itself."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One backfill: `handler` handles the records of `since` <= time < `until`.

    `tenant` is the only one whose events count; None needs `all_tenants` where events have tenants. `topics`: some of
    the consumer's, by their names as they are; none: all. `cluster`: the only cluster that it may run on. `force`: also
    what is older than the inbox remembers. `hold`: a projection's live version writes nothing meanwhile (see `held`).
    """

    consumer: str
    handler: str
    since: datetime.datetime
    until: datetime.datetime
    actor: str
    reason: str
    tenant: str | None = None
    all_tenants: bool = False
    topics: tuple[str, ...] = ()
    cluster: str | None = None
    rate: float = RATE_PER_S
    force: bool = False
    hold: bool = False

    def wanted(self) -> dict[str, Any]:
        """As the journal keeps it: all that decides what becomes of a record."""
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "tenant": self.tenant,
            "topics": list(self.topics),
            "rate": self.rate,
            "force": self.force,
            "hold": self.hold,
        }


ALL_TIMES: Final = (-1, 1 << 62)
"""A held version goes on behind its backfill's end: whatever it leaves out before that, nobody handles."""


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """Which records of the offsets that are read count: those of a time (ms since 1970), and of a tenant."""

    since_ms: int
    until_ms: int
    tenant: str | None
    force: bool

    @classmethod
    def of(cls, wanted: Mapping[str, Any]) -> Frame:
        """That of an order, as the journal keeps it."""
        if wanted.get("hold"):
            return cls(*ALL_TIMES, None, force=False)
        since, until = (datetime.datetime.fromisoformat(wanted[name]) for name in ("since", "until"))
        return cls(milliseconds(since), milliseconds(until), wanted["tenant"], wanted["force"])


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """Below these offsets the inbox may have forgotten what was handled: by partition, for commands."""

    births: Mapping[Partition, int] = field(default_factory=dict[Partition, int])
    restored: Mapping[Partition, int] = field(default_factory=dict[Partition, int])


def milliseconds(time: datetime.datetime) -> int:
    """Since 1970, as Kafka counts.

    >>> milliseconds(datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC))
    1000
    """
    return round(time.timestamp() * 1000)


def part_of(
    partition: Partition, incarnation: int, ends: tuple[int, int], since: int | None, until: int | None
) -> Part:
    """A partition's share: from the first record of the window to its end, or to where the log ends now.

    `since` and `until` are the first offsets of records of these times or later, None where there is none: then the
    log's end counts, so that nothing that comes later is ever waited for.

    >>> part = part_of(Partition("t", 0), 0, (5, 90), 20, None)
    >>> part.start_offset, part.end_offset
    (20, 90)
    """
    low, high = ends
    end = high if until is None else max(low, min(until, high))
    start = min(end, max(low, high if since is None else since))
    return Part(partition, incarnation, start, start, end)


def problems_of(order: Order, consumer: Consumer) -> list[Problem]:
    """Everything in the order that does not fit the consumer as it is declared."""
    found: list[Problem] = []
    if order.handler not in consumer.handler_names:
        known = ", ".join(consumer.handler_names)
        found.append(
            Problem("--handler", f"{consumer.name!r} has no handler {order.handler!r}", f"name one of: {known}")
        )
    if order.since >= order.until:
        found.append(Problem("--to", "the window ends before it begins", "give a time behind --from"))
    found += [
        Problem("--topic", f"{topic!r} is no topic of {consumer.name!r}", f"name some of: {', '.join(consumer.topics)}")
        for topic in order.topics
        if topic not in consumer.topics
    ]
    if order.rate <= 0:
        found.append(Problem("--rate", "nothing would ever be handled", "give events a second, more than 0"))
    projection = consumer.projections.get(order.handler)
    if projection is not None and not projection.only_if_newer and not order.hold:
        found.append(Problem(f"handler {order.handler!r} of {consumer.name!r}", UNGUARDED, UNGUARDED_FIX))
    return found + _tenant_problems(order, consumer) + (_hold_problems(order, consumer) if order.hold else [])


def _hold_problems(order: Order, consumer: Consumer) -> list[Problem]:
    found: list[Problem] = []
    if order.handler in consumer.commands:
        what = f"{order.handler!r} is a command: what it handled is not handled again, so it needs no holding"
        found.append(Problem("--hold", what, "leave it out"))
    if order.tenant is not None:
        what = "the held version goes on behind the end, and would never see the other tenants' events"
        found.append(Problem("--tenant", what, "hold it for --all-tenants, or guard its writes (only_if_newer=True)"))
    return found


def _tenant_problems(order: Order, consumer: Consumer) -> list[Problem]:
    if consumer.scope.tenant is None:
        if order.tenant is None:
            return []
        return [Problem("--tenant", f"{consumer.name!r} does not say which header names it", "declare it: scope=")]
    if (order.tenant is None) is order.all_tenants:
        return []
    return [Problem("--tenant", "it is not said whose events count", "give either --tenant NAME or --all-tenants")]


UNGUARDED = (
    "it is live, and does not say that its writes are guarded: what a backfill writes beside it could put old values"
    " back over new ones"
)
UNGUARDED_FIX = (
    "write through write_newer (or a comparison of your own) and declare only_if_newer=True; or --hold it until the"
    " backfill is through, to the end of the log"
)


def refused_at(run: Run, consumer: Consumer, cluster_id: str) -> ConfigurationError | None:
    """Why an interrupted backfill cannot go on here; None where it can."""
    if run.cluster_id != cluster_id:
        return ConfigurationError.of(
            "kafka.bootstrap_servers",
            f"backfill {run.id} reads cluster {run.cluster_id or '(unnamed)'}, this is {cluster_id or '(unnamed)'}",
            "go on where it was started",
        )
    if consumer.kinds.get(run.handler) != run.kind:
        return ConfigurationError.of(
            f"handler {run.handler!r} of {consumer.name!r}",
            f"backfill {run.id} was started for a {run.kind}, and the app has none of this name",
            f"go on with the app that started it, or: tidegate backfill abandon {run.id}",
        )
    strange = sorted({part.partition.topic for part in run.parts} - set(consumer.topics))
    if strange:
        return ConfigurationError.of(
            f"consumer {consumer.name!r}", f"it does not read {', '.join(strange)} any more", "start another backfill"
        )
    return None
