"""Metrics: one typed table, bounded labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.consumers import metrics as module
from tidegate.consumers.metrics import FOREIGN_TYPES_MAX, OTHER, TABLE, VOCABULARIES, Metrics
from tidegate.inbox.event import Partition
from tidegate.inbox.outcome import Reason


def series(metrics: Metrics) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in families
        for sample in family.samples
        if sample.name.startswith("tidegate_")
    }


def traffic(metrics: Metrics, first: int, last: int) -> None:
    """Events with types, tenants and ids of their own, through every metric that events touch."""
    for n in range(first, last):
        metrics.count("records_consumed", "orders", str(n % 4))
        metrics.count("unmatched", "orders", metrics.type_label(f"shop.Unheard{n}"))
        metrics.count("unmatched", "orders", metrics.type_label("shop.OrderPlaced"))
        metrics.handled("revenue", 1, n / 1000)
        metrics.duplicates("revenue", 1)
        metrics.dead("revenue", list(Reason)[n % len(Reason)], 1)
        metrics.retried("revenue", 1)
    for name, label in (("rebalances", "kind"), ("commits", "result"), ("fence_takeovers", "result")):
        for word in VOCABULARIES[label]:
            metrics.count(name, word)


def test_series_do_not_grow_with_traffic() -> None:
    """10,000 events of distinct types make the series that the first hundred made, rebalances included.

    Case: B55
    Parts: real (prometheus_client)
    Red when: metrics.py `type_label` returns its argument
    """
    metrics = Metrics("billing-orders", types=["shop.OrderPlaced"])
    traffic(metrics, 0, 100)
    before = series(metrics)
    traffic(metrics, 100, 10_000)
    for epoch in range(20):
        partition = Partition("orders", epoch % 4)
        metrics.set("lag_records", 5, "orders", str(partition.number))
        metrics.set("stalled_seconds", 5, "orders", str(partition.number))
        metrics.forget(partition)
    assert series(metrics) == before


def test_a_partition_that_left_is_no_longer_shown() -> None:
    """A gauge of a partition that another process owns would alarm for ever.

    Case: B55
    Parts: real (prometheus_client)
    Red when: metrics.py `forget` does nothing
    """
    metrics = Metrics("billing-orders")
    metrics.set("lag_records", 7, "orders", "3")
    metrics.forget(Partition("orders", 3))
    assert not [name for name, _ in series(metrics) if name == "tidegate_lag_records"]
    metrics.forget(Partition("orders", 3))


def test_a_label_outside_its_vocabulary_is_our_bug() -> None:
    metrics = Metrics("c")
    with pytest.raises(AssertionError):
        metrics.dead("h", "duplicate key value violates unique constraint (alice@example.org)", 1)
    with pytest.raises(AssertionError):
        metrics.count("unmatched", "orders", "shop.Unheard")
    metrics.count("unmatched", "orders", OTHER)


def test_the_first_few_unknown_types_are_told_by_name() -> None:
    metrics = Metrics("c", types=["shop.OrderPlaced"])
    labels = [metrics.type_label(f"shop.Unheard{n}") for n in range(FOREIGN_TYPES_MAX + 10)]
    assert labels[0] == "shop.Unheard0"
    assert labels[FOREIGN_TYPES_MAX:] == [OTHER] * 10
    assert metrics.type_label("shop.OrderPlaced") == "shop.OrderPlaced"
    assert metrics.type_label("shop.Unheard0") == "shop.Unheard0"


def test_two_consumers_in_one_process_do_not_share_series() -> None:
    one, other = Metrics("one"), Metrics("other")
    one.handled("h", 3, 0.1)
    assert one.value("events", "h", "completed") == 3
    assert other.value("events", "h", "completed") == 0


def test_every_metric_says_what_it_is_and_has_no_unbounded_label() -> None:
    allowed = {"topic", "partition", "handler", "dependency", "provider", "type", *VOCABULARIES}
    for line in TABLE:
        assert line.help.endswith("."), line.name
        assert set(line.labels) <= allowed, line.name
        assert bool(line.buckets) == (line.kind == "histogram"), line.name


def test_the_reference_is_current() -> None:
    assert Path("docs/metrics.md").read_text(encoding="utf-8") == module.reference()
