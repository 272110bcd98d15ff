"""What an exception out of a call says about the call: was it surely not made? No IO; a walk over one table.

Only two things are sure: the request never left (no connection, no address, no place in the pool), or the service
answered that it refuses. Everything else (a time-out while reading, a connection that broke, a 5xx, a bug behind the
call) leaves open whether the effect happened, and goes by the effect's rule. Whoever has a client repeat requests by
itself takes this from it: the last try's refusal says nothing about the first one. So it is with redirects that a
client followed: what the last address says, nobody asked the first one. Where an answer tells of them it says nothing;
an error without an answer does not tell.
"""

from __future__ import annotations

import enum
import socket
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from .exception_slots import attribute_of, causes_of, known_as, members_of


class Sureness(enum.Enum):
    """What an exception says of the call that raised it."""

    NOT_SENT = "not_sent"
    REFUSED = "refused"
    UNSURE = "unsure"


def sureness(error: BaseException, not_done: Callable[[BaseException], bool] | None = None) -> Sureness:
    """What `error` says; total. `not_done` is the effect's own word on it, heard first.

    The exception, then what it was raised `from`, outermost first: the first link that the table knows decides. Of an
    exception group every member must be sure.
    """
    if not_done is not None and not_done(error):
        return Sureness.REFUSED
    for link in causes_of(error):
        if members := members_of(link):
            return _least({sureness(member, not_done) for member in members})
        said = _of_link(link)
        if said is not None:
            return said
    return Sureness.UNSURE


def _least(said: set[Sureness]) -> Sureness:
    if Sureness.UNSURE in said:
        return Sureness.UNSURE
    return Sureness.REFUSED if Sureness.REFUSED in said else Sureness.NOT_SENT


def _of_link(link: BaseException) -> Sureness | None:
    for cls in type(link).__mro__:
        known = CLIENTS.get(known_as(cls))
        if known is not None:
            return known(link) if callable(known) else known
    for kind, said in _BUILTIN:
        if isinstance(link, kind):
            return said
    return None


# --------------------------------------------------------------------------------------------------------- the tables

UNSURE_STATUS: Final = frozenset({408, 409, 499})
"""Of the 4xx, those that do not say "I did not do it": the server or a proxy lost patience while it was read, or a
request with the same key is under way or was done."""


def _of_status(status: object) -> Sureness:
    refused = isinstance(status, int) and 400 <= status < 500 and status not in UNSURE_STATUS
    return Sureness.REFUSED if refused else Sureness.UNSURE


def _of_answer(status: object, redirects: object) -> Sureness:
    """The service's own word, unless redirects were followed: it may have done it, and sent us on to look at it."""
    return Sureness.UNSURE if redirects else _of_status(status)


def _response(error: BaseException) -> Sureness:
    """httpx, requests: the answer hangs on the exception."""
    response = attribute_of(error, "response")
    return _of_answer(attribute_of(response, "status_code"), attribute_of(response, "history"))


def _status(error: BaseException) -> Sureness:
    return _of_answer(attribute_of(error, "status"), attribute_of(error, "history"))


def _code(error: BaseException) -> Sureness:
    return _of_status(attribute_of(error, "code"))


def _inner(error: BaseException) -> Sureness:
    """requests and urllib wrap the reason instead of raising from it."""
    args = attribute_of(error, "args")
    reason, inside = attribute_of(error, "reason"), args[0] if args else None
    for candidate in (reason, inside):
        if isinstance(candidate, BaseException) and candidate is not error:
            return _of_link(candidate) or Sureness.UNSURE
    return Sureness.UNSURE


CLIENTS: Final[Mapping[tuple[str, str], Sureness | Callable[[BaseException], Sureness]]] = MappingProxyType(
    {
        ("httpx", "ConnectError"): Sureness.NOT_SENT,
        ("httpx", "ConnectTimeout"): Sureness.NOT_SENT,
        ("httpx", "PoolTimeout"): Sureness.NOT_SENT,
        ("httpx", "UnsupportedProtocol"): Sureness.NOT_SENT,
        ("httpx", "InvalidURL"): Sureness.NOT_SENT,
        ("httpx", "HTTPStatusError"): _response,
        ("httpx", "TransportError"): Sureness.UNSURE,
        ("httpcore", "ConnectError"): Sureness.NOT_SENT,
        ("httpcore", "ConnectTimeout"): Sureness.NOT_SENT,
        ("httpcore", "PoolTimeout"): Sureness.NOT_SENT,
        ("httpcore", "UnsupportedProtocol"): Sureness.NOT_SENT,
        ("aiohttp", "ClientConnectorError"): Sureness.NOT_SENT,
        ("aiohttp", "ConnectionTimeoutError"): Sureness.NOT_SENT,
        ("aiohttp", "InvalidUrlRedirectClientError"): Sureness.UNSURE,
        ("aiohttp", "InvalidURL"): Sureness.NOT_SENT,
        ("aiohttp", "ClientResponseError"): _status,
        ("aiohttp", "ClientError"): Sureness.UNSURE,
        ("requests", "HTTPError"): _response,
        ("requests", "ConnectTimeout"): Sureness.NOT_SENT,
        ("requests", "InvalidURL"): Sureness.NOT_SENT,
        ("requests", "InvalidSchema"): Sureness.NOT_SENT,
        ("requests", "MissingSchema"): Sureness.NOT_SENT,
        ("requests", "ConnectionError"): _inner,
        ("requests", "RequestException"): Sureness.UNSURE,
        ("urllib3", "NewConnectionError"): Sureness.NOT_SENT,
        ("urllib3", "NameResolutionError"): Sureness.NOT_SENT,
        ("urllib3", "ConnectTimeoutError"): Sureness.NOT_SENT,
        ("urllib3", "EmptyPoolError"): Sureness.NOT_SENT,
        ("urllib3", "MaxRetryError"): _inner,
        ("urllib3", "HTTPError"): Sureness.UNSURE,
        ("urllib", "HTTPError"): _code,
        ("urllib", "URLError"): _inner,
    }
)
"""(top-level package, class) of HTTP clients, looked up along the exception's classes: none of them is imported."""

_BUILTIN: Final[tuple[tuple[type[BaseException], Sureness], ...]] = (
    (ConnectionRefusedError, Sureness.NOT_SENT),
    (socket.gaierror, Sureness.NOT_SENT),
    (ssl.SSLCertVerificationError, Sureness.NOT_SENT),
    (OSError, Sureness.UNSURE),
)
"""A name that is not resolved, a port that nobody listens on, a certificate that is not the service's."""
