"""What an exception says of the call that raised it: the table, walked."""

from __future__ import annotations

import asyncio
import email.message
import io
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tidegate.inbox.effect_faults import CLIENTS, UNSURE_STATUS, Sureness, sureness

NOT_SENT, REFUSED, UNSURE = Sureness.NOT_SENT, Sureness.REFUSED, Sureness.UNSURE


def raised(package: str, name: str, *parents: str, **attributes: Any) -> BaseException:
    """An exception like that of a client library: nothing but the package and the names of its classes counts."""
    bases: tuple[type, ...] = (Exception,)
    for parent in parents:
        bases = (type(parent, bases, {"__module__": f"{package}.errors"}),)
    error = type(name, bases, {"__module__": f"{package}.errors"})("no connection")
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


@pytest.mark.parametrize(("package", "name"), CLIENTS)
def test_every_line_of_the_table_is_known_by_package_and_class(package: str, name: str) -> None:
    said = CLIENTS[(package, name)]
    assert sureness(raised(package, name)) == (said if isinstance(said, Sureness) else UNSURE)
    assert sureness(raised("elsewhere", name)) is UNSURE


def test_nothing_in_the_table_is_sure_by_accident() -> None:
    """Sure are: no connection, no place in the pool, no address. All else is an answer that has to be looked at."""
    sure = {name for (_, name), said in CLIENTS.items() if said is NOT_SENT}
    assert sure == {
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL", "ClientConnectorError"),
        *("ConnectionTimeoutError", "InvalidSchema", "MissingSchema", "NewConnectionError", "NameResolutionError"),
        *("ConnectTimeoutError", "EmptyPoolError"),
    }
    assert REFUSED not in CLIENTS.values()


class Response:
    def __init__(self, status_code: int, history: Sequence[object] = ()) -> None:
        self.status_code = status_code
        self.history = history


ANSWERS: dict[str, Callable[[int], BaseException]] = {
    "httpx": lambda status: raised("httpx", "HTTPStatusError", response=Response(status)),
    "requests": lambda status: raised("requests", "HTTPError", "RequestException", response=Response(status)),
    "aiohttp": lambda status: raised("aiohttp", "ClientResponseError", "ClientError", status=status),
    "urllib": lambda status: urllib.error.HTTPError("http://x", status, "x", email.message.Message(), io.BytesIO()),
}


@pytest.mark.parametrize("client", ANSWERS)
@pytest.mark.parametrize("status", [*range(300, 310), *range(400, 432), 451, 499, *range(500, 512)])
def test_an_answer_counts_as_a_refusal_only_where_it_is_one(client: str, status: int) -> None:
    expected = REFUSED if 400 <= status < 500 and status not in UNSURE_STATUS else UNSURE
    assert sureness(ANSWERS[client](status)) is expected


REDIRECTED: dict[str, Callable[[int], BaseException]] = {
    "httpx": lambda status: raised("httpx", "HTTPStatusError", response=Response(status, [Response(303)])),
    "requests": lambda status: raised("requests", "HTTPError", response=Response(status, [Response(303)])),
    "aiohttp": lambda status: raised("aiohttp", "ClientResponseError", status=status, history=(Response(303),)),
}


@pytest.mark.parametrize("client", REDIRECTED)
@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_the_answer_behind_a_redirect_says_nothing_of_the_call(client: str, status: int) -> None:
    """The service did it, and sent the client on to an address that refuses."""
    assert sureness(REDIRECTED[client](status)) is UNSURE


def test_an_address_that_a_service_sent_on_to_was_not_the_call() -> None:
    broken = raised("aiohttp", "InvalidUrlRedirectClientError", "ClientError", "InvalidURL")
    assert sureness(broken) is UNSURE


def test_a_status_that_is_none_says_nothing() -> None:
    for client in ("httpx", "requests"):
        assert sureness(raised(client, "HTTPStatusError", response=None)) is UNSURE
    assert sureness(raised("aiohttp", "ClientResponseError", status="429")) is UNSURE


