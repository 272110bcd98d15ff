"""Who may do what to an event: one question, asked before an operator's act, answered and audited either way.

The policy is whatever function the caller gives; `everybody` is the one until there is another. An allowed act's audit
line goes into the act's own transaction. A denied one's goes into one of its own, before the error is raised, so that
no rollback takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

from ..inbox import audit
from ..inbox.audit import AuditLine
from ..inbox.errors import TidegateError
from ..inbox.safe_text import Scalar
from ..inbox.store import Store


@final
@dataclass(frozen=True, slots=True)
class Place:
    """What an act is about, as a policy and the audit see it."""

    consumer: str
    handler: str = ""
    tenant: str | None = None
    brand: str | None = None
    failure_id: int | None = None
    event_id: bytes | None = None
    correlation_id: str = ""
    operation_id: str = ""


Permit: TypeAlias = Callable[[str, str, Place], bool]
"""(actor, verb, place) -> whether they may."""


def everybody(actor: str, verb: str, place: Place) -> bool:
    """Whoever can reach the database may: the actor is the operating system's user, and stands in the audit."""
    return True


class NotPermitted(TidegateError):
    """The policy says no; that it did stands in the audit."""


@final
@dataclass(frozen=True, slots=True)
class Act:
    """An operator's act: a verb, who does it and why, with details for the audit (never payload)."""

    verb: str
    actor: str
    reason: str
    details: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])

    def __post_init__(self) -> None:
        if not self.actor or not self.reason.strip():
            raise TidegateError(f"{self.verb}: it needs somebody who does it and a reason why")

    def line(self, place: Place, *, allowed: bool = True) -> AuditLine:
        """Its line in the audit."""
        return AuditLine(
            act=self.verb,
            actor=self.actor,
            allowed=allowed,
            consumer=place.consumer,
            handler=place.handler,
            failure_id=place.failure_id,
            event_id=place.event_id,
            correlation_id=place.correlation_id,
            operation_id=place.operation_id,
            tenant=place.tenant,
            brand=place.brand,
            details={"why": self.reason, **self.details},
        )


async def ask(store: Store, permit: Permit, act: Act, place: Place) -> None:
    """Before the act, outside any transaction. Raises NotPermitted once the denial is written."""
    if permit(act.actor, act.verb, place):
        return
    async with store.transaction() as conn:
        await audit.write(conn, store.tables, act.line(place, allowed=False))
    raise NotPermitted(f"{act.actor} may not {act.verb} in {place.consumer}/{place.handler or '(all)'}")
