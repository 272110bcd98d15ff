"""Every metric in one typed table: name, kind, labels, help. Labels are bounded: series never grow with traffic.

No label ever holds a tenant, key, id, offset, member id or exception text: those are in logs and rows. `topic`,
`partition`, `consumer`, `handler`, `provider` and `dependency` are bounded by the app's declarations; `reason`,
`status`, `cause`, `kind` and `result` by the vocabularies beside them; `type` by the types that the app knows and 50
more, all others being `other`. A worker shows only what is its own, and of the whole fleet only what it counts under a
lease, so that replicas never multiply it; figures of the whole database come from the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from ..inbox.event import Partition
from ..inbox.outcome import FinalStatus, Reason
from .histograms import Histogram

OTHER: Final = "other"
"""The `type` label of all event types beyond the app's own and the first few others."""

FOREIGN_TYPES_MAX: Final = 50
"""Types that the app does not know and that are shown by name all the same: who writes to a topic has fewer, or no
bound at all."""

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a commit without waiting (0.2 ms) to the longest default deadline (60 s)."""

SIZES: Final = (1, 10, 50, 100, 500, 1_000, 2_000, 5_000, 10_000)
"""From a trickle to twice the default `batch_max`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table. `labels` come behind `consumer`, which every metric has."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: Final = (
    Metric("records_consumed", "counter", "Records read from Kafka.", ("topic", "partition")),
    Metric("events", "counter", "Events done with, by final status.", ("handler", "status")),
    Metric("dead", "counter", "Events that became dead letters.", ("handler", "reason")),
    Metric("unmatched", "counter", "Events that no handler takes.", ("topic", "type")),
    Metric(
        "dedup_hits",
        "counter",
        "Repeats kept from a second effect. Many mean that something produces duplicates.",
        ("handler",),
    ),
    Metric("conflicts", "counter", "Known event ids that came again with another payload.", ("handler",)),
    Metric("breaker_open", "gauge", "1 while the breaker on dead letters holds a handler back.", ("handler",)),
    Metric("parked", "counter", "Events put into the queue: to be tried again, or behind their key.", ("handler",)),
    Metric("stale_skipped", "counter", "Events that came behind a newer one, as their projection says.", ("handler",)),
    Metric("provider_away", "gauge", "1 while a provider's breaker is open or tries one call.", ("provider",)),
    Metric("events_waiting", "gauge", "Events in the queue or behind one; shown by one process.", ("handler",)),
    Metric("events_unknown", "gauge", "Events that wait for a person; shown by one process of the fleet."),
    Metric("events_oldest_unknown_seconds", "gauge", "Age of the oldest of them."),
    Metric("effects_unknown", "gauge", "Calls that nobody knows the end of; shown by one process of the fleet."),
    Metric("effects_oldest_unknown_seconds", "gauge", "Age of the oldest of them."),
    Metric("probes", "counter", "Services asked what became of a call, by what they said.", ("result",)),
    Metric("retries", "counter", "Attempts that will be made again.", ("handler",)),
    Metric("handler_seconds", "histogram", "One run of a handler function.", ("handler",), SECONDS),
    Metric("batch_seconds", "histogram", "One transaction of a projection batch.", ("handler",), SECONDS),
    Metric("batch_events", "histogram", "Events in one projection batch.", ("handler",), SIZES),
    Metric(
        "lag_records", "gauge", "Records behind the end of the partition, while it is owned.", ("topic", "partition")
    ),
    Metric(
        "stalled_seconds",
        "gauge",
        "Time since the partition's commit point moved, with work in it.",
        ("topic", "partition"),
    ),
    Metric("partitions_assigned", "gauge", "Partitions that this process owns."),
    Metric("partitions_paused", "gauge", "Owned partitions that are paused, by cause.", ("cause",)),
    Metric("window_records", "gauge", "Records in memory."),
    Metric("window_bytes", "gauge", "Bytes of the records in memory."),
    Metric("commits", "counter", "Offset commits to Kafka, by answer.", ("result",)),
    Metric("rebalances", "counter", "Assignments changed.", ("kind",)),
    Metric("ownership_lost", "counter", "Events dropped because their partition is another's."),
    Metric("fence_takeovers", "counter", "Fences taken over, by result.", ("result",)),
    Metric("fence_takeover_seconds", "histogram", "One takeover of a fence.", (), SECONDS),
    Metric("gap_records", "counter", "Records that retention removed before they were read.", ("topic", "partition")),
    Metric("subscription_error", "gauge", "1 while a subscribed topic cannot be read.", ("topic",)),
    Metric("dependency_away", "gauge", "1 while a dependency does not answer.", ("dependency",)),
    Metric("outbox_pending", "gauge", "Outbox rows of owned partitions that Kafka does not have yet."),
    Metric("outbox_oldest_seconds", "gauge", "Age of the oldest of them."),
    Metric("outbox_published", "counter", "Outbox rows delivered, by result.", ("result",)),
    Metric("handlers_gone", "gauge", "Handlers with rows or checkpoints that the app no longer has."),
    Metric("consumers_gone", "gauge", "Consumers that the app no longer has, and that left rows, letters or calls."),
    Metric("loop_stall_seconds", "gauge", "Time since the event loop last turned."),
    Metric("poll_age_seconds", "gauge", "Time since the poll loop last turned."),
)

