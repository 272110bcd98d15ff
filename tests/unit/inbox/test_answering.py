"""Whether the database answers, learned from commits that are sent anyway."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.inbox.answering import Answering


async def asked_by(answering: Answering, count: int = 1) -> list[asyncio.Task[bool]]:
    """So many questions that are open."""
    asked = [asyncio.ensure_future(answering.answered()) for _ in range(count)]
    await asyncio.sleep(0)
    return asked


async def test_one_commit_answers_all_who_asked_before_it() -> None:
    """Each of them asked before it was sent."""
    answering = Answering()
    asked = await asked_by(answering, 100)
    with answering.sending():
        pass
    assert await asyncio.gather(*asked) == [True] * 100


async def test_a_commit_that_was_on_its_way_answers_nobody_who_asks_meanwhile() -> None:
    """1. The commit is sent, and done. 2. The server goes away. 3. An error is judged. 4. The commit's answer is read.

    Case: B35
    Parts: none (pure)
    Red when: inbox/answering.py `sending` takes who asked when the commit came back, not when it was sent
    """
    answering = Answering()
    with answering.sending():
        asked = await asked_by(answering)
    assert await asyncio.gather(*asked) == [False]


async def test_a_commit_that_fails_and_no_commit_at_all_are_no_answers() -> None:
    """Then whoever asked has to look himself."""
    answering = Answering()
    asked = await asked_by(answering)
    with pytest.raises(OSError, match="gone"), answering.sending():
        raise OSError("gone")
    assert await asyncio.gather(*asked) == [False]
    assert await answering.answered() is False


async def test_who_leaves_takes_no_answer_from_the_others() -> None:
    """Each waits for himself.

    Case: B35
    Parts: none (pure)
    Red when: inbox/answering.py `_say` answers whoever has left, too
    """
    answering = Answering()
    leaving, staying = await asked_by(answering, 2)
    leaving.cancel()
    await asyncio.wait((leaving,))
    with answering.sending():
        pass
    assert await staying is True
