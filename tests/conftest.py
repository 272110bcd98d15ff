"""What every test may ask for: the run's real servers, and a database and topics of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import hypothesis
import pytest

from tests.services import database, kafka, leftovers, postgres, registry, shared, topics
from tests.support import bytecode
from tidegate.inbox import migrate

# A busy machine is no counter-example. Built on the profile in force: hypothesis has one of its own for CI.
_in_force = hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name())
hypothesis.settings.register_profile("tidegate", _in_force, deadline=None)
hypothesis.settings.load_profile("tidegate")


def pytest_configure(config: pytest.Config) -> None:
    """A run leaves no process behind; one of several processes (`-n 2`) has servers that all of them share."""
    if hasattr(config, "workerinput"):
        return
    bytecode.compile_all()
    config.add_cleanup(leftovers.watch())
    if config.getoption("numprocesses", default=None):
        config.add_cleanup(shared.start())


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """A real Kafka broker, as `host:port`."""
    with kafka.running() as bootstrap:
        yield bootstrap


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real PostgreSQL, as a superuser's `postgresql://` URL."""
    with postgres.running() as url:
        yield url


@pytest.fixture(scope="session")
def registry_url() -> Iterator[str]:
    """A real schema registry, as the URL for a Confluent-compatible client."""
    with registry.running() as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh database with an empty search_path, dropped afterwards."""
    with database.fresh(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[str]:
    """What `migrated_url` copies; nothing connects to it."""
    with database.fresh(postgres_url) as url:
        database.run(migrate.upgrade(url))
        yield url


@pytest.fixture
def migrated_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A database like `database_url`, with tidegate's tables in the default schema: a copy, not migrated anew."""
    with database.fresh(postgres_url, migrated_template) as url:
        yield url


@pytest.fixture
def topic(kafka_bootstrap: str, request: pytest.FixtureRequest) -> Iterator[topics.Topic]:
    """Makes topics: `topic(partitions=4, config={...}, name=None)` gives a name. They are deleted afterwards."""
    hint = re.sub(r"[^a-z0-9]+", "-", str(request.node.name).lower()).strip("-")[:60]
    with topics.fresh(kafka_bootstrap, hint) as make:
        yield make
