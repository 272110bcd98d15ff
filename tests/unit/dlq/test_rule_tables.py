"""Every line of the tables, walked: what raises it in the world leads where the line says."""

from __future__ import annotations

import asyncio
import datetime
import errno
import os
import re
from pathlib import Path
from typing import Any

import asyncpg
import confluent_kafka
import pytest
import requests
import urllib3
import uvloop
from confluent_kafka import KafkaError, KafkaException

from tidegate.dlq.deadline import DeadlineError
from tidegate.dlq.retry_after import retry_after_s
from tidegate.dlq.rule_tables import (
    ABSOLUTE,
    CLIENTS,
    DATABASE,
    KAFKA,
    KAFKA_RETRIED,
    LANGUAGE,
    OURS,
    PATH_RETRIED,
    RETRIED_STATUS,
    Line,
)
from tidegate.dlq.rules import DeadNow, Decision, DependencyAway, SkipNow, Transient, decide
from tidegate.inbox.errors import (
    DependencyError,
    EffectPending,
    EffectUnknown,
    FatalError,
    OwnershipLost,
    RecordError,
    RetryLater,
    TransientError,
)
from tidegate.inbox.faults import classify
from tidegate.inbox.outcome import Reason

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
REJECTED = DeadNow(Reason.REJECTED)
EXAMPLES: dict[type, BaseException] = {
    OwnershipLost: OwnershipLost(),
    FatalError: FatalError("x", fix="y"),
    EffectUnknown: EffectUnknown(1, "x"),
    EffectPending: EffectPending(1, NOON, "x"),
    RecordError: RecordError(Reason.NO_KEY, "x"),
    DependencyError: DependencyError("bank", "x"),
    DeadlineError: DeadlineError("x"),
    RetryLater: RetryLater("x", after_s=3.0),
    TransientError: TransientError("x"),
    MemoryError: MemoryError(),
    asyncio.CancelledError: asyncio.CancelledError(),
    OSError: FileNotFoundError(errno.ENOENT, "x", "template.html"),
}
"""One exception for each line that names a class."""

LEADS = {"retried": Transient, "dead": DeadNow, "by": DeadNow, "about": DeadNow, "a pause": DependencyAway}


