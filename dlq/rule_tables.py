"""The tables: what exceptions mean that no rule of the user takes. No IO; nothing but tables.

A line names a class and what it leads to. Our own errors come first, then those of clients, known by their names so
that none of them is imported, then the language's and the system's; what is left is the database's
(`tidegate.inbox.faults`), and at the end the handler's own.
"""

from __future__ import annotations

import datetime
import errno
from asyncio.exceptions import CancelledError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast, final

from ..inbox.errors import (
    DependencyError,
    EffectPending,
    EffectUnknown,
    FatalError,
    OwnershipLost,
    RecordError,
    RetryLater,
    TransientError,
)
from ..inbox.faults import Fault
from ..inbox.outcome import Reason
from .deadline import DeadlineError
from .decisions import (
    DeadNow,
    Decision,
    DependencyAway,
    Fatal,
    Lost,
    Postponed,
    ReviewNow,
    Transient,
)
from .retry_after import retry_after_s

Now: TypeAlias = datetime.datetime | None
Leads: TypeAlias = Callable[[BaseException, Now], Decision | None]
Named: TypeAlias = tuple[str, str]
"""(top-level package, class) of a library that is not imported here."""

DATABASE: Final = "postgresql"
"""The name under which the database is a dependency."""


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One line: exceptions of `kind` lead to what `leads` says, or to no decision (None). `says`: that, in English."""

    kind: type[BaseException] | Named
    leads: Leads
    says: str

    @property
    def on(self) -> str:
        """The class as people write it."""
        return self.kind.__name__ if isinstance(self.kind, type) else ".".join(self.kind)


def _dead(kind: type[BaseException] | Named, because: str) -> Line:
    decision = DeadNow(Reason.REJECTED, because)
    return Line(kind, lambda _exc, _now: decision, f"dead (rejected): {because}")


def _again(kind: type[BaseException] | Named, because: str) -> Line:
    decision = Transient(because=because)
    return Line(kind, lambda _exc, _now: decision, f"retried: {because}")


# ------------------------------------------------------------------------------------------------------------ absolute


def _pending(exc: BaseException, _now: Now) -> Decision:
    pending = cast(EffectPending, exc)
    return Postponed(pending.due, pending.effect_id, "another attempt's call may still be under way")


def _unknown(exc: BaseException, _now: Now) -> Decision:
    return ReviewNow("nobody can know whether the call was made", cast(EffectUnknown, exc).effect_id)


ABSOLUTE: Final = (
    Line(
        OwnershipLost,
        lambda _exc, _now: Lost("the partition is somebody else's"),
        "the work is dropped: the partition is somebody else's",
    ),
    Line(
        FatalError,
        lambda _exc, _now: Fatal("a person has to look"),
        "the process leaves, offsets unadvanced: a person has to look",
    ),
    Line(EffectUnknown, _unknown, "put to review: nobody can know whether the call was made"),
    Line(EffectPending, _pending, "looked at again at the call's deadline: it may still be under way"),
)
"""No rule is asked about these, and they count wherever they stand in the chain of causes."""

# ------------------------------------------------------------------------------------------------------------ our own


def _record_error(exc: BaseException, _now: Now) -> Decision:
    return DeadNow(cast(RecordError, exc).reason, "the record is wrong")


def _dependency(exc: BaseException, _now: Now) -> Decision:
    return DependencyAway(cast(DependencyError, exc).dependency, "a dependency is away")


def _later(exc: BaseException, _now: Now) -> Decision:
    later = cast(RetryLater, exc)
    return Transient(after_s=later.after_s, because="the handler asked for it")


OURS: Final = (
    Line(RecordError, _record_error, "dead, with the reason that it carries"),
    Line(
        DependencyError,
        _dependency,
        "the dependency is asked first: a pause while it is away, no attempt counts; retried where it answers",
    ),
    Line(
        DeadlineError,
        lambda _exc, _now: Transient(Reason.TIMEOUT, because="it ran past its deadline"),
        "retried, and dead (timeout) at the end: it ran past its deadline",
    ),
    Line(RetryLater, _later, "retried, after the seconds that it carries"),
    _again(TransientError, "time heals it"),
)
"""Our own errors, subclasses before their parents."""

# ------------------------------------------------------------------------------------------------------------ clients

RETRIED_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers that say "not now": time-outs, too early, too many, and the server's own trouble."""


def _by_status(exc: BaseException, now: Now) -> Decision:
    """An HTTP answer: the server was reached and said what it thinks."""
    response: object = getattr(exc, "response", None)
    places = ((response, "status_code"), (exc, "status"), (exc, "code"), (exc, "http_status_code"))
    found = (getattr(place, name, None) for place, name in places)
    status = next((number for number in found if isinstance(number, int)), None)
    if status in RETRIED_STATUS:
        return Transient(after_s=retry_after_s(exc, now), because=f"the server answered {status}: not now")
    return DeadNow(Reason.REJECTED, "the server refused it" if status is None else f"the server answered {status}")


