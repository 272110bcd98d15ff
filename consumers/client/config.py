"""librdkafka's configuration: what the user may say, what we insist on, what follows from the memory budget. No IO.

Everything that is wrong is said at once, each key with its fix. Keys are understood in any case and with `_` for `.`,
since a key that slips through in another spelling is a lost record later (B06).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ...inbox.errors import ConfigurationError, Problem

GroupProtocol = Literal["consumer", "classic"]

MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a client is made from. `kafka` holds librdkafka's keys, for all clients of the process (SASL, TLS, ...)."""

    bootstrap: str
    group: str
    topics: tuple[str, ...]
    protocol: GroupProtocol = "consumer"
    kafka: Mapping[str, Any] = field(default_factory=dict[str, Any])
    instance_id: str | None = None
    """A static member's id; only where each replica has a name of its own (a StatefulSet)."""
    window_bytes: int = 64 * MEBIBYTE
    """The memory that records may take up in this process, prefetched ones included."""
    client_id: str = "tidegate"


_OURS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "take it out and set the bootstrap setting",
    "metadata.broker.list": "take it out and set the bootstrap setting",
    "group.id": "take it out and set the consumer's group setting",
    "group.protocol": "take it out and set the group protocol setting",
    "group.instance.id": "take it out and set the static member setting",
    "client.id": "take it out and set the client id setting",
}
"""Keys that have a setting of their own."""

_FORCED_WHY: Final[Mapping[str, str]] = {
    "enable.auto.commit": "an offset is committed only after its record is handled",
    "auto.commit.enable": "an offset is committed only after its record is handled",
    "enable.auto.offset.store": "an offset is committed only after its record is handled",
    "offset.store.method": "checkpoints live in PostgreSQL",
    "offset.store.path": "checkpoints live in PostgreSQL",
    "offset.store.sync.interval.ms": "checkpoints live in PostgreSQL",
    "auto.offset.reset": "the start position is decided by checkpoints and the consumer's `start` policy",
    "isolation.level": "records of aborted transactions never happened",
    "enable.partition.eof": "the end of a partition tells how far it was read",
    "on_commit": "commits are answered inside the product",
    "error_cb": "errors are sorted inside the product",
    "logger": "logs go through the product's logging",
    "default.topic.config": "it is a second way to set refused keys",
    "rebalance_cb": "assignments are handled inside the product",
    "transactional.id": "effects are made once by the inbox, not by Kafka transactions",
    "enable.idempotence": "the producer is idempotent",
    "acks": "the producer waits for all in-sync replicas",
    "request.required.acks": "the producer waits for all in-sync replicas",
    "partitioner": "keys go where Kafka's own clients send them",
}

_KIP_848_FIX: Final = "take it out (the broker's group settings count), or set the group protocol to classic"
_NOT_UNDER_KIP_848: Final = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "partition.assignment.strategy",
    "group.protocol.type",
)
_NOT_UNDER_CLASSIC: Final = ("group.remote.assignor",)
_UNDERSCORED: Final = ("on_commit", "log_level")
"""Besides callbacks (`..._cb`), the only keys that librdkafka and its Python client spell with an underscore."""

_CONSUMER_ONLY_PREFIXES: Final = (
    "fetch.",
    "queued.m",
    "group.",
    "session.",
    "heartbeat.",
    "partition.assignment.",
    "max.partition.",
)
_CONSUMER_ONLY: Final = (
    "max.poll.interval.ms",
    "check.crcs",
    "allow.auto.create.topics",
    "coordinator.query.interval.ms",
    "client.rack",
)


def spelled(key: str) -> str:
    """The spelling that the client knows: lower case and dots; the few keys with an underscore keep it.

    >>> spelled("ENABLE_AUTO_COMMIT"), spelled("OAuth_cb")
    ('enable.auto.commit', 'oauth_cb')
    """
    low = key.strip().lower()
    return low if low in _UNDERSCORED or low.endswith("_cb") else low.replace("_", ".").replace("-", ".")


def problems(options: ClientOptions) -> list[Problem]:
    """Everything that is wrong with the user's keys."""
    found = [p for key, value in options.kafka.items() if (p := _problem(key, value, options.protocol)) is not None]
    seen: dict[str, str] = {}
    found += [
        Problem(key, f"is the same key as {twin}", "keep one of them")
        for key in options.kafka
        if (twin := seen.setdefault(spelled(key), key)) != key
    ]
    if not options.topics:
        found.append(Problem("topics", "no topic is named", "name at least one"))
    if options.instance_id is not None and not options.instance_id.strip():
        found.append(Problem("instance_id", "is empty", "give each replica a name of its own, or leave it out"))
    return found


