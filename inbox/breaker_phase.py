"""The states of a breaker. No IO."""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    """Closed lets everybody through, open nobody, half open one who is tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
