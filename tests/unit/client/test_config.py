"""What the user may tell librdkafka, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.consumers.client.config import (
    MEBIBYTE,
    ClientOptions,
    GroupProtocol,
    admin_config,
    consumer_config,
    problems,
    producer_config,
    spelled,
)
from tidegate.inbox.errors import ConfigurationError


def options(protocol: GroupProtocol = "consumer", **kafka: Any) -> ClientOptions:
    return ClientOptions("broker:9092", "g", ("t",), protocol, {k.replace("__", "."): v for k, v in kafka.items()})


def with_keys(protocol: GroupProtocol, keys: dict[str, Any]) -> ClientOptions:
    return ClientOptions("broker:9092", "g", ("t",), protocol, keys)


SPELLINGS = [
    "enable.auto.commit",
    "ENABLE.AUTO.COMMIT",
    "Enable_Auto_Commit",
    "enable-auto-commit",
    " enable.auto.commit ",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "AUTO_COMMIT_INTERVAL_MS",
    "enable.auto.offset.store",
    "enable_auto_offset_store",
    "auto.offset.reset",
    "isolation.level",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "group.instance.id",
    "metadata.broker.list",
    "default.topic.config",
    "on_commit",
    "error_cb",
    "transactional.id",
]


@pytest.mark.parametrize("key", SPELLINGS)
def test_offsets_are_never_the_clients_to_commit_or_store(key: str) -> None:
    """A refused key is refused however it is spelled, with what to do about it.

    Case: B06
    Parts: none (pure)
    Red when: config.py's `spelled` returns the key as it was given
    """
    (problem,) = problems(with_keys("consumer", {key: True}))
    assert problem.key == key
    assert problem.fix


def test_everything_that_is_wrong_is_said_at_once() -> None:
    keys = {"enable.auto.commit": True, "auto.commit.interval.ms": 100, "session.timeout.ms": 6000}
    with pytest.raises(ConfigurationError) as raised:
        consumer_config(ClientOptions("b", "g", (), "consumer", keys), {})
    assert [problem.key for problem in raised.value.problems] == [*keys, "topics"]
    assert raised.value.exit_code == 78


def test_offset_handling_is_forced() -> None:
    """Nothing is committed, stored or reset but by us.

    Case: B06
    Parts: none (pure)
    Red when: config.py leaves out `"enable.auto.offset.store": False`
    """
    config = consumer_config(options(), {})
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["auto.offset.reset"] == "error"
    assert config["isolation.level"] == "read_committed"
    assert config["enable.partition.eof"] is True


@pytest.mark.parametrize("key", ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"])
def test_what_a_kip_848_group_does_not_have_is_refused_there_only(key: str) -> None:
    value = "cooperative-sticky" if "strategy" in key else 6000
    assert [p.key for p in problems(with_keys("consumer", {key: value}))] == [key]
    assert problems(with_keys("classic", {key: value})) == []


@pytest.mark.parametrize("strategy", ["range,cooperative-sticky", "cooperative-sticky,range", "range", "roundrobin"])
def test_a_mix_of_assignment_strategies_is_refused_at_start(strategy: str) -> None:
    """Eager and cooperative members in one group never settle.

    Case: B10
    Parts: none (pure)
    Red when: config.py does not look at the value of partition.assignment.strategy
    """
    (problem,) = problems(with_keys("classic", {"partition.assignment.strategy": strategy}))
    assert "scale" in problem.fix


def test_the_protocol_is_ours_to_name() -> None:
    assert "partition.assignment.strategy" not in consumer_config(options(), {})
    classic = consumer_config(options("classic"), {})
    assert (classic["group.protocol"], classic["partition.assignment.strategy"]) == ("classic", "cooperative-sticky")


def test_any_other_key_passes_through_to_every_client() -> None:
    def token(_: str) -> tuple[str, float]:
        return "", 0.0

    keys = {"SASL_MECHANISM": "OAUTHBEARER", "oauth_cb": token, "ssl.ca.location": "/ca", "max.poll.interval.ms": 6000}
    given = with_keys("consumer", keys)
    for config in (consumer_config(given, {}), admin_config(given), producer_config(given)):
        assert config["sasl.mechanism"] == "OAUTHBEARER"
        assert config["oauth_cb"] is token
        assert config["ssl.ca.location"] == "/ca"
    assert consumer_config(given, {})["max.poll.interval.ms"] == 6000
    assert "max.poll.interval.ms" not in producer_config(given)


def test_a_fetch_that_waits_for_records_does_not_hold_up_a_resume_for_long() -> None:
    """A broker is sent one fetch at a time, and our look at a partition that was just resumed stands behind it."""
    assert consumer_config(options(), {})["fetch.wait.max.ms"] == 100
    assert consumer_config(options(FETCH_WAIT_MAX_MS=500), {})["fetch.wait.max.ms"] == 500


def test_a_key_given_twice_in_two_spellings_is_refused() -> None:
    found = problems(with_keys("consumer", {"fetch.min.bytes": 1, "FETCH_MIN_BYTES": 2}))
    assert [p.key for p in found] == ["FETCH_MIN_BYTES"]


def test_a_static_member_only_where_it_is_declared() -> None:
    assert "group.instance.id" not in consumer_config(options(), {})
    static = ClientOptions("b", "g", ("t",), instance_id="pod-0")
    assert consumer_config(static, {})["group.instance.id"] == "pod-0"
    assert [p.key for p in problems(ClientOptions("b", "g", ("t",), instance_id=" "))] == ["instance_id"]


@pytest.mark.parametrize("window_bytes", [8 * MEBIBYTE, 64 * MEBIBYTE, 512 * MEBIBYTE])
def test_what_is_prefetched_stays_within_the_memory_budget(window_bytes: int) -> None:
    """Prefetch queue and one fetch beyond it together are less than the budget, whatever the partitions.

    Case: B15
    Parts: none (pure)
    Red when: config.py leaves out `queued.max.messages.kbytes`
    """
    config = consumer_config(ClientOptions("b", "g", ("t",), window_bytes=window_bytes), {})
    prefetched = config["queued.max.messages.kbytes"] * 1024 + config["fetch.max.bytes"]
    assert prefetched <= window_bytes * 3 // 4
    assert config["max.partition.fetch.bytes"] <= config["fetch.max.bytes"]


def test_the_producer_is_idempotent_and_partitions_as_java_does() -> None:
    config = producer_config(options())
    assert (config["enable.idempotence"], config["acks"], config["partitioner"]) == (True, "all", "murmur2_random")


def test_a_spelling_is_made_once() -> None:
    assert spelled(spelled("Session_Timeout_MS")) == "session.timeout.ms"
