"""What the worker's tests share: a migrated database, a broker, and workers that run on them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import running
from tests.support.running import Stage


@pytest.fixture
async def stage(migrated_url: str, kafka_bootstrap: str) -> AsyncIterator[Stage]:
    """Where workers of this test run; they are ended behind it."""
    async with running.stage(migrated_url, kafka_bootstrap) as built:
        yield built
