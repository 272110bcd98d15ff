"""JSON of what tidegate itself says: rows of a statement, details of an act, a letter's instruction, a log line. No IO.

Not for what is compared byte by byte (fingerprints, the audit's seal), nor for what a user gave (a result, a payload).
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


_standard: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Takes more than twice as long: it makes an encoder in C for each call."""
