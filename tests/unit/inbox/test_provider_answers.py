"""Whether a provider answered, told by what the call ended with."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tidegate.inbox.provider_answers import answered


def raised(package: str, *names: str, **attributes: Any) -> Exception:
    """An exception of a library's class, with the classes that it is derived from, the outermost first."""
    cls: Any = Exception
    for name in reversed(names):
        cls = type(name, (cls,), {"__module__": f"{package}._errors"})
    error: Exception = cls("no payload in here")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class Response:
    """As httpx and requests have it."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, True),
        (raised("httpx", "HTTPStatusError", "HTTPError", response=Response(404)), True),
        (raised("httpx", "HTTPStatusError", "HTTPError", response=Response(503)), False),
        (raised("httpx", "HTTPStatusError", "HTTPError", response=Response(429)), False),
        (raised("aiohttp", "ClientResponseError", "ClientError", status=422), True),
        (raised("aiohttp", "ClientResponseError", "ClientError", status=500), False),
        (raised("urllib", "HTTPError", "URLError", code=409), True),
        (raised("httpx", "ReadTimeout", "TimeoutException", "TransportError"), False),
        (raised("httpx", "ConnectError", "NetworkError", "TransportError"), False),
        (raised("httpx", "PoolTimeout", "TimeoutException", "TransportError"), None),
        (raised("aiohttp", "ClientConnectorError", "ClientConnectionError"), False),
        (raised("requests", "ConnectionError", "RequestException"), False),
        (TimeoutError(), False),
        (ConnectionRefusedError(), False),
        (socket.gaierror(), False),
        (KeyError("a bug"), None),
        (ValueError("nonsense"), None),
        (ExceptionGroup("two", [KeyError("a bug"), TimeoutError()]), False),
        (ExceptionGroup("two", [KeyError("a bug"), ValueError()]), None),
        (ExceptionGroup("two", [KeyError("a bug"), raised("x", "E", status=400)]), True),
    ],
)
def test_what_an_exception_says_of_the_provider(error: BaseException | None, said: bool | None) -> None:
    assert answered(error) is said


def test_the_cause_speaks_where_the_exception_itself_says_nothing() -> None:
    wrapped = RuntimeError("an SDK's own")
    wrapped.__cause__ = TimeoutError()
    assert answered(wrapped) is False


def test_a_chain_that_is_a_ring_ends() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert answered(one) is None
