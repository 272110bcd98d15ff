"""The audit's chain of hashes: what was written cannot be changed, removed, inserted or moved without being found."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tidegate.inbox import audit, audit_seal
from tidegate.inbox.audit import AuditLine
from tidegate.inbox.audit_seal import EMPTY, Head, Verified
from tidegate.inbox.database import Database
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.tables import Tables

HONEST = "INSERT INTO tidegate.audit (act, actor, allowed, consumer, handler, correlation_id, operation_id"
TAMPER = "SET LOCAL session_replication_role = replica"
"""What a superuser does to switch the triggers off."""


async def write(db: Database, t: Tables, *acts: str) -> list[int]:
    async with db.transaction() as conn:
        return [await audit.write(conn, t, AuditLine(act=act, actor="ann", details={"n": 1})) for act in acts]


async def seal_once(db: Database, t: Tables) -> tuple[Head, int]:
    async with db.transaction() as conn:
        return await audit_seal.seal(conn, t)


async def seal(db: Database, t: Tables) -> Head:
    """Until every line has its seal: the server's other databases have transactions too, which hold the horizon."""
    while True:
        head, _ = await seal_once(db, t)
        if not (await verify(db, t)).unsealed:
            return head
        await asyncio.sleep(0)


async def verify(db: Database, t: Tables, known: Head | None = None) -> Verified:
    async with db.transaction() as conn:
        return await audit_seal.verify(conn, t, known)


async def tamper(db: Database, *statements: str) -> None:
    async with db.transaction() as conn:
        await conn.execute(sa.text(TAMPER))
        for statement in statements:
            await conn.execute(sa.text(statement))


async def test_an_untouched_audit_stands_and_what_is_not_sealed_is_said(db: Database, t: Tables) -> None:
    first = await write(db, t, "replay", "discard")
    assert (await verify(db, t)) == Verified(EMPTY, 0, tuple(first), ())
    head = await seal(db, t)
    (later,) = await write(db, t, "replay")
    assert (await verify(db, t)) == Verified(head, 2, (later,), ())
    assert await seal(db, t) != head
    assert (await verify(db, t, head)).problems == (), "the chain still leads through what was noted down"


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["UPDATE tidegate.audit SET actor = 'eve' WHERE id = 2"], "line 2 is not as it was sealed"),
        (["UPDATE tidegate.audit SET details = '{\"n\": 2}' WHERE id = 2"], "line 2 is not as it was sealed"),
        (["UPDATE tidegate.audit SET at = at - interval '1 us' WHERE id = 2"], "line 2 is not as it was sealed"),
        (["UPDATE tidegate.audit SET allowed = false WHERE id = 2"], "line 2 is not as it was sealed"),
        (["UPDATE tidegate.audit SET tenant = '' WHERE id = 2"], "line 2 is not as it was sealed"),
        (["DELETE FROM tidegate.audit WHERE id = 2"], "line 2 was removed"),
        (
            ["DELETE FROM tidegate.audit WHERE id = 2", "DELETE FROM tidegate.audit_seal WHERE n = 2"],
            "seals 2 to 2 are",
        ),
        (["DELETE FROM tidegate.audit_seal WHERE n = 2"], "seals 2 to 2 are"),
        (
            [f"{HONEST}, xid) VALUES ('replay', 'eve', true, '', '', '', '', 1)"],
            "line 4 was inserted",
        ),
        (
            [
                "CREATE TABLE public.two AS SELECT * FROM tidegate.audit WHERE id < 3",
                "DELETE FROM tidegate.audit WHERE id < 3",
                "UPDATE public.two SET id = 3 - id",
                "INSERT INTO tidegate.audit OVERRIDING SYSTEM VALUE SELECT * FROM public.two",
            ],
            "line 1 is not as it was sealed",
        ),
        (
            [
                "UPDATE tidegate.audit_seal SET audit_id = -audit_id",
                "UPDATE tidegate.audit_seal SET audit_id = CASE n WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE -audit_id END",
            ],
            "line 2 is not as it was sealed",
        ),
        (["UPDATE tidegate.audit_seal SET xid = 0 WHERE n = 2"], "seal 2 is out of order"),
    ],
)
async def test_what_was_done_to_a_sealed_line_is_found(
    db: Database, t: Tables, statements: list[str], problem: str
) -> None:
    """A superuser who switches the triggers off changes, removes, inserts and moves lines and seals."""
    for act in ("replay", "discard", "replay"):
        await write(db, t, act)
    await seal(db, t)
    await tamper(db, *statements)
    found = await verify(db, t)
    assert found.problems
    assert found.problems[0].startswith(problem), found.problems