_STATUS_SAYS: Final = (
    f"by its status: {', '.join(map(str, sorted(RETRIED_STATUS)))} are retried, after the answer's Retry-After if it "
    "has one; any other is dead (rejected)"
)


def _status(package: str, name: str) -> Line:
    return Line((package, name), _by_status, _STATUS_SAYS)


_NO_ANSWER: Final = "no answer came through"
_WRONG_CALL: Final = "the call itself is wrong"

CLIENTS: Final = (
    _dead(("httpx", "UnsupportedProtocol"), _WRONG_CALL),
    _dead(("httpx", "LocalProtocolError"), _WRONG_CALL),
    _again(("httpx", "TransportError"), _NO_ANSWER),
    _status("httpx", "HTTPStatusError"),
    _dead(("httpcore", "UnsupportedProtocol"), _WRONG_CALL),
    _dead(("httpcore", "LocalProtocolError"), _WRONG_CALL),
    _again(("httpcore", "TimeoutException"), _NO_ANSWER),
    _again(("httpcore", "NetworkError"), _NO_ANSWER),
    _again(("httpcore", "ProtocolError"), _NO_ANSWER),
    _dead(("aiohttp", "InvalidURL"), _WRONG_CALL),
    _status("aiohttp", "ClientResponseError"),
    _again(("aiohttp", "ClientError"), _NO_ANSWER),
    _status("requests", "HTTPError"),
    _again(("requests", "ConnectionError"), _NO_ANSWER),
    _again(("requests", "Timeout"), _NO_ANSWER),
    _again(("requests", "ChunkedEncodingError"), _NO_ANSWER),
    _dead(("requests", "RequestException"), _WRONG_CALL),
    _again(("urllib3", "TimeoutError"), _NO_ANSWER),
    _again(("urllib3", "MaxRetryError"), _NO_ANSWER),
    _again(("urllib3", "ProtocolError"), _NO_ANSWER),
    _status("urllib", "HTTPError"),
    _status("confluent_kafka", "SchemaRegistryError"),
)
"""Of HTTP clients, looked up along the exception's classes."""

KAFKA_RETRIED: Final[Mapping[int, str]] = MappingProxyType(
    {
        -195: "_TRANSPORT",
        -193: "_RESOLVE",
        -192: "_MSG_TIMED_OUT",
        -187: "_ALL_BROKERS_DOWN",
        -185: "_TIMED_OUT",
        -184: "_QUEUE_FULL",
        -183: "_ISR_INSUFF",
        -180: "_WAIT_COORD",
        -177: "_PREV_IN_PROGRESS",
        -166: "_TIMED_OUT_QUEUE",
        -164: "_WAIT_CACHE",
        -163: "_INTR",
        -153: "_RETRY",
        -152: "_PURGE_QUEUE",
        -151: "_PURGE_INFLIGHT",
        -150: "_FATAL",  # the producer is gone; the handler may make a new one
        -144: "_FENCED",
        2: "INVALID_MSG",  # a checksum that did not hold on the way
        3: "UNKNOWN_TOPIC_OR_PART",  # a topic that was just made is not known everywhere
        5: "LEADER_NOT_AVAILABLE",
        6: "NOT_LEADER_FOR_PARTITION",
        7: "REQUEST_TIMED_OUT",
        8: "BROKER_NOT_AVAILABLE",
        9: "REPLICA_NOT_AVAILABLE",
        13: "NETWORK_EXCEPTION",
        14: "COORDINATOR_LOAD_IN_PROGRESS",
        15: "COORDINATOR_NOT_AVAILABLE",
        16: "NOT_COORDINATOR",
        19: "NOT_ENOUGH_REPLICAS",
        20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        22: "ILLEGAL_GENERATION",
        25: "UNKNOWN_MEMBER_ID",
        27: "REBALANCE_IN_PROGRESS",
        41: "NOT_CONTROLLER",
        45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        47: "INVALID_PRODUCER_EPOCH",
        49: "INVALID_PRODUCER_ID_MAPPING",
        51: "CONCURRENT_TRANSACTIONS",
        56: "KAFKA_STORAGE_ERROR",
        59: "UNKNOWN_PRODUCER_ID",
        60: "REASSIGNMENT_IN_PROGRESS",
        74: "FENCED_LEADER_EPOCH",
        75: "UNKNOWN_LEADER_EPOCH",
        77: "STALE_BROKER_EPOCH",
        78: "OFFSET_NOT_AVAILABLE",
        80: "PREFERRED_LEADER_NOT_AVAILABLE",
        83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        88: "UNSTABLE_OFFSET_COMMIT",
        89: "THROTTLING_QUOTA_EXCEEDED",
        90: "PRODUCER_FENCED",
        100: "UNKNOWN_TOPIC_ID",
        103: "INCONSISTENT_TOPIC_ID",
        110: "FENCED_MEMBER_EPOCH",
        113: "STALE_MEMBER_EPOCH",
        116: "UNKNOWN_CONTROLLER_ID",
        120: "TRANSACTION_ABORTABLE",
        129: "REBOOTSTRAP_REQUIRED",
    }
)
"""Codes of a handler's own Kafka client that say "not now", with their names; negative ones are librdkafka's own.

Source: Kafka's protocol errors (those it calls retriable) and librdkafka's rdkafka.h. All others are the call's fault:
too large, not allowed, not valid.
"""