def _problem(key: str, value: object, protocol: GroupProtocol) -> Problem | None:
    name = spelled(key)
    if name in _OURS:
        return Problem(key, "has a setting of its own", _OURS[name])
    if name in _FORCED_WHY or name.startswith("auto.commit."):
        why = _FORCED_WHY.get(name, _FORCED_WHY["enable.auto.commit"])
        return Problem(key, f"is not the user's to set: {why}", "take it out")
    if protocol == "consumer" and name in _NOT_UNDER_KIP_848:
        return Problem(key, "does not exist in a KIP-848 group", _KIP_848_FIX)
    if protocol == "classic" and name in _NOT_UNDER_CLASSIC:
        return Problem(key, "does not exist in a classic group", "take it out, or set the group protocol to consumer")
    if name == "partition.assignment.strategy" and str(value).replace(" ", "") != "cooperative-sticky":
        fix = "take it out; to change the strategy of a running group scale it to zero first"
        return Problem(key, f"is {value!s}, and only cooperative-sticky is supported (mixes never settle)", fix)
    return None


def consumer_config(options: ClientOptions, callbacks: Mapping[str, Callable[..., None]]) -> dict[str, Any]:
    """The consumer's configuration.

    Raises:
        ConfigurationError: with every problem.
    """
    if found := problems(options):
        raise ConfigurationError(found)
    config = _sizes(options.window_bytes) | _TIMES | _passed(options)
    config |= {
        **_identity(options),
        "group.id": options.group,
        "group.protocol": options.protocol,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "logger": logging.getLogger("tidegate.kafka"),
        **callbacks,
    }
    config.setdefault("allow.auto.create.topics", False)
    if options.protocol == "classic":
        config["partition.assignment.strategy"] = "cooperative-sticky"
    if options.instance_id is not None:
        config["group.instance.id"] = options.instance_id
    return config


def reader_config(options: ClientOptions) -> dict[str, Any]:
    """The second reader's configuration: partitions are assigned by hand, so it never joins the group it names."""
    config = consumer_config(replace(options, protocol="classic", instance_id=None), {})
    del config["partition.assignment.strategy"]
    return config | {"queued.max.messages.kbytes": 1024, "queued.min.messages": 1, "log_level": 0}


def admin_config(options: ClientOptions) -> dict[str, Any]:
    """The administrative client's configuration: who we are and how to get there."""
    # What goes wrong is raised where it was asked for; librdkafka's own lines would go to standard error.
    return _RECONNECT | {"log_level": 0} | _shared(options) | _identity(options)


def producer_config(options: ClientOptions) -> dict[str, Any]:
    """The producer's configuration: it loses and doubles nothing, and keys go where Kafka's own clients send them."""
    return (
        _RECONNECT
        | {"linger.ms": 2, "compression.type": "lz4", "delivery.timeout.ms": 30_000}
        # A topic that does not exist is said within this time; the default holds its records for 30 s.
        | {"topic.metadata.propagation.max.ms": 5_000}
        | _shared(options)
        | _identity(options)
        | {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}
        | {"logger": logging.getLogger("tidegate.kafka")}
    )


_RECONNECT: Final[dict[str, Any]] = {"reconnect.backoff.max.ms": 1_000, "log.connection.close": False}
"""A restarted broker is found within a second; a connection that was idle and is closed is no news."""

_TIMES: Final[dict[str, Any]] = {
    **_RECONNECT,
    # A full queue is emptied within milliseconds; the default of a second would leave the worker idle.
    "fetch.queue.backoff.ms": 10,
    # A broker is sent one fetch at a time, and what waits for new records holds up those of a partition that was just
    # resumed, and our own look at it (`steering`). The default of half a second was seen at every third start.
    "fetch.wait.max.ms": 100,
    # New partitions and topics of a classic group are found within this time (a KIP-848 broker tells by itself).
    "topic.metadata.refresh.interval.ms": 30_000,
}


def _sizes(window_bytes: int) -> dict[str, Any]:
    """The prefetch queue is a quarter of the budget, and a fetch may overshoot it by a sixteenth (B15).

    Events in memory weigh a few times their bytes, so most of the budget is theirs. Larger fetches were no faster.
    """
    fetch = max(MEBIBYTE, min(16 * MEBIBYTE, window_bytes // 16))
    return {
        "queued.max.messages.kbytes": max(1024, window_bytes // 4 // 1024),
        "queued.min.messages": 100_000,
        "fetch.max.bytes": fetch,
        "max.partition.fetch.bytes": min(2 * MEBIBYTE, fetch),
    }


def _identity(options: ClientOptions) -> dict[str, Any]:
    return {"bootstrap.servers": options.bootstrap, "client.id": options.client_id}


def _passed(options: ClientOptions) -> dict[str, Any]:
    return {spelled(key): value for key, value in options.kafka.items()}


def _shared(options: ClientOptions) -> dict[str, Any]:
    """The user's keys that concern every client, not only a consumer."""
    return {
        key: value
        for key, value in _passed(options).items()
        if key not in _CONSUMER_ONLY and not key.startswith(_CONSUMER_ONLY_PREFIXES) and key != "stats_cb"
    }