VOCABULARIES: Final[dict[str, frozenset[str]]] = {
    "status": frozenset(FinalStatus),
    "reason": frozenset(Reason),
    "cause": frozenset({"window_full", "dependency", "quiet", "outbox", "suspects"}),
    "kind": frozenset({"assigned", "revoked", "lost"}),
    "result": frozenset(
        {"accepted", "refused", "unreachable", "forbidden", "taken", "delivered", "failed"}
        | {"found", "not_done", "cannot_tell"}
    ),
}
"""What the labels with a vocabulary may say. A new word is added here, beside the code that says it."""


@final
class Metrics:
    """One consumer's metrics, on a registry of its own. Safe to use from any thread.

    Args:
        consumer: the `consumer` label of every series.
        types: the full names of the event types that the app knows.
    """

    def __init__(self, consumer: str, types: Iterable[str] = ()) -> None:
        disable_created_metrics()  # they double the series and nothing reads them
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self.consumer = consumer
        self._types = set(types)
        self._types_max = len(self._types) + FOREIGN_TYPES_MAX
        self._made: dict[str, Counter | Gauge | Histogram] = {line.name: _make(line, self.registry) for line in TABLE}
        self._labels = {line.name: line.labels for line in TABLE}
        self._counters: dict[tuple[str, ...], Counter] = {}
        """By name and label values, as they were found once: to look one up in the client costs more than to add."""

    def type_label(self, type_name: str) -> str:
        """The `type` label for an event type: its name, for the app's own and the first few others; else `other`."""
        if type_name not in self._types and len(self._types) < self._types_max:
            self._types.add(type_name)
        return type_name if type_name in self._types else OTHER

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter; the label values stand in the table's order."""
        counter = self._counters.get((name, *labels))
        if counter is None:
            metric = self._made[name]
            assert isinstance(metric, Counter), name
            counter = self._counters[(name, *labels)] = metric.labels(*self._values(name, labels))
        counter.inc(by)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self._gauge(name).labels(*self._values(name, labels)).set(value)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Put a value into a histogram."""
        self._observe(name, (value,), *labels)

    def read_at_scrape(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """Let a gauge call `read` whenever it is scraped, in the health server's thread."""
        self._gauge(name).labels(*self._values(name, labels)).set_function(read)

    def forget(self, partition: Partition) -> None:
        """Drop the gauges of a partition that left: what another process owns is no longer ours to show."""
        for name in ("lag_records", "stalled_seconds"):
            self._gauge(name).remove(self.consumer, partition.topic, str(partition.number))

    def value(self, name: str, *labels: str) -> float:
        """The present value of a counter or gauge; 0 where it was never touched."""
        suffix = "_total" if isinstance(self._made[name], Counter) else ""
        names = ("consumer", *self._labels[name])
        found = self.registry.get_sample_value(
            f"tidegate_{name}{suffix}", dict(zip(names, self._values(name, labels), strict=True))
        )
        return found or 0.0

    # -- the lower rooms' Meter

    def handled(self, handler: str, n: int, seconds: float) -> None:
        """Events were handled in one run of a handler that took `seconds`."""
        self.count("events", handler, FinalStatus.COMPLETED, by=n)
        self.observe("handler_seconds", seconds, handler)

    def handled_each(self, handler: str, seconds: Sequence[float]) -> None:
        """Events were handled, one in each run of these lengths."""
        self.count("events", handler, FinalStatus.COMPLETED, by=len(seconds))
        self._observe("handler_seconds", seconds, handler)

    def skipped(self, handler: str, n: int) -> None:
        """There was nothing to do."""
        self.count("events", handler, FinalStatus.SKIPPED, by=n)

    def duplicates(self, handler: str, n: int) -> None:
        """Events were claimed before: not run again."""
        self.count("events", handler, FinalStatus.SKIPPED_DUPLICATE, by=n)
        self.count("dedup_hits", handler, by=n)

    def dead(self, handler: str, reason: str, n: int) -> None:
        """Events got a failure row and a dead letter."""
        self.count("events", handler, FinalStatus.FAILED, by=n)
        self.count("dead", handler, reason, by=n)
        if reason == Reason.CONFLICT:
            self.count("conflicts", handler, by=n)

    def unknown(self, handler: str, n: int) -> None:
        """Events wait for a person: what became of them nobody knows."""
        self.count("events", handler, FinalStatus.UNKNOWN, by=n)

    def parked(self, handler: str, n: int) -> None:
        """Events were put into the queue: to be tried again, or behind earlier ones of their key."""
        self.count("parked", handler, by=n)

    def stale(self, handler: str, n: int) -> None:
        """Events were handled and changed nothing, because something newer stood there already."""
        self.count("stale_skipped", handler, by=n)

    def retried(self, handler: str, n: int) -> None:
        """Attempts failed and will be made again."""
        self.count("retries", handler, by=n)

    def lost(self, n: int) -> None:
        """Work was dropped because its partition went away."""
        self.count("ownership_lost", by=n)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _observe(self, name: str, values: Iterable[float], *labels: str) -> None:
        metric = self._made[name]
        assert isinstance(metric, Histogram), name
        metric.observe(self._values(name, labels), values)

    def _gauge(self, name: str) -> Gauge:
        metric = self._made[name]
        assert isinstance(metric, Gauge), name
        return metric

    def _values(self, name: str, given: tuple[str, ...]) -> tuple[str, ...]:
        labels = self._labels[name]
        assert len(labels) == len(given), f"{name} has the labels {labels}"
        for label, value in zip(labels, given, strict=True):
            vocabulary = VOCABULARIES.get(label)
            assert vocabulary is None or value in vocabulary, f"{value!r} is not in the vocabulary of {label}"
            assert label != "type" or value == OTHER or value in self._types, "pass type_label(name)"
        return (self.consumer, *given)