class Response:
    """An HTTP answer, as far as it is looked at."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}


def stand_in(package: str, name: str, base: type[Exception] = Exception, **attributes: object) -> Exception:
    """An error of a library that is not installed here."""
    error = type(name, (base,), {"__module__": f"{package}._deep.inside"})("x")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def example(line: Line) -> BaseException:
    return EXAMPLES[line.kind] if isinstance(line.kind, type) else stand_in(*line.kind)


@pytest.mark.parametrize("line", [*ABSOLUTE, *OURS, *CLIENTS, *KAFKA, *LANGUAGE], ids=lambda line: line.on)
def test_every_line_leads_where_it_says_and_is_named(line: Line) -> None:
    found = decide(example(line), classify)
    assert not isinstance(found, SkipNow)
    if line.kind != ("cimpl", "KafkaException"):  # one without a code says nothing
        assert str(found.led_by) == f"the tables' line {line.on}"
    for word, decision in LEADS.items():
        if line.says.startswith(word):
            assert isinstance(found, decision)
    assert found.because
    assert len(line.says) < 250


def test_no_line_stands_behind_one_that_takes_all_of_it() -> None:
    for table in (ABSOLUTE, OURS, LANGUAGE):
        kinds = [line.kind for line in table if isinstance(line.kind, type)]
        assert len(kinds) == len(table)
        for place, kind in enumerate(kinds):
            assert not any(issubclass(kind, earlier) for earlier in kinds[:place])
    named = [line.kind for line in (*CLIENTS, *KAFKA)]
    assert len(named) == len(set(named))


# ---------------------------------------------------------------------------------------------------------------- HTTP


@pytest.mark.parametrize("status", range(300, 600))
def test_every_status_has_a_decision(status: int) -> None:
    """What a server says about itself is waited out; what it says about the request is not repeated.

    Case: B35
    Parts: -
    Red when: dlq/rule_tables.py's RETRIED_STATUS lacks 503
    """
    decision: Decision = Transient() if status in RETRIED_STATUS else REJECTED
    for error in (
        stand_in("httpx", "HTTPStatusError", response=Response(status)),
        stand_in("aiohttp", "ClientResponseError", status=status),
        stand_in("urllib", "HTTPError", code=status),
        stand_in("confluent_kafka", "SchemaRegistryError", http_status_code=status),
    ):
        found = decide(error, classify)
        assert found == decision
        assert str(status) in found.because
    assert (status in {408, 425, 429, 500, 502, 503, 504}) is isinstance(decision, Transient)


def test_the_real_clients_errors_are_known() -> None:
    response = requests.Response()
    response.status_code = 503
    response.headers["retry-after"] = "7"
    assert decide(requests.HTTPError(response=response), classify) == Transient(after_s=7.0)
    assert decide(requests.exceptions.ReadTimeout(), classify) == Transient()
    assert decide(requests.exceptions.SSLError(), classify) == Transient()
    assert decide(requests.exceptions.MissingSchema(), classify) == REJECTED
    pool = urllib3.HTTPConnectionPool("localhost")
    assert decide(urllib3.exceptions.MaxRetryError(pool, "/"), classify) == Transient()
    assert decide(urllib3.exceptions.ReadTimeoutError(pool, "/", "x"), classify) == Transient()


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({}, None),
        ({"Retry-After": "30"}, 30.0),
        ({"retry-after": " 30 "}, 30.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "9" * 5_000}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:20 GMT"}, 20.0),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:20 -0000"}, 20.0),
        ({"Retry-After": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Thu, 01 Jan 2026 09:00:20 GMT", "Date": "Thu, 01 Jan 2026 09:00:00 GMT"}, 20.0),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:20 GMT", "Date": "today"}, 20.0),
        ({"Retry-After": "Thu, 32 Foo 2026 12:00:20 GMT"}, None),
        ({"Retry-After": "Thu, 01 Jan 99999 12:00:20 GMT"}, None),
    ],
)
def test_what_a_server_asks_to_wait_is_read(headers: dict[str, str], after_s: float | None) -> None:
    error = stand_in("httpx", "HTTPStatusError", response=Response(429, headers))
    assert decide(error, classify, now=NOON) == Transient(after_s=after_s)
    assert retry_after_s(stand_in("aiohttp", "ClientResponseError", headers=headers), NOON) == after_s


def test_a_date_without_any_clock_says_nothing() -> None:
    headers = {"Retry-After": "Thu, 01 Jan 2026 12:00:20 GMT"}
    assert retry_after_s(stand_in("httpx", "HTTPStatusError", response=Response(429, headers))) is None


class Hostile(Exception):
    """Cannot be looked at."""

    __module__ = "httpx"

    @property
    def response(self) -> object:
        raise RuntimeError


def test_an_exception_that_cannot_be_looked_at_is_the_handlers_own() -> None:
    Hostile.__name__ = "HTTPStatusError"
    assert decide(Hostile(), classify) == REJECTED


@pytest.mark.parametrize("headers", [5, {"Retry-After": 30}, object()])
def test_headers_that_are_none_say_nothing(headers: object) -> None:
    response = Response(503)
    response.headers = headers  # pyright: ignore[reportAttributeAccessIssue] - what some other library may keep there
    assert decide(stand_in("httpx", "HTTPStatusError", response=response), classify) == Transient()


# --------------------------------------------------------------------------------------------------------------- Kafka

CODES = {
    value: name
    for name, value in vars(KafkaError).items()
    if re.fullmatch(r"_?[A-Z][A-Z_]+", name) and isinstance(value, int)
}


def test_every_code_of_the_table_has_kafkas_own_name() -> None:
    assert len(CODES) > 150
    for code, name in KAFKA_RETRIED.items():
        assert CODES[code] == name


@pytest.mark.parametrize("code", sorted(CODES), ids=lambda code: CODES[code])
def test_every_kafka_code_has_a_decision(code: int) -> None:
    found = decide(KafkaException(KafkaError(code)), classify)
    assert found == (Transient() if code in KAFKA_RETRIED else REJECTED)


@pytest.mark.parametrize(
    "name",
    ["_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_TIMED_OUT", "_QUEUE_FULL", "REQUEST_TIMED_OUT",
     "NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE"],
)  # fmt: skip
def test_a_cluster_in_trouble_is_waited_out(name: str) -> None:
    """Brokers that are away never kill the event of a handler that has a client of its own.

    Case: B35
    Parts: -
    Red when: dlq/rule_tables.py's KAFKA_RETRIED lacks -195 (_TRANSPORT)
    """
    assert decide(KafkaException(KafkaError(getattr(KafkaError, name))), classify) == Transient()


@pytest.mark.parametrize(
    "name", ["MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "INVALID_RECORD", "_UNKNOWN_TOPIC", "_INVALID_ARG"]
)
def test_what_kafka_will_never_take_is_rejected(name: str) -> None:
    assert decide(KafkaException(KafkaError(getattr(KafkaError, name))), classify) == REJECTED


def test_a_code_that_is_not_known_is_what_the_client_says_of_it() -> None:
    retriable = KafkaError(9_999, "new", retriable=True)
    assert decide(KafkaException(retriable), classify) == Transient()
    assert decide(KafkaException(KafkaError(9_999)), classify) == REJECTED


def test_a_failed_serialization_is_what_it_was_raised_from() -> None:
    error = confluent_kafka.error.ValueSerializationError(ValueError("x"))
    assert decide(error, classify) == REJECTED
    error.__cause__ = ConnectionError()
    assert decide(error, classify) == DependencyAway(DATABASE)


def test_other_clients_mark_their_errors_themselves() -> None:
    for package in ("aiokafka", "kafka"):
        assert decide(stand_in(package, "KafkaError", retriable=True), classify) == Transient()
        assert decide(stand_in(package, "KafkaError", retriable=False), classify) == REJECTED


# -------------------------------------------------------------------------------------------------------------- system


@pytest.mark.parametrize("number", sorted(errno.errorcode), ids=lambda number: errno.errorcode[number])
def test_every_system_error_has_a_decision(number: int) -> None:
    about_a_path = decide(OSError(number, os.strerror(number), "file"), classify)
    assert about_a_path == (Transient() if number in PATH_RETRIED else REJECTED)
    assert errno.errorcode[number] in about_a_path.because
    assert decide(OSError(number, os.strerror(number)), classify) == DependencyAway(DATABASE)


@pytest.mark.parametrize("name", ["ENOSPC", "EMFILE", "EIO"])
def test_a_full_disk_and_missing_handles_pass(name: str) -> None:
    assert decide(OSError(getattr(errno, name), "x", "file"), classify) == Transient()


@pytest.mark.parametrize("name", ["ENOENT", "EACCES", "EROFS", "EISDIR", "ENAMETOOLONG", "ELOOP"])
def test_a_path_that_is_missing_or_not_allowed_does_not_come_by_waiting(name: str, tmp_path: Path) -> None:
    assert decide(OSError(getattr(errno, name), "x", str(tmp_path)), classify) == REJECTED


def test_a_file_that_is_missing_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        (tmp_path / "template.html").read_text()
    assert decide(raised.value, classify) == REJECTED


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_database_behind_a_unix_socket_that_is_gone_is_away(run: Any, tmp_path: Path) -> None:
    """It raises "no such file", and yet it is no fault of the event.

    Case: B48
    Parts: real (asyncpg)
    Red when: dlq/rule_tables.py's _by_system judges errors without a path by their number too
    """

    async def connect() -> None:
        await asyncpg.connect(host=str(tmp_path), port=1, user="x", database="x")

    with pytest.raises(FileNotFoundError) as raised:
        run(connect())
    assert decide(raised.value, classify) == DependencyAway(DATABASE)


@pytest.mark.parametrize("cls", [FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError])
def test_what_a_handler_raises_by_hand_means_what_it_says(cls: type[OSError]) -> None:
    assert decide(cls("the tenant may not"), classify) == REJECTED
