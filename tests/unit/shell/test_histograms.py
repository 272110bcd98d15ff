"""The histogram shows what the client's own would show, however its observations came."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from tidegate.consumers.histograms import Histogram
from tidegate.consumers.metrics import SECONDS, SIZES

VALUES = st.lists(st.floats(0, 100, allow_nan=False) | st.sampled_from([*SECONDS, *map(float, SIZES)]))


@given(groups=st.lists(VALUES), bounds=st.sampled_from([SECONDS, SIZES]))
def test_it_shows_what_the_clients_own_would(groups: list[list[float]], bounds: tuple[float, ...]) -> None:
    """A bound belongs to its bucket; buckets hold those before; a sum and a count stand behind."""
    prometheus_client.disable_created_metrics()
    theirs_at, ours_at = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    theirs = prometheus_client.Histogram("t", "What it is.", ("handler",), registry=theirs_at, buckets=bounds)
    ours = Histogram("t", "What it is.", ("handler",), bounds)
    ours_at.register(ours)
    for group in groups:
        ours.observe(("a",), group)
        theirs.labels("a")
        for value in group:
            theirs.labels("a").observe(value)
    assert generate_latest(ours_at) == generate_latest(theirs_at)


def test_two_metrics_of_one_name_are_our_bug() -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Histogram("t", "What it is.", (), SECONDS))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Histogram("t", "What it is.", (), SECONDS))
