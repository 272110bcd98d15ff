"""Secrets in text that somebody else wrote: an exception's message, a handler's own words. No IO.

Patterns find what is told by its neighbourhood (`password=`, `://user:...@`, `Bearer ...`); whatever else a text may
give away is masked where the record is known (`tidegate.dlq.failure_text`).
"""

from __future__ import annotations

import re
from typing import Final

from .exception_slots import exactly
from .safe_text import safe_text

SCAN_CHARS_MAX: Final = 4_000
"""How much of a text is searched for secrets at all; keeps the work bounded whatever somebody says."""

_REDACTED: Final = "***"
_SHORTENED: Final = "\N{HORIZONTAL ELLIPSIS}"


_NAMES = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?|cookie"
    r"|signature|authorization)"
)

_SECRETS = (
    # the password of an address; greedy up to the last @, because a password may hold one
    (re.compile(r"(://[^\s:/@]*:)\S*@"), rf"\1{_REDACTED}@"),
    # a token in the place of the user
    (re.compile(r"(://)[^\s:/@?#]+@"), rf"\1{_REDACTED}@"),
    # what stands behind the path: keys, signatures, one-time codes under any name
    (re.compile(r"(\w://[^\s?#\"'<>]+)[?#][^\s\"'<>]*"), rf"\1?{_REDACTED}"),
    # Authorization: Basic ..., Bearer ...
    (re.compile(r"(?i)\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]{6,}"), rf"\1 {_REDACTED}"),
    # JSON web tokens wherever they stand
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"), _REDACTED),
    # password=..., 'sasl.password': '...', password="..."; quoted values may hold spaces. It begins at the
    # telling word: a pattern that begins before it takes half a second for one long word
    (
        re.compile(rf"(?i)({_NAMES}[\w.-]{{0,100}}[\"']?\s*[=:]\s*)(?:\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|[^\s,;&)}}\]]+)"),
        rf"\1{_REDACTED}",
    ),
)

_TELLING = re.compile(r"(?i)[:=]|basic|bearer|eyJ")
"""One of these stands in whatever a pattern of `_SECRETS` finds: most texts have none, and are searched once."""


def told(text: str) -> str:
    """A handler's or a probe's own words, as a row may hold them.

    >>> told("the bank said no to https://api.bank.example/pay?key=123")
    'the bank said no to https://api.bank.example/pay?***'
    """
    return safe_text(without_secrets(scanned(text)))


def without_secrets(text: str) -> str:
    """`text` with the passwords of addresses, named secrets and tokens replaced.

    >>> without_secrets("cannot reach postgresql://app:pw123@db/shop")
    'cannot reach postgresql://app:***@db/shop'
    """
    if _TELLING.search(text) is not None:
        for pattern, replacement in _SECRETS:
            text = pattern.sub(replacement, text)
    return text


def scanned(text: str) -> str:
    """The part of `text` that is looked at. Its last word may be cut in half, a half secret, and is left out."""
    text = exactly(text)
    if len(text) <= SCAN_CHARS_MAX:
        return text
    return text[:SCAN_CHARS_MAX].rpartition(" ")[0] + _SHORTENED
