"""Events that wait for a person, with the calls behind them, as rows of a migrated database."""

from __future__ import annotations

import json
import uuid
from typing import Any

import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tidegate.dlq.permission import Gate
from tidegate.dlq.reach import unlimited
from tidegate.inbox import failure
from tidegate.inbox.failure_rows import Verdict, unknown
from tidegate.inbox.store import Store


class ReviewDesk:
    """Puts cases there, and reads what became of them."""

    def __init__(self, graveyard: Graveyard) -> None:
        self.graveyard = graveyard
        self.store = Store(graveyard.db, graveyard.t)
        self.gate = Gate(self.store, unlimited("ada"))

    async def effect(
        self, operation_id: str, *, state: str = "unknown", due_s: float = -1.0, owner: str = "invoices", **more: Any
    ) -> int:
        """A call's row; its number."""
        values: dict[str, Any] = {
            "identity": uuid.uuid4().bytes, "scope": "", "owner": owner, "name": "send-invoice",
            "operation_id": operation_id, "state": state, "rule": "review", "provider": "billing",
            "fingerprint": b"f" * 16, "attempt_id": uuid.uuid4().bytes, "key": f"key-{operation_id}",
            "consumer": "billing", "event_id": None, "due_s": due_s, "ended": state != "intended",
        } | more  # fmt: skip
        async with self.store.transaction() as conn:
            number: int = await conn.scalar(
                sa.text("""
                    INSERT INTO tidegate.effect (identity, scope, owner, name, operation_id, state, rule, provider,
                           fingerprint, attempt_id, key, consumer, event_id, deadline, due, ended_at)
                    VALUES (:identity, :scope, :owner, :name, :operation_id, :state, :rule, :provider, :fingerprint,
                            :attempt_id, :key, :consumer, :event_id,
                            clock_timestamp() + make_interval(secs => :due_s),
                            clock_timestamp() + make_interval(secs => :due_s),
                            CASE WHEN :ended THEN clock_timestamp() END)
                    RETURNING id
                """),
                values,
            )
        return number

    async def event(self, offset: int, effect_id: int | None = None, handler: str = "invoices") -> int:
        """A row of unknown outcome; its number."""
        verdict = Verdict("review" if effect_id is None else "unknown_effect", "nobody knows")
        graveyard = self.graveyard
        row = unknown(
            graveyard.place(handler), graveyard.event(offset), verdict,
            attempts=1, now=graveyard.clock.now(), effect_id=effect_id,
        )  # fmt: skip
        async with self.store.transaction() as conn:
            (put,) = await failure.put(conn, self.store.tables, [row])
        return put.id

    async def case(self, offset: int) -> tuple[int, int]:
        """An event with a call that nobody knows the end of: the numbers of both."""
        effect_id = await self.effect(f"o-{offset}")
        return await self.event(offset, effect_id), effect_id

    async def row(self, failure_id: int) -> tuple[Any, ...] | None:
        """(state, row_version), None where it is gone."""
        return await self._one(f"SELECT state, row_version FROM tidegate.failure WHERE id = {failure_id}")

    async def call(self, effect_id: int) -> dict[str, Any]:
        """What stands of a call."""
        found = await self._one(f"SELECT to_jsonb(e) FROM tidegate.effect e WHERE id = {effect_id}")
        assert found is not None
        return json.loads(found[0]) if isinstance(found[0], str) else found[0]

    async def audit(self) -> list[tuple[Any, ...]]:
        """(act, actor, allowed, failure_id, details) of every line."""
        async with self.store.look() as conn:
            rows = await conn.execute(
                sa.text("SELECT act, actor, allowed, failure_id, details FROM tidegate.audit ORDER BY id")
            )
            return [tuple(row) for row in rows]

    async def lane(self) -> int:
        """How many rows hold lanes."""
        found = await self._one("SELECT coalesce(sum(waiting), 0) FROM tidegate.parked_key")
        assert found is not None
        return int(found[0])

    async def claims(self) -> int:
        """How many events are claimed."""
        found = await self._one("SELECT count(*) FROM tidegate.claim_1")
        assert found is not None
        return int(found[0])

    async def _one(self, query: str) -> tuple[Any, ...] | None:
        async with self.store.look() as conn:
            row = (await conn.execute(sa.text(query))).one_or_none()
        return None if row is None else tuple(row)
