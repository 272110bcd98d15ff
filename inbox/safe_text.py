"""Text that PostgreSQL can hold, of a bounded length: for what tidegate itself writes, never for payload. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
CUT: Final = "\N{HORIZONTAL ELLIPSIS}"

MESSAGE_CHARS_MAX: Final = 2_000
"""Enough to recognise an error by; the whole one is in the log."""

Scalar = str | int | bool | None

Detail = Scalar | tuple[int, ...] | tuple[str, ...]
"""What a detail may be; what names rows is never cut off: a line names every row of its act, by what stands in them."""


def safe_text(text: str, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """`text` without NUL and lone surrogates (U+FFFD stands in), cut to `chars_max` characters, the last one then "…".

    A surrogate pair becomes the character that it stands for; a backslash, "u0000" is ordinary text and stays.
    """
    if text.isascii():
        if len(text) <= chars_max and "\0" not in text:
            return text
    else:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = text.replace("\0", REPLACEMENT)
    return text if len(text) <= chars_max else text[: chars_max - 1] + CUT


def safe_details(details: Mapping[str, Detail]) -> dict[str, Detail]:
    """Details for a jsonb column: keys and texts made safe before they are encoded, where it still helps."""
    return {safe_text(key): safe_text(value) if isinstance(value, str) else value for key, value in details.items()}
