"""What the end of a call says about the provider: did it answer? No IO; a walk over one table.

Not the same question as whether the call was made (`effect_faults`): a refused order is an answer, and a refused
connection surely made no call. What says nothing about the provider (a bug behind the call, a cancellation, our own
pool that was full) counts neither way.
"""

from __future__ import annotations

from typing import Final

from .exception_slots import attribute_of, causes_of, known_as, members_of

OVERLOAD_STATUS: Final = frozenset({408, 425, 429})
"""Of the 4xx, those by which a service says "not now": too many requests, too early, it lost patience with us."""

_UNANSWERED: Final = frozenset(
    {
        ("httpx", "TransportError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "TimeoutException"),
        ("httpcore", "ProtocolError"),
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("requests", "ChunkedEncodingError"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "MaxRetryError"),
        ("urllib", "URLError"),
    }
)
"""(top-level package, class) of HTTP clients: the connection was not made, broke, or nothing came over it in time."""

_OURS: Final = frozenset(
    {
        ("httpx", "PoolTimeout"),
        ("httpx", "UnsupportedProtocol"),
        ("httpx", "LocalProtocolError"),
        ("httpcore", "PoolTimeout"),
        ("urllib3", "EmptyPoolError"),
        ("requests", "InvalidURL"),
    }
)
"""Those beneath them that never got as far as the provider."""


def answered(error: BaseException | None) -> bool | None:
    """True: the provider answered, if only to refuse. False: it did not, or it was overloaded. None: no word on it.

    The exception, then what it was raised `from`, outermost first: the first link that says anything decides.
    """
    if error is None:
        return True
    for link in causes_of(error):
        if members := members_of(link):
            said = [answered(member) for member in members]
            return False if False in said else True if True in said else None
        status = _status(link)
        if status is not None:
            return status < 500 and status not in OVERLOAD_STATUS
        known = {known_as(cls) for cls in type(link).__mro__}
        if known & _OURS:
            return None
        if known & _UNANSWERED or isinstance(link, OSError):  # the built-in TimeoutError is one
            return False
    return None


def _status(error: BaseException) -> int | None:
    """httpx and requests hang the answer on the exception, aiohttp its status, urllib its code."""
    found = (
        attribute_of(attribute_of(error, "response"), "status_code"),
        attribute_of(error, "status"),
        attribute_of(error, "code"),
    )
    return next((one for one in found if isinstance(one, int) and 100 <= one < 600), None)
