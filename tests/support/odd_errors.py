"""Exceptions that raise, or say nonsense, when they are looked at."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError, IntegrityError

from tidegate.inbox.errors import TransientError


class OddText(str):
    """A text that can be had and not looked at."""

    __slots__ = ()

    def __len__(self) -> NoReturn:
        raise RuntimeError("no length for you")

    def __str__(self) -> NoReturn:
        raise RuntimeError("no text for you")

    def __getitem__(self, _: Any) -> NoReturn:
        raise RuntimeError("no part for you")

    def isascii(self) -> NoReturn:
        """Raise."""
        raise RuntimeError("no answer for you")


class OldValidationError(ValueError):
    """Shaped like pydantic.v1's."""

    __module__ = "pydantic.v1.error_wrappers"

    def errors(self) -> list[object]:
        """None."""
        return []


class HTTPStatusError(Exception):
    """Shaped like httpx's."""

    __module__ = "httpx"


BASES: Final[tuple[type[Exception], ...]] = (
    *(Exception, OSError, TransientError, ExceptionGroup, IntegrityError, KafkaException),
    *(OldValidationError, HTTPStatusError),
)
"""What the odd ones are made from: each is looked at in a way of its own."""


def _raises(_: object) -> NoReturn:
    raise RuntimeError("nobody looks at this")


def _takes(_: object, __: object) -> None:
    """As if it were kept."""


def _odd_text(_: object) -> OddText:
    return OddText("no luck")


WAYS: Final[dict[str, object]] = {
    "__module__": None,
    "__qualname__": OddText("OddError"),
    "__str__": _odd_text,
    "__bool__": _raises,
    "__eq__": _raises,
    **{
        name: property(_raises, _takes)
        for name in (
            *("__cause__", "__context__", "__suppress_context__", "__traceback__", "__notes__", "args"),
            *(
                "exceptions",
                "orig",
                "diag",
                "sqlstate",
                "pgcode",
                "constraint_name",
                "connection_invalidated",
                "errors",
            ),
            *("response", "status", "code", "headers", "reason", "retriable", "errno", "filename"),
        )
    },
}
"""What a class may do to those who look at its exceptions."""


def odd(*ways: str, of: type[Exception] = Exception) -> Exception:
    """An exception of a class of its own, made from `of`, that is odd in these ways."""
    namespace = {"__module__": of.__module__, "__hash__": of.__hash__, **{way: WAYS[way] for way in ways}}
    cls: Any = type("OddError", (of,), namespace)
    if issubclass(of, BaseExceptionGroup):
        return cls("many", [ValueError("one")])
    return cls("SELECT 1", {}, ValueError("x")) if issubclass(of, DBAPIError) else cls("no luck")
