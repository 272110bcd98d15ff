"""What declarations are judged by: names, annotations, the classes that a trigger makes. No IO; time is an argument."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from ..inbox.errors import Problem

Types: TypeAlias = type | str | Iterable[type | str] | None
"""A payload class, a full name, or several of them; None: as annotated."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def read_made(trigger: Callable[..., Any]) -> frozenset[type]:
    """The command classes that a trigger's return annotation names."""
    try:
        returned = typing.get_type_hints(trigger).get("return")
    except (NameError, TypeError, AttributeError):
        return frozenset()
    members = typing.get_args(returned) or (returned,)
    return frozenset(member for member in members if isinstance(member, type) and member is not type(None))


def type_set(given: Types) -> frozenset[type | str]:
    """What `on=` says, as a set; empty where it says nothing."""
    if given is None:
        return frozenset()
    if isinstance(given, type | str):
        return frozenset((given,))
    return frozenset(given)


def unreadable(key: str, why: str) -> Problem:
    """Annotations name a class that cannot be found."""
    return Problem(
        key, f"its annotations cannot be read ({why})", "define the types at module level, or name them with on="
    )


def name_problems(key: str, name: str) -> list[Problem]:
    """Names are keys in the database, and stand in topics' names and metrics."""
    if _NAME.fullmatch(name):
        return []
    return [
        Problem(
            key,
            "the name is not usable",
            "use up to 100 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
        )
    ]
