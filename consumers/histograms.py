"""A histogram that takes many observations at once, in the form that Prometheus' client collects. No IO.

The client's own takes a lock and walks its buckets for each observation: a microsecond, which a worker that handles
20,000 events a second pays for each. Safe to use from any thread: a scrape sees a whole call's observations or none.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from prometheus_client.core import HistogramMetricFamily

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Series:
    """`counts[n]`: how many were above the bound before and not above this one; the last: above them all."""

    counts: list[int]
    total: float = 0.0


@final
class Histogram:
    """One metric with all its label values."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        """`bounds` ascend; an observation belongs to the first that is not below it."""
        self._name = name
        self._help = help_text
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._texts = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._series: dict[Labels, _Series] = {}
        self._lock = threading.Lock()

    def observe(self, labels: Labels, values: Iterable[float]) -> None:
        """Put these values into the series of the labels."""
        bounds = self._bounds
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                series = self._series[labels] = _Series([0] * len(self._texts))
            counts, total = series.counts, series.total
            for value in values:
                counts[bisect_left(bounds, value)] += 1
                total += value
            series.total = total

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What a scrape shows."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        with self._lock:
            for labels, series in self._series.items():
                family.add_metric(labels, self._buckets(series), series.total)
        yield family

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Its name, for the registry."""
        yield HistogramMetricFamily(self._name, self._help, labels=self._labels)

    def _buckets(self, series: _Series) -> list[tuple[str, float]]:
        """Prometheus' buckets hold also what belongs to those before."""
        so_far = 0
        buckets: list[tuple[str, float]] = []
        for text, count in zip(self._texts, series.counts, strict=True):
            so_far += count
            buckets.append((text, so_far))
        return buckets
