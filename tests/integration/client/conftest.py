"""Members of a group on the real broker, under both protocols."""

from __future__ import annotations

import pytest

from tests.support.kafka_worlds import GroupProtocol


@pytest.fixture(params=["consumer", "classic"])
def protocol(request: pytest.FixtureRequest) -> GroupProtocol:
    """The group protocol."""
    return "classic" if request.param == "classic" else "consumer"
