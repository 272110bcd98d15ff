"""The command line: every verb loads what it needs, hands it to a room, and says what came of it in words."""

from .entry import main

__all__ = ["main"]
