"""The worlds that a contract suite runs in."""

from __future__ import annotations

import pytest

from tests.services.topics import Topic
from tests.support.kafka_worlds import ClusterWorld, FakeWorld, GroupProtocol, Make
from tests.support.mock_cluster import Mock

WORLDS = ("fake", "mock-consumer", "mock-classic", "real-consumer", "real-classic")


@pytest.fixture(scope="session")
def mock_cluster() -> Mock:
    """One mock cluster for the run."""
    return Mock()


@pytest.fixture(params=WORLDS)
def make_world(request: pytest.FixtureRequest) -> Make:
    """Makes the world in which the port is tried."""
    where, _, protocol = str(request.param).partition("-")
    if where == "fake":
        return FakeWorld
    group_protocol: GroupProtocol = "classic" if protocol == "classic" else "consumer"
    if where == "mock":
        mock: Mock = request.getfixturevalue("mock_cluster")
        name = f"t{abs(hash(request.node.name)) % 10**9}"
        return lambda desk, intake: ClusterWorld(desk, intake, mock.make_topic(name), mock.bootstrap, group_protocol)
    topic: Topic = request.getfixturevalue("topic")
    bootstrap: str = request.getfixturevalue("kafka_bootstrap")
    return lambda desk, intake: ClusterWorld(desk, intake, topic(), bootstrap, group_protocol)
