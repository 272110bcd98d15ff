"""How long a server asks to wait: the Retry-After of an HTTP client's exception. No IO; time is an argument.

Source: RFC 9110, 10.2.3: a number of seconds, or an HTTP date. A date is compared with the answer's own Date, so that
the server's clock is compared with itself; only where it sends none, with ours.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from typing import Any

_SECONDS = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*")
"""Nine digits are thirty years; longer numbers are nonsense, and slow to read."""


def retry_after_s(exc: BaseException, now: datetime.datetime | None = None) -> float | None:
    """Seconds to wait, 0 or more; None where the answer does not say, or says it in no known form.

    May raise whatever a foreign exception's attributes raise.
    """
    headers = _headers(exc)
    wish = _header(headers, "Retry-After")
    if wish is None:
        return None
    if match := _SECONDS.fullmatch(wish):
        return float(match[1])
    until, since = http_date(wish), http_date(_header(headers, "Date")) or now
    return None if until is None or since is None else max(0.0, (until - since).total_seconds())


def http_date(text: str | None) -> datetime.datetime | None:
    """The moment that an HTTP date names; None for anything else.

    >>> http_date("Fri, 31 Dec 1999 23:59:59 GMT").isoformat()
    '1999-12-31T23:59:59+00:00'
    >>> http_date("soon") is None
    True
    """
    try:
        moment = email.utils.parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _headers(exc: BaseException) -> Any:
    """Of the answer that the exception holds (httpx, requests), or its own (aiohttp, urllib)."""
    response: object = getattr(exc, "response", None)
    headers = getattr(response, "headers", None)
    return getattr(exc, "headers", None) if headers is None else headers


def _header(headers: Any, name: str) -> str | None:
    """One header of a mapping that may, or may not, mind capitals."""
    if headers is None or not hasattr(headers, "get"):
        return None
    value = headers.get(name)
    value = headers.get(name.lower()) if value is None else value
    return value if isinstance(value, str) else None
