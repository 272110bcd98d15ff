"""JSON of what tidegate itself says: rows of a statement, details of an act, a letter's instruction, a log line. No IO.

Not for what is compared byte by byte (fingerprints, the audit's seal), nor for what a user gave (a payload, a result),
but where that is as simple as most are: `flat_json`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic_core import to_json


def json_text(value: Any) -> str:
    r"""One line of valid JSON without spaces; what is not ASCII stays as it is, and a lone surrogate is escaped.

    `value` is plain: text, whole and finite numbers (another one would be null), booleans, None, lists, tuples and
    dicts with text as keys; a member of an enum of texts is its text. Raises TypeError or ValueError where it is not.

    >>> json_text(["é", 2**64, {"a": None}])
    '["é",18446744073709551616,{"a":null}]'
    """
    try:
        return to_json(value, inf_nan_mode="null").decode()
    except ValueError:  # lone surrogates
        return _standard(value).encode("utf-8", "backslashreplace").decode()


def flat_json(value: Any) -> bytes | None:
    r"""What the standard library's encoder writes, without spaces and without escapes but those that must be.

    For a dict whose keys are text and whose values are text, booleans, None and whole numbers of 64 bits. None for
    anything else, and where the standard library refuses.

    >>> flat_json({"é": 1}), flat_json({"a": [1]}), flat_json({"a": 0.5})
    (b'{"\xc3\xa9":1}', None, None)
    """
    if value.__class__ is not dict:
        return None
    for name, one in value.items():
        kind = one.__class__
        if name.__class__ is not str or (kind is int and not _LOW <= one <= _HIGH) or kind not in _FLAT:
            return None
    try:
        return to_json(value)
    except ValueError:  # a lone surrogate
        return None


_FLAT: Final = frozenset({str, int, bool, type(None)})
_LOW: Final = -(2**63)
_HIGH: Final = 2**63 - 1

_standard: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Takes more than twice as long: it makes an encoder in C for each call."""
