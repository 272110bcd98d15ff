"""What the projections' tests share: a desk on which batches are applied."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import batches
from tests.support.batches import BatchDesk


@pytest.fixture
async def desk(migrated_url: str) -> AsyncIterator[BatchDesk]:
    """Two partitions of one topic."""
    async with batches.desk(migrated_url, partitions=2) as built:
        yield built
