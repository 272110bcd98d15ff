"""A real Apache Kafka broker: the one in TIDEGATE_TEST_KAFKA, else a container, else a process of our own."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import uuid
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.services.container import container
from tests.services.container import wait_until as wait_for_container
from tests.services.java import cached_jars, java
from tests.services.server import Server, ServerFailed, free_port, fresh_folder

VERSION: Final = "4.4.0"
JAVA_AT_LEAST: Final = 17
POM: Final = Path(__file__).with_name("kafka-pom.xml")

BROKER: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A killed member's partitions move after 6 s instead of 45 s.
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    # Compaction makes its holes within a second instead of 15.
    "log.cleaner.backoff.ms": "500",
}


@contextlib.contextmanager
def running() -> Generator[str]:
    """A broker, given as its `host:port`."""
    if given := os.environ.get("TIDEGATE_TEST_KAFKA"):
        yield given
        return
    with container(f"apache/kafka:{VERSION}", 9092, _container_environment) as reached:
        if reached is not None:
            bootstrap = f"{reached[0]}:{reached[1]}"
            wait_for_container("kafka", lambda: _ready(bootstrap))
            yield bootstrap
            return
    with _local() as bootstrap:
        yield bootstrap


def download() -> Path:
    """The folder with the broker's jars."""
    return cached_jars(f"kafka-{VERSION}", POM)


@contextlib.contextmanager
def _local() -> Generator[str]:
    binary = java(JAVA_AT_LEAST)
    if binary is None:
        raise RuntimeError(f"No Java {JAVA_AT_LEAST}. Fix: `python -m tests.services.require` says how to install it.")
    classes, folder = f"{download()}/*", fresh_folder("kafka")
    port, controller = free_port(), free_port()
    settings = _settings(folder, port, controller)
    _format(binary, classes, settings)
    java_line = [binary, "-Xms256m", "-Xmx768m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes]
    server = Server([*java_line, "kafka.Kafka", settings], folder=folder)
    try:
        server.wait_until(lambda: _ready(f"127.0.0.1:{port}"))
        yield f"127.0.0.1:{port}"
    finally:
        server.stop()


def _settings(folder: Path, port: int, controller: int) -> Path:
    own = {
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": str(folder / "log"),
    }
    settings = folder / "server.properties"
    settings.write_text("".join(f"{key}={value}\n" for key, value in {**BROKER, **own}.items()))
    return settings


def _format(binary: Path, classes: str, settings: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    tool = [binary, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, "kafka.tools.StorageTool"]
    # "=", because one id in 64 begins with "-" and would be read as an option.
    command = [*tool, "format", "--standalone", f"--cluster-id={cluster}", "-c", settings]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ServerFailed(f"kafka's storage could not be made:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def _container_environment(host: str, port: int) -> dict[str, str]:
    """The image takes every broker setting as a variable; one set variable replaces all of its defaults."""
    own = {
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
    }
    return {"KAFKA_" + key.upper().replace(".", "_"): value for key, value in {**BROKER, **own}.items()}


def _ready(bootstrap: str) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000})
    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False
