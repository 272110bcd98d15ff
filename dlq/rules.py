"""What an exception means: which one of five decisions it leads to. No IO; a walk over one table.

The walk looks at the exception, then at what it was raised `from`, outermost first: the first link that the table knows
decides. Two answers do not wait for their turn, wherever in the chain they stand: a lost partition (nothing may be
written) and a fatal error (nothing may go on). Of an exception group, waiting wins over dying: a wait is bounded, and a
dead letter next to an outage is usually its victim. What nobody knows is the handler's own error: rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias, cast, final

from ..inbox.errors import DependencyError, FatalError, OwnershipLost, RecordError, TransientError
from ..inbox.faults import Fault
from ..inbox.outcome import Reason
from .failure_text import CHAIN_MAX, members_of


@final
class DeadlineError(TransientError):
    """A handler ran past its deadline."""


@final
@dataclass(frozen=True, slots=True)
class Transient:
    """The world is bad right now: counted, tried again by the policy; `exhausted` is the reason when it gives up."""

    exhausted: Reason = Reason.EXHAUSTED


@final
@dataclass(frozen=True, slots=True)
class DependencyAway:
    """Nobody's attempt counts: whoever uses the dependency pauses until its own health check passes."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Fatal:
    """The process leaves, offsets unadvanced."""


@final
@dataclass(frozen=True, slots=True)
class Lost:
    """The partition is somebody else's: the work is dropped and counted, nothing is written."""


@final
@dataclass(frozen=True, slots=True)
class DeadNow:
    """No retry helps."""

    reason: Reason


Decision: TypeAlias = Transient | DependencyAway | Fatal | Lost | DeadNow

Faults: TypeAlias = Callable[[BaseException], Fault]
"""The database's own classifier: `tidegate.inbox.faults.classify`."""

DATABASE: Final = "postgresql"
"""The name under which the database is a dependency."""


def decide(exc: BaseException, faults: Faults) -> Decision:
    """What `exc`, raised by a handler, leads to. Total: every exception has a decision."""
    links = list(_chain(exc))
    for absolute, decision in _ABSOLUTE:
        if any(isinstance(link, absolute) for link in links):
            return decision
    for link in links:
        members = members_of(link)
        decision = _mildest(members, faults) if members else _of_link(link, faults)
        if decision is not None:
            return decision
    return DeadNow(Reason.REJECTED)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what it was explicitly raised from. Not the context: an error while handling another is its own."""
    link: BaseException | None = exc
    for _ in range(CHAIN_MAX):
        if link is None:
            return
        yield link
        link = link.__cause__


def _mildest(members: Sequence[BaseException], faults: Faults) -> Decision:
    """Of the decisions that a group's members lead to, the one that waits; after the absolute ones."""
    return min((decide(member, faults) for member in members), key=_rank)


def _rank(decision: Decision) -> int:
    return _RANKS.index(type(decision))


_RANKS: Final = (Lost, Fatal, DependencyAway, Transient, DeadNow)


def _of_link(link: BaseException, faults: Faults) -> Decision | None:
    """What the tables say of one exception by itself; None where they do not know it."""
    for kind, ours in _OURS:
        if isinstance(link, kind):
            return ours(link)
    for cls in type(link).__mro__:
        if (remote := _REMOTE.get((cls.__module__.partition(".")[0], cls.__name__))) is not None:
            return remote(link)
    for kind, decision in _BUILTIN:
        if isinstance(link, kind):
            return decision
    return _OF_FAULT[faults(link)]


# --------------------------------------------------------------------------------------------------------- the tables

_REJECTED: Final = DeadNow(Reason.REJECTED)
_TRANSIENT: Final = Transient()

_ABSOLUTE: Final[tuple[tuple[type[BaseException], Decision], ...]] = ((OwnershipLost, Lost()), (FatalError, Fatal()))


def _record_error(exc: BaseException) -> Decision:
    return DeadNow(cast(RecordError, exc).reason)


def _dependency(exc: BaseException) -> Decision:
    return DependencyAway(cast(DependencyError, exc).dependency)


def _transient(_: BaseException) -> Decision:
    return _TRANSIENT


def _rejected(_: BaseException) -> Decision:
    return _REJECTED


_OURS: Final[tuple[tuple[type[BaseException], Callable[[BaseException], Decision]], ...]] = (
    (RecordError, _record_error),
    (DependencyError, _dependency),
    (DeadlineError, lambda _: Transient(Reason.TIMEOUT)),
    (TransientError, _transient),
)
"""Our own errors, subclasses before their parents."""

_RETRIED_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers that say "not now": time-outs, too early, too many, and the server's own trouble."""


def _by_status(exc: BaseException) -> Decision:
    """An HTTP answer: the server was reached and said what it thinks."""
    response: object = getattr(exc, "response", None)
    status: object = getattr(response, "status_code", None) or getattr(exc, "status", None)
    return _TRANSIENT if status in _RETRIED_STATUS else _REJECTED


_REMOTE: Final[Mapping[tuple[str, str], Callable[[BaseException], Decision]]] = MappingProxyType(
    {
        ("httpx", "UnsupportedProtocol"): _rejected,
        ("httpx", "LocalProtocolError"): _rejected,
        ("httpx", "TransportError"): _transient,
        ("httpx", "HTTPStatusError"): _by_status,
        ("httpcore", "UnsupportedProtocol"): _rejected,
        ("httpcore", "LocalProtocolError"): _rejected,
        ("httpcore", "TimeoutException"): _transient,
        ("httpcore", "NetworkError"): _transient,
        ("httpcore", "ProtocolError"): _transient,
        ("aiohttp", "InvalidURL"): _rejected,
        ("aiohttp", "ClientResponseError"): _by_status,
        ("aiohttp", "ClientError"): _transient,
        ("requests", "HTTPError"): _by_status,
        ("requests", "ConnectionError"): _transient,
        ("requests", "Timeout"): _transient,
        ("requests", "ChunkedEncodingError"): _transient,
        ("requests", "RequestException"): _rejected,
        ("urllib3", "TimeoutError"): _transient,
        ("urllib3", "MaxRetryError"): _transient,
        ("urllib3", "ProtocolError"): _transient,
        ("urllib", "HTTPError"): lambda exc: _TRANSIENT if getattr(exc, "code", 0) in _RETRIED_STATUS else _REJECTED,
    }
)
"""(top-level package, class) of HTTP clients, looked up along the exception's classes: none of them is imported."""

_BUILTIN: Final[tuple[tuple[type[BaseException], Decision], ...]] = (
    # a path that is not there does not come back by waiting; all other system errors may
    (FileNotFoundError, _REJECTED),
    (FileExistsError, _REJECTED),
    (IsADirectoryError, _REJECTED),
    (NotADirectoryError, _REJECTED),
    (MemoryError, _TRANSIENT),
    # somebody inside the handler cancelled something; a cancellation by us never comes here
    (asyncio.CancelledError, _TRANSIENT),
)

_OF_FAULT: Final[Mapping[Fault, Decision | None]] = MappingProxyType(
    {
        # also every bare system error and time-out: a database that is down raises nothing else. Where it answers its
        # health check, the worker takes the error for a transient one.
        Fault.DEPENDENCY: DependencyAway(DATABASE),
        Fault.TRANSIENT: _TRANSIENT,
        Fault.DATA: _REJECTED,
        # the wrong statement, or no error of a database at all: what it was raised from may say more
        Fault.PROGRAM: None,
    }
)
