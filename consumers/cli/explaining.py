"""`tidegate explain`: what a handler's failures lead to, in plain English; nothing is asked but the app itself."""

from __future__ import annotations

import difflib
import importlib
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from rich.text import Text

from ...dlq.guard import Raised, contained_call
from ...dlq.in_words import Section, path_section, policy_sections
from ...dlq.policy import FailurePolicy
from ...dlq.rule_match import is_exception_class, loaded, shown
from ...inbox.errors import ConfigurationError
from ..app import App, Consumer
from .loading import load_app
from .options import OUT
from .preparing import chosen

KEY: Final = "--exception"

WIDTH_MAX: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""

TERM: Final = 22
"""Columns of the left side; a longer term has a line of its own."""


def explain(app_path: str | None, handler: str, consumer: str | None, exception: str | None) -> None:
    """Print the decision tree of a handler, or the path that one exception takes through it.

    Raises ConfigurationError for an app that would not start, and for a handler or an exception that nobody knows.
    """
    app = load_app(app_path)
    if problems := app.problems():
        raise ConfigurationError(problems)
    found = find_handler(app, handler, consumer)
    told = sections(found.policies()[handler], exception)
    kind = "command" if handler in found.commands else "projection"
    OUT.print(Text(f"{handler} is a {kind} of the consumer {found.name}.", style="bold"))
    for section in told:
        _print(section)


def sections(policy: FailurePolicy, exception: str | None) -> list[Section]:
    """What is told."""
    return policy_sections(policy) if exception is None else [path_section(exception_class(exception), policy)]


def find_handler(app: App, handler: str, consumer: str | None) -> Consumer:
    """The consumer that has the handler. Raises ConfigurationError where none has it, or several have."""
    consumers = chosen(app, consumer)
    found = [candidate for candidate in consumers if handler in candidate.handler_names]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(candidate.name for candidate in found)
        raise ConfigurationError.of("HANDLER", f"several consumers have {handler!r}", f"name one: --consumer ({names})")
    known = [name for candidate in consumers for name in candidate.handler_names]
    raise ConfigurationError.of("HANDLER", f"no handler is called {handler!r}", f"take {_near(handler, known)}")


def exception_class(name: str) -> type[BaseException]:
    """The class that `name` names; its module is imported if it is not yet. Raises ConfigurationError."""
    known = loaded(name)
    if known is not None:
        return known
    if "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError.of(KEY, f"{name!r} is no full name", "write it as module.Class, as letters show it")
    module, attributes = _imported(name)
    found: Any = module
    for place, attribute in enumerate(attributes):
        if not hasattr(found, attribute):
            where = ".".join([module.__name__, *attributes[:place]])
            raise ConfigurationError.of(
                KEY, f"{where} has no {attribute!r}", f"take {_near(attribute, _classes(found))}"
            )
        found = getattr(found, attribute)
    if is_exception_class(found):
        return found
    raise ConfigurationError.of(KEY, f"{name} is {shown(found)}, not an exception class", "name an exception class")


def _imported(name: str) -> tuple[ModuleType, list[str]]:
    """The longest beginning of the name that is a module, and what is left: a class may stand in a class."""
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:place])
        outcome = contained_call(importlib.import_module, module)
        if not isinstance(outcome, Raised):
            return outcome.value, parts[place:]
        error = outcome.error
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while a module takes long to be imported
            raise error.__cause__
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            what = f"importing {module} failed: {type(error).__name__}: {error}"
            raise ConfigurationError.of(KEY, what, "correct the module, or start from the directory that holds it")
    raise ConfigurationError.of(KEY, f"there is no module {parts[0]!r} here or installed", "correct the name")


def _classes(found: object) -> list[str]:
    return [name for name, value in vars(found).items() if is_exception_class(value)]


def _near(name: str, known: list[str]) -> str:
    """The names that look like it, else all of them, else a hint that there are none."""
    return " or ".join(difflib.get_close_matches(name, known) or sorted(set(known))[:10]) or "another one: it has none"


def _print(section: Section) -> None:
    OUT.print()
    OUT.print(Text(section.title, style="bold"))
    for line in lines_of(section, min(OUT.width, WIDTH_MAX)):
        OUT.print(Text(line), soft_wrap=True)


def lines_of(section: Section, width: int) -> Iterator[str]:
    """The section's lines: terms on the left, what is said of them beside, wrapped to `width`."""
    for term, text in section.items:
        left = f"  {term}"
        if len(left) >= TERM:
            yield left
            left = ""
        indent = " " * TERM
        wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        for number, line in enumerate(wrapped or [""]):
            yield left.ljust(TERM) + line[TERM:] if number == 0 else line