async def test_an_end_that_was_cut_off_is_found_by_a_head_that_was_noted_down(db: Database, t: Tables) -> None:
    await write(db, t, "replay")
    await write(db, t, "discard")
    head = await seal(db, t)
    await tamper(db, "DELETE FROM tidegate.audit WHERE id = 2", "DELETE FROM tidegate.audit_seal WHERE n = 2")
    assert (await verify(db, t)).problems == (), "from within nothing is missing"
    assert "does not lead through" in (await verify(db, t, Head.parse(str(head)))).problems[0]


async def test_a_late_commit_with_a_lower_number_is_neither_left_out_nor_an_insertion(db: Database, t: Tables) -> None:
    """While an older transaction is open nothing behind it is sealed; its line then gets its place like any other."""
    async with db.transaction() as late:
        (number,) = [await audit.write(late, t, AuditLine(act="replay", actor="late"))]
        (behind,) = await write(db, t, "discard")
        assert behind > number
        assert await seal_once(db, t) == (EMPTY, 0), "the horizon stands at the open transaction"
        assert (await verify(db, t)).unsealed == (behind,)
    assert (await verify(db, t)).problems == ()
    head = await seal(db, t)
    assert head.n == 2
    assert await verify(db, t) == Verified(head, 2, (), ())


async def test_writers_and_sealers_in_any_order_make_one_whole_chain(db: Database, t: Tables) -> None:
    done = asyncio.Event()

    async def writer(n: int) -> None:
        for _ in range(15):
            async with db.transaction() as conn:
                await audit.write(conn, t, AuditLine(act="replay", actor=f"w{n}"))
                await conn.execute(sa.text("SELECT pg_sleep(random() * 0.01)"))
                await audit.write(conn, t, AuditLine(act="discard", actor=f"w{n}"))

    async def sealer() -> None:
        while not done.is_set():
            await seal_once(db, t)
            assert (await verify(db, t)).problems == ()

    sealing = asyncio.create_task(sealer())
    await asyncio.gather(*[writer(n) for n in range(6)])
    done.set()
    await sealing
    head = await seal(db, t)
    assert await verify(db, t) == Verified(head, 180, (), ())


async def test_a_pass_is_bounded_and_the_next_goes_on(db: Database, t: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound may fall between two lines of one transaction."""
    monkeypatch.setattr(audit_seal, "LINES_MAX", 2)
    await write(db, t, "a", "b", "c")
    await write(db, t, "d", "e")
    passes: list[int] = []
    while sum(passes) < 5:
        passes.append((await seal_once(db, t))[1])
    assert max(passes) == 2
    assert (await verify(db, t)).sealed == 5


async def test_a_database_that_was_loaded_into_another_cluster_goes_on_with_its_chain(db: Database, t: Tables) -> None:
    """Its lines carry transactions that this cluster has not reached, and new lines carry lower ones."""
    await write(db, t, "a")
    await write(db, t, "b")
    await seal(db, t)
    await write(db, t, "c")
    await tamper(
        db,
        "TRUNCATE tidegate.audit_seal",
        "UPDATE tidegate.audit SET xid = xid + 1000000000",
    )
    async with db.transaction() as conn:  # as the former cluster sealed the first two of them
        rows = (await conn.execute(sa.select(t.audit).where(t.audit.c.id < 3).order_by(t.audit.c.id))).mappings().all()
        head = EMPTY
        for n, row in enumerate(rows, 1):
            head = Head(n, audit_seal.digest_of(head.digest, n, row["xid"], 17, dict(row)))
            seal_of = {"n": n, "audit_id": row["id"], "xid": row["xid"], "system": 17, "digest": head.digest}
            await conn.execute(sa.insert(t.audit_seal).values(seal_of))
    await write(db, t, "d")
    assert await verify(db, t) == Verified(head, 2, (3, 4), ())
    assert (await seal(db, t)).n == 4
    await write(db, t, "e")
    assert (await seal(db, t)).n == 5
    assert (await verify(db, t, head)).problems == ()
    await tamper(db, f"{HONEST}, xid) VALUES ('replay', 'eve', true, '', '', '', '', 5)")
    assert "was inserted" in (await verify(db, t)).problems[0]


@pytest.mark.parametrize("statement", ["UPDATE {} SET n = n + 7", "DELETE FROM {}", "TRUNCATE {}"])
async def test_a_seal_is_never_changed_or_removed(db: Database, t: Tables, statement: str) -> None:
    await write(db, t, "replay")
    await seal(db, t)
    with pytest.raises(exc.DBAPIError, match="never changed or removed"):
        async with db.transaction() as conn:
            await conn.execute(sa.text(statement.format("tidegate.audit_seal")))


@pytest.mark.parametrize("text", ["", "17", "17:xyz", "-1:" + "0" * 64, "1:" + "0" * 63])
def test_a_head_is_a_number_and_a_hash(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no head"):
        Head.parse(text)
