"""What a handler wants is read from its annotations when the app is complete, and never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.consumers import App, Context

if TYPE_CHECKING:

    class Late:
        """Not there when its handler is declared."""


@dataclass(frozen=True)
class Send:
    """A command."""


def test_a_handler_may_name_a_class_that_stands_further_down() -> None:
    """Found by the demo: its client stood below its handler, which then was called without it."""
    app = App("shop", owner="team")
    app.handler(Send)(late)
    globals()["Late"] = type("Late", (), {})
    try:
        assert set(app.handlers[Send].wants.parameters) == {"ctx", "client"}
        assert app.problems() == []
    finally:
        del globals()["Late"]


def test_a_handler_whose_annotations_cannot_be_read_is_a_problem() -> None:
    app = App("shop", owner="team")
    app.handler(Send)(late)
    (problem,) = app.problems()
    assert problem.key == "handler of Send"
    assert "'Late' is not defined" in problem.what


async def late(command: Send, ctx: Context, client: Late) -> None:
    """A handler."""
