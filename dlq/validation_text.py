"""What may be told of pydantic's validation errors: declared names, indexes and kinds, never the input. No IO.

The path to a wrong value is made of names of fields, of indexes, and of keys: those of a map, and those of fields that
nobody declared, come out of the payload. pydantic does not say which is which. So a part of a path is told where a
class of the application declares a name like it; a `*` stands for every other.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from .guard import Returned, contained_call

ERRORS_TOLD: Final = 10
"""Ten wrong fields tell what kind of record it is; more do not fit into a message anyway."""

REMEMBERED_MAX: Final = 1_000
"""Classes whose names are remembered: more than an application has."""

UNKNOWN: Final = "*"
_INDEX_MAX: Final = 999_999
"""What is larger is no index of a list that came in one record, but a number that a map has for a key."""


def told_errors(error: ValidationError, cls: type | None = None) -> list[tuple[str, str]]:
    """Where each of the first errors is, and of what kind. `cls`: what was to be made, else what the title says."""
    declared = _declared_under(error.title) if cls is None else declared_names(cls)
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    return [(_path(entry, declared), _kind(entry)) for entry in listed[:ERRORS_TOLD]]


def _path(entry: ErrorDetails, declared: frozenset[str]) -> str:
    parts = [_part(part, declared) for part in entry["loc"]]
    if parts and entry["type"] == "missing":  # only what is declared can be missing
        parts[-1] = str(entry["loc"][-1])
    elif parts and entry["type"] == "extra_forbidden":
        parts[-1] = UNKNOWN
    return ".".join(parts)


def _part(part: int | str, declared: frozenset[str]) -> str:
    is_told = 0 <= part <= _INDEX_MAX if isinstance(part, int) else part in declared
    return str(part) if is_told else UNKNOWN


def _kind(entry: ErrorDetails) -> str:
    """pydantic's own word, or one of the application's that is written like those."""
    return entry["type"] if _WORD_OF_CODE.fullmatch(entry["type"]) else UNKNOWN


_WORD_OF_CODE = re.compile(r"[a-z_]+")


# ------------------------------------------------------------------------------------------------- declared names


@lru_cache(REMEMBERED_MAX)
def declared_names(cls: type) -> frozenset[str]:
    """All names that `cls` and the classes of its fields declare: fields, aliases, branches of unions."""
    names = {"[key]"}  # pydantic's mark behind a key that is wrong itself
    todo: list[Any] = [cls]
    seen: dict[int, Any] = {}
    while todo:
        accepts = todo.pop()
        if id(accepts) in seen:
            continue
        seen[id(accepts)] = accepts
        todo += typing.get_args(accepts)
        todo += [getattr(accepts, name) for name in ("__value__", "__supertype__") if hasattr(accepts, name)]
        if isinstance(accepts, str):  # a Literal's, by which a branch is called
            names.add(accepts)
        elif isinstance(accepts, type):
            own, annotations = _declared_by(accepts)
            names |= {accepts.__name__, *own}
            todo += annotations
    return frozenset(names)


def _declared_by(cls: Any) -> tuple[list[str], list[Any]]:
    """The names and annotations of a class's fields; nothing of what has no declared fields."""
    if issubclass(cls, BaseModel):
        fields = cls.model_fields
        aliases = [alias for item in fields.values() for alias in _aliases(item)]
        return [*fields, *aliases], [item.annotation for item in fields.values()]
    if dataclasses.is_dataclass(cls) or hasattr(cls, "__total__"):  # a TypedDict, of whichever module
        hints = contained_call(typing.get_type_hints, cls)  # raises where a name stands under TYPE_CHECKING
        if isinstance(hints, Returned):
            return list(hints.value), list(hints.value.values())
    return [], []


def _aliases(item: FieldInfo) -> Iterator[str]:
    given = item.validation_alias
    for choice in given.choices if isinstance(given, AliasChoices) else (given,):
        for part in choice.path if isinstance(choice, AliasPath) else (choice,):
            if isinstance(part, str):
                yield part


@lru_cache(REMEMBERED_MAX)
def _declared_under(title: str) -> frozenset[str]:
    """The names of all models that an error's title speaks of: `Order` and `list[Order]` speak of every Order."""
    spoken_of = {title, *_NAME.findall(title)}
    found = [cls for cls in _models() if not spoken_of.isdisjoint((cls.__name__, cls.model_config.get("title")))]
    return frozenset[str]().union(*map(declared_names, found))


_NAME = re.compile(r"\w+")


def _models() -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    todo: list[type[BaseModel]] = [BaseModel]
    while todo:
        cls = todo.pop()
        if cls not in found:
            found.add(cls)
            todo += cls.__subclasses__()
    return found
