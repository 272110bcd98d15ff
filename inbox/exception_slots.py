"""What an exception holds, read where the interpreter itself keeps it. No IO.

A class may put a property of its own over any of it, which raises, or gives what is no exception at all; `__bool__` and
`__module__` may be anything too. What is read here is what was raised, whatever its class makes of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final

_CAUSE: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__cause__"].__get__
_CONTEXT: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__context__"].__get__
_TRACEBACK: Final[Callable[[BaseException], TracebackType | None]] = BaseException.__dict__["__traceback__"].__get__
_MEMBERS: Final[Callable[[Any], tuple[BaseException, ...]]] = vars(BaseExceptionGroup)["exceptions"].__get__
_MODULE: Final[Callable[[type], object]] = type.__dict__["__module__"].__get__
_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
_QUALIFIED: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__

CHAIN_MAX: Final = 20
"""Links of an exception's chain that are looked at: longer ones are loops."""

UNKNOWN: Final = "?"
"""The module of a class that names none."""


def cause_of(exc: BaseException) -> BaseException | None:
    """What it was raised `from`."""
    return _CAUSE(exc)


def context_of(exc: BaseException) -> BaseException | None:
    """What was being handled when it was raised."""
    return _CONTEXT(exc)


def causes_of(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what it was explicitly raised from, outermost first; not the context, which is an error of its own."""
    link: BaseException | None = exc
    for _ in range(CHAIN_MAX):
        if link is None:
            return
        yield link
        link = _CAUSE(link)


def members_of(exc: BaseException) -> tuple[BaseException, ...]:
    """What an exception group holds; nothing for any other exception.

    >>> members_of(ExceptionGroup("two", [ValueError(1), KeyError(2)])), members_of(ValueError(1))
    ((ValueError(1), KeyError(2)), ())
    """
    return _MEMBERS(exc) if issubclass(type(exc), BaseExceptionGroup) else ()


def traceback_of(exc: BaseException) -> TracebackType | None:
    """Along which frames it was raised."""
    return _TRACEBACK(exc)


def attribute_of(thing: object, name: str) -> Any:
    """What a stranger's class has under this name; None where it has nothing, or where looking at it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - whoever raised the exception that is looked at: its own end tells of it
        return None


def module_of(cls: type) -> str:
    """The module that a class says it comes out of.

    >>> module_of(ValueError), module_of(type("Odd", (ValueError,), {"__module__": None}))
    ('builtins', '?')
    """
    try:
        module = _MODULE(cls)
    except AttributeError:  # it was made where there is none
        return UNKNOWN
    return exactly(module) if isinstance(module, str) else UNKNOWN


def full_name_of(cls: type) -> str:
    """`module.Class`.

    >>> full_name_of(ValueError)
    'builtins.ValueError'
    """
    return f"{module_of(cls)}.{exactly(_QUALIFIED(cls))}"


def known_as(cls: type) -> tuple[str, str]:
    """(top-level package, class): by these the tables know the exceptions of libraries that are not imported here.

    >>> known_as(__import__("asyncio").QueueFull)
    ('asyncio', 'QueueFull')
    """
    return module_of(cls).partition(".")[0], exactly(_NAME(cls))


def exactly(text: str) -> str:
    """The same text as a plain one: a class made from `str` may raise wherever it is looked at."""
    return str.__str__(text)
