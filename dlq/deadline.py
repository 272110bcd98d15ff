"""What ends a handler at its deadline, and where it stood then. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple, final

from ..inbox.errors import TransientError


class Frame(NamedTuple):
    """Where code stands: module, function and line. No values."""

    module: str
    function: str
    line: int


@final
class DeadlineError(TransientError):
    """A handler ran past its deadline. Nobody raised this, so it carries where the handler stood, outermost first."""

    def __init__(self, message: str, stood_at: Sequence[Frame] = ()) -> None:
        super().__init__(message)
        self.stood_at = tuple(stood_at)


def frame_of(frame: FrameType, line: int) -> Frame:
    """What is told of a frame."""
    return Frame(str(frame.f_globals.get("__name__", "?")), frame.f_code.co_qualname, line)