_KAFKA_UNTOLD: Final = frozenset({-162, -161, -160, -159})
"""Serialization: the client's wrapping of somebody else's error, so what it was raised from may say more."""


def _by_kafka_code(exc: BaseException, _now: Now) -> Decision | None:
    error: Any = exc.args[0] if exc.args else None
    code = error.code() if callable(getattr(error, "code", None)) else None
    if code is None or code in _KAFKA_UNTOLD:
        return None
    if code in KAFKA_RETRIED or error.retriable():
        return Transient(because=f"Kafka answered {KAFKA_RETRIED.get(code, code)}: not now")
    return DeadNow(Reason.REJECTED, f"Kafka refused it ({error.name()})")


def _by_flag(exc: BaseException, _now: Now) -> Decision:
    if getattr(exc, "retriable", False) is True:
        return Transient(because="Kafka answered: not now")
    return DeadNow(Reason.REJECTED, "Kafka refused it")


_KAFKA_SAYS: Final = "by its code: brokers away, leaders moving, time-outs are retried; any other is dead (rejected)"

KAFKA: Final = (
    Line(("cimpl", "KafkaException"), _by_kafka_code, _KAFKA_SAYS),
    Line(("aiokafka", "KafkaError"), _by_flag, "by its own mark: retriable ones are retried, others dead (rejected)"),
    Line(("kafka", "KafkaError"), _by_flag, "by its own mark: retriable ones are retried, others dead (rejected)"),
)
"""Of a handler's own Kafka client; `cimpl` is where confluent-kafka's exception lives."""

NAMED: Final[Mapping[Named, Line]] = MappingProxyType({cast(Named, line.kind): line for line in (*CLIENTS, *KAFKA)})

# ------------------------------------------------------------------------------------------- the language, the system

PATH_RETRIED: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY),
        *(errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.EIO, errno.ENOLCK, errno.ETXTBSY, errno.EHOSTDOWN),
    }
)
"""System errors about a path that pass: a full disk is emptied, handles come free, a network drive comes back."""

_BY_HAND: Final = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Raised without a number they were raised by a handler, which means what it says."""


def _by_system(exc: BaseException, _now: Now) -> Decision | None:
    """A system error about a path is judged by its number. One without a path is a socket's, and the database may be
    away: also "no such file", where it listens on a Unix socket.
    """
    error = cast(OSError, exc)
    if error.errno is None:
        return DeadNow(Reason.REJECTED, "waiting does not help") if isinstance(error, _BY_HAND) else None
    if error.filename is None:
        return None
    if error.errno in PATH_RETRIED:
        return Transient(because=f"the system said {errno.errorcode[error.errno]}, which passes")
    name = errno.errorcode.get(error.errno, str(error.errno))
    return DeadNow(Reason.REJECTED, f"the system said {name} of a path, and waiting does not help")


_SYSTEM_SAYS: Final = (
    "about a path, by its number: a full disk, no handles and the like are retried, a path that is missing or not "
    "allowed is dead (rejected); without a path the database may be away: a pause if it is, else retried"
)

LANGUAGE: Final = (
    _again(MemoryError, "the process was short of memory"),
    # somebody inside the handler cancelled something; a cancellation by us never comes here
    _again(CancelledError, "something inside the handler was cancelled"),
    Line(OSError, _by_system, _SYSTEM_SAYS),
)
"""Of the language and the system."""

# ----------------------------------------------------------------------------------------------------------- database

OF_FAULT: Final[Mapping[Fault, Decision | None]] = MappingProxyType(
    {
        # also every bare system error and time-out: a database that is down raises nothing else. Where it answers its
        # health check, the worker takes the error for a transient one.
        Fault.DEPENDENCY: DependencyAway(DATABASE, "the database may be away"),
        Fault.TRANSIENT: Transient(because="the database was busy or interrupted"),
        Fault.DATA: DeadNow(Reason.REJECTED, "the database cannot hold it"),
        # the wrong statement, or no error of a database at all: what it was raised from may say more
        Fault.PROGRAM: None,
    }
)

FAULT_SAYS: Final[Mapping[Fault, str]] = MappingProxyType(
    {
        Fault.DEPENDENCY: "a pause if the database is away, no attempt counts; retried where it answers",
        Fault.TRANSIENT: "retried: the database was busy or interrupted",
        Fault.DATA: "dead (rejected): the database cannot hold it",
        Fault.PROGRAM: "dead (rejected), unless what it was raised from says more: the statement is wrong",
    }
)
"""The same in English."""

OWN: Final = DeadNow(Reason.REJECTED, "no rule and no table knows it: the handler's own error")
"""Where nobody knows."""