def _make(line: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    labels = ("consumer", *line.labels)
    match line.kind:
        case "counter":
            return Counter(line.name, line.help, labels, namespace="tidegate", registry=registry)
        case "gauge":
            return Gauge(line.name, line.help, labels, namespace="tidegate", registry=registry)
        case "histogram":
            histogram = Histogram(f"tidegate_{line.name}", line.help, labels, line.buckets)
            registry.register(histogram)
            return histogram


def reference() -> str:
    """docs/metrics.md, made from the table."""
    lines = [
        "# Metrics",
        "",
        "<!-- Made by `tidegate config --metrics`; edit consumers/metrics.py instead. -->",
        "",
        "Served by each worker at `/metrics`. Every metric has the label `consumer`. Labels are bounded: series do not",
        "grow with traffic, tenants or keys.",
        "",
        "| metric | kind | labels | what it is |",
        "|---|---|---|---|",
    ]
    for line in TABLE:
        suffix = "_total" if line.kind == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in line.labels) or "-"
        lines.append(f"| `tidegate_{line.name}{suffix}` | {line.kind} | {labels} | {line.help} |")
    lines += ["", "| label | its words |", "|---|---|"]
    lines += [f"| `{label}` | {', '.join(sorted(words))} |" for label, words in VOCABULARIES.items()]
    return "\n".join([*lines, ""])
