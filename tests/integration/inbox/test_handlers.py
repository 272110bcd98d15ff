"""A handler's number outlives its name: renamed, rolled back, gone, discarded and back."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.locks import until_blocked
from tidegate.inbox.database import Database
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.handlers import (
    RESERVED,
    Kind,
    gone_handlers,
    known_handlers,
    mark_discarded,
    register_handlers,
)
from tidegate.inbox.tables import Tables


async def register(db: Database, t: Tables, *names: str, **renamed: str) -> dict[str, int]:
    """Start an app with these handlers; `new=old` says what one of them was called."""
    async with db.transaction() as conn:
        return await register_handlers(conn, t, "billing", names, renamed)


async def gone(db: Database, t: Tables, *names: str, **renamed: str) -> list[str]:
    async with db.transaction() as conn:
        return list(await gone_handlers(conn, t, "billing", names, renamed))


async def test_a_renamed_handler_keeps_its_number_however_often_and_by_however_many_it_is_said(
    db: Database, t: Tables
) -> None:
    before = await register(db, t, "old")
    started = await asyncio.gather(*[register(db, t, "new", new="old") for _ in range(4)])
    assert [ids["new"] for ids in started] == [before["old"]] * 4
    assert (await register(db, t, "new"))["new"] == before["old"]
    assert await gone(db, t, "new") == []


async def test_an_app_from_before_the_renaming_finds_its_handler_again(db: Database, t: Tables) -> None:
    """Rolled back, rolled forward, and with the declaration taken out at last: always the same number."""
    number = (await register(db, t, "old"))["old"]
    for _ in range(2):
        assert (await register(db, t, "new", new="old"))["new"] == number
        assert await gone(db, t, "old") == []
        assert (await register(db, t, "old"))["old"] == number
    assert await gone(db, t, "new", new="old") == []
    assert (await register(db, t, "new"))["new"] == number


async def test_a_new_handler_may_take_the_old_name_of_another(db: Database, t: Tables) -> None:
    number = (await register(db, t, "old"))["old"]
    await register(db, t, "new", new="old")
    both = await register(db, t, "new", "old")
    assert both["new"] == number
    assert both["old"] != number


async def test_two_handlers_do_not_become_one(db: Database, t: Tables) -> None:
    """What the new name has done already, and what the old one has, would be forgotten: nothing is renamed."""
    both = await register(db, t, "old", "new")
    with pytest.raises(ConfigurationError, match="discard old"):
        await register(db, t, "new", new="old")
    async with db.transaction() as conn:
        assert await known_handlers(conn, t, "billing") == both
        await mark_discarded(conn, t, both["old"])
    assert (await register(db, t, "new", new="old"))["new"] == both["new"]


async def test_a_gone_handler_is_named_until_it_is_discarded_and_counts_again_when_it_is_back(
    db: Database, t: Tables
) -> None:
    ids = await register(db, t, "kept", "gone")
    assert await gone(db, t, "kept") == ["gone"]
    async with db.transaction() as conn:
        await mark_discarded(conn, t, ids["gone"])
    assert await gone(db, t, "kept") == []
    assert await register(db, t, "kept", "gone") == ids
    assert await gone(db, t, "kept") == ["gone"]
    assert RESERVED in ids


async def of_kind(db: Database, t: Tables, kind: Kind, name: str = "x", **renamed: str) -> dict[str, int]:
    """Start a release that has one handler of this kind."""
    async with db.transaction() as conn:
        return await register_handlers(conn, t, "billing", [name], renamed, {name: kind})


@pytest.mark.parametrize("first", ["command", "projection"])
@pytest.mark.parametrize("name", ["x", "was_x"])
async def test_of_two_releases_that_start_at_once_with_other_kinds_one_is_refused(
    db: Database, t: Tables, first: Kind, name: str
) -> None:
    """The second one waits for the first one's row, made or renamed, and looks again behind it."""
    other: Kind = "projection" if first == "command" else "command"
    renamed = {} if name == "x" else {"x": name}
    if renamed:
        await of_kind(db, t, first, name)
    async with db.transaction() as conn:
        ids = await register_handlers(conn, t, "billing", ["x"], renamed, {"x": first})
        second = asyncio.ensure_future(of_kind(db, t, other))
        await until_blocked(db)
    with pytest.raises(ConfigurationError, match=f"'x' as a {first}"):
        await second
    assert await of_kind(db, t, first) == ids


async def test_whoever_waited_for_a_start_that_failed_is_of_its_own_kind(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        await register_handlers(conn, t, "billing", ["x"], {}, {"x": "command"})
        second = asyncio.ensure_future(of_kind(db, t, "projection"))
        await until_blocked(db)
        await conn.rollback()
    await second
    with pytest.raises(ConfigurationError, match="'x' as a projection"):
        await of_kind(db, t, "command")


async def test_an_app_from_before_a_renaming_finds_its_handler_only_where_it_is_of_its_kind(
    db: Database, t: Tables
) -> None:
    await of_kind(db, t, "command", "old")
    await of_kind(db, t, "command", "new", new="old")
    with pytest.raises(ConfigurationError, match="'new' as a command"):
        await of_kind(db, t, "projection", "old")
    assert await of_kind(db, t, "command", "old")