BUILTIN: dict[str, tuple[BaseException, Sureness]] = {
    "refused": (ConnectionRefusedError(111, "refused"), NOT_SENT),
    "no such host": (socket.gaierror(-2, "unknown"), NOT_SENT),
    "not its certificate": (ssl.SSLCertVerificationError("bad"), NOT_SENT),
    "reset": (ConnectionResetError(104, "reset"), UNSURE),
    "broken pipe": (BrokenPipeError(), UNSURE),
    "aborted": (ConnectionAbortedError(), UNSURE),
    "time-out": (TimeoutError(), UNSURE),
    "eof": (asyncio.IncompleteReadError(b"", 5), UNSURE),
    "handler's own": (ValueError("bug"), UNSURE),
    "exit": (SystemExit(1), UNSURE),
}


@pytest.mark.parametrize("what", BUILTIN)
def test_what_python_raises_by_itself(what: str) -> None:
    error, expected = BUILTIN[what]
    assert sureness(error) is expected


def wrapped(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


def test_an_sdks_own_error_means_what_it_was_raised_from() -> None:
    assert sureness(wrapped(RuntimeError("sdk"), raised("httpx", "ConnectError"))) is NOT_SENT
    assert sureness(wrapped(RuntimeError("sdk"), raised("httpx", "ReadTimeout", "TransportError"))) is UNSURE


def test_the_outermost_link_that_is_known_decides() -> None:
    """A reset that led to a refused reconnection was sent the first time."""
    reset = wrapped(ConnectionResetError(), ConnectionRefusedError())
    assert sureness(reset) is UNSURE
    assert sureness(wrapped(raised("httpx", "ReadError", "TransportError"), ConnectionRefusedError())) is UNSURE


def test_what_happened_meanwhile_is_not_what_it_was_raised_from() -> None:
    error = RuntimeError("while cleaning up")
    error.__context__ = ConnectionRefusedError()
    assert sureness(error) is UNSURE


def test_a_reason_that_is_wrapped_counts_like_a_cause() -> None:
    refused = raised("urllib3", "NewConnectionError", "HTTPError")
    spent = raised("urllib3", "MaxRetryError", "HTTPError", reason=refused)
    assert sureness(spent) is NOT_SENT
    assert sureness(raised("requests", "ConnectionError", "RequestException", args=(spent,))) is NOT_SENT
    reset = raised("urllib3", "ProtocolError", "HTTPError")
    assert sureness(raised("requests", "ConnectionError", "RequestException", args=(reset,))) is UNSURE
    assert sureness(urllib.error.URLError(ConnectionRefusedError())) is NOT_SENT
    assert sureness(urllib.error.URLError("what?")) is UNSURE


def test_a_real_refusal_of_the_standard_library_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(urllib.error.URLError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
    assert sureness(refused.value) is NOT_SENT


def test_of_a_group_every_member_must_be_sure() -> None:
    refused, reset = ConnectionRefusedError(), ConnectionResetError()
    assert sureness(BaseExceptionGroup("both", [refused, refused])) is NOT_SENT
    assert sureness(BaseExceptionGroup("both", [refused, ANSWERS["httpx"](429)])) is REFUSED
    assert sureness(BaseExceptionGroup("both", [refused, reset])) is UNSURE
    assert sureness(BaseExceptionGroup("deep", [BaseExceptionGroup("one", [reset]), refused])) is UNSURE


def test_a_ring_of_causes_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert sureness(first) is UNSURE


def test_an_effect_may_know_better() -> None:
    class Declined(Exception):
        pass

    assert sureness(Declined()) is UNSURE
    assert sureness(Declined(), lambda error: isinstance(error, Declined)) is REFUSED
    assert sureness(ConnectionResetError(), lambda error: isinstance(error, Declined)) is UNSURE
