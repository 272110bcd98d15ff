"""The test run's own servers: they answer, and they never outlive the run."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import asyncpg
import pytest
from confluent_kafka.admin import AdminClient

from tests.services.server import GUARD
from tests.services.topics import Topic

ROOT = Path(__file__).parents[3]


async def test_each_test_has_an_empty_database_of_its_own(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("SHOW search_path") == '""'
        assert await connection.fetchval("SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = 'public'") == 0
    finally:
        await connection.close()


def test_a_topic_is_ready_when_its_maker_returns(kafka_bootstrap: str, topic: Topic) -> None:
    name = topic(partitions=2, config={"cleanup.policy": "compact"})
    found = AdminClient({"bootstrap.servers": kafka_bootstrap}).list_topics(name, timeout=10).topics[name]
    assert sorted(found.partitions) == [0, 1]


def test_a_topic_that_another_test_could_name_too_is_not_made(kafka_bootstrap: str, topic: Topic) -> None:
    """Tests run beside each other on one broker: two of them with the same topic meet only now and then."""
    with pytest.raises(ValueError, match="topic told: begin the name with that of a topic that this test made"):
        topic(name="told")
    assert topic(partitions=1, name=f"{topic(partitions=1)}.told").endswith(".told")


def test_the_registry_answers(registry_url: str) -> None:
    with urllib.request.urlopen(f"{registry_url}/subjects", timeout=10) as answer:
        assert answer.status == 200


def test_a_server_is_ended_and_its_folder_removed_when_the_run_is_killed(tmp_path: Path) -> None:
    """A kill -9 of the run closes the guard's standard input, which is all that the guard waits for."""
    folder = tmp_path / "server"
    folder.mkdir()
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(GUARD), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert run.stdout is not None
    with run.stdout:
        assert run.stdout.readline() == b"started\n"
        run.kill()
        run.wait()
        # The guard holds the pipe's other end and waits for the server: end of file says that both are gone.
        assert run.stdout.read() == b""
    assert not folder.exists()


RUN = """
import subprocess, sys, time
guard, folder = sys.argv[1:]
command = [sys.executable, guard, "--folder", folder, "--log", folder + "/log", "--", "sleep", "600"]
started = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
print("started", flush=True)
time.sleep(600)
"""
