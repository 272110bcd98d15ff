"""Which events a projection takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tidegate.consumers import Event
from tidegate.consumers.injection import payload_types


@dataclass(frozen=True)
class Placed:
    """A type of event."""


@pytest.mark.parametrize("annotation", [Any, object, dict, dict[str, Any], bytes, str])
def test_an_annotation_that_names_no_type_takes_every_event(annotation: Any) -> None:
    """Found here: since Python 3.11 `Any` is a class, and `Event[Any]` took events of that class: none, in silence."""
    assert payload_types(Sequence[Event[annotation]]) == frozenset()


def test_an_annotation_names_the_types_that_are_taken() -> None:
    assert payload_types(Sequence[Event[Placed | None]]) == {Placed}
