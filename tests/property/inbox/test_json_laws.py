"""The quick ways of JSON say what the standard library's encoder says, or nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.inbox.effect_rows import result_text
from tidegate.inbox.json_text import flat_json

TEXT = st.text(st.characters(exclude_categories=())) | st.text(st.characters(max_codepoint=0x9F))
"""With lone surrogates and controls; half of them of a range in which there are more of those that are escaped."""

VALUES = TEXT | st.integers() | st.booleans() | st.none() | st.floats() | st.lists(st.integers(), max_size=2)
FLAT = st.dictionaries(TEXT | st.integers(), VALUES, max_size=5)


def _standard(value: Any, **options: Any) -> bytes | None:
    """None where it refuses."""
    try:
        return json.dumps(value, separators=(",", ":"), **options).encode()
    except (TypeError, ValueError):
        return None


@given(FLAT)
@example({"a": '\x7f\u2028\0\x1f"\\/'})
@example({"a": 2**63 - 1, "b": -(2**63), "c": True, "d": None})
@example({"a": 2**63})
@example({"a": "\ud800"})
def test_a_flat_dict_is_written_as_ever_or_left_to_the_other_way(value: dict[Any, Any]) -> None:
    flat = flat_json(value)
    assert flat is None or flat == _standard(value, ensure_ascii=False)


@given(FLAT)
def test_a_result_is_stored_as_the_standard_library_writes_it(value: dict[Any, Any]) -> None:
    text = _standard(value, ensure_ascii=False, allow_nan=False)
    if text is not None and b"\\u0000" not in text:
        assert (result_text(value, 1_000_000) or "").encode() == text
