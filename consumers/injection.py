"""Which arguments a handler function wants, read from its signature once. No IO.

A handler function says what it needs by annotation: its subject (the events, the command) first, then a `Context`, the
transaction of a projection, and resources of the app's lifespan by their type.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..inbox.event import Event

_NO_PAYLOAD_CLASS: Final = (Any, dict, object, bytes, str)
"""What events may be annotated with without naming a type of event. From Python 3.11 on, Any is a class too."""


@dataclass(frozen=True, slots=True)
class Wants:
    """The parameters of a handler function behind its subject: name -> annotation."""

    subject: Any
    parameters: Mapping[str, Any]
    unresolved: str | None = None
    """Why the annotations could not be read, None when they were."""


def read_wants(function: Callable[..., Any]) -> Wants:
    """Read the signature; annotations that cannot be resolved are reported, not guessed."""
    names = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError) as error:
        return Wants(None, {}, unresolved=str(error))
    return Wants(hints.get(names[0]) if names else None, {name: hints.get(name) for name in names[1:]})


def payload_types(annotation: Any) -> frozenset[type]:
    """The payload classes in `Event[A | B]` or `Sequence[Event[A]]`; empty where it names none (Any, say)."""
    if annotation is None:
        return frozenset()
    origin = typing.get_origin(annotation)
    if origin is Event:
        return _classes(typing.get_args(annotation)[0])
    found: set[type] = set()
    for argument in typing.get_args(annotation):
        found |= payload_types(argument)
    return frozenset(found)


def _classes(annotation: Any) -> frozenset[type]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        return frozenset[type]().union(*(_classes(member) for member in members))
    if isinstance(annotation, type) and annotation not in _NO_PAYLOAD_CLASS:
        return frozenset((annotation,))
    return frozenset()


def pick(resources: Sequence[object], wanted: Any) -> object | None:
    """The one resource that is an instance of the wanted class; None where there is none."""
    if not isinstance(wanted, type):
        return None
    for resource in resources:
        if isinstance(resource, wanted):
            return resource
    return None
