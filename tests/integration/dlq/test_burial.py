"""Rows and letters in a real PostgreSQL: byte for byte, one of each, and writable whatever the exception said."""

from __future__ import annotations

import datetime
import hashlib

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tests.integration.dlq.conftest import REJECTED, Graveyard
from tidegate.dlq.burial import Burial
from tidegate.dlq.failure_text import dead
from tidegate.dlq.letter import read_letter
from tidegate.inbox import outbox
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.outcome import Reason

HOME = Partition("shop.orders", 3)


async def letters(graveyard: Graveyard) -> list[outbox.Outgoing]:
    async with graveyard.db.transaction() as conn:
        return await outbox.unpublished(conn, graveyard.t, "billing", [HOME], limit=100)


async def test_every_byte_value_and_null_comes_out_as_it_went_in(graveyard: Graveyard) -> None:
    """Two records of one key, with every byte value, nulls and repeated headers, both have whole rows and letters.

    Case: B33
    Parts: real (PostgreSQL)
    Red when: dlq/burial.py gives record.key as the payload
    """
    every_byte = bytes(range(256))
    headers = (("h", every_byte), ("h", b""), ("h", None), ("\u00fc", b"\xff"))
    first = Event(None, Record("shop.orders", 3, 1, b"\xff\x00", every_byte, headers, 5, 1), event_id=b"1" * 16)
    second = Event(None, Record("shop.orders", 3, 2, b"\xff\x00", None, (), -1, 0), event_id=b"2" * 16)
    await graveyard.bury(first, second)
    found = await letters(graveyard)
    assert [(row.key, row.payload) for row in found] == [(b"\xff\x00", every_byte), (b"\xff\x00", None)]
    read = [read_letter(Record(row.topic, 0, 0, row.key, row.payload, row.headers)) for row in found]
    assert [(letter.headers, letter.origin_offset) for letter in read] == [(headers, 1), ((), 2)]
    async with graveyard.db.transaction() as conn:
        rows = (await conn.execute(sa.select(graveyard.t.failure).order_by(graveyard.t.failure.c.id))).all()
    assert [(row.key, row.value) for row in rows] == [(b"\xff\x00", every_byte), (b"\xff\x00", None)]


async def test_a_burial_that_is_repeated_leaves_one_row_and_one_letter(graveyard: Graveyard) -> None:
    first = await graveyard.bury(graveyard.event(1))
    again = await graveyard.bury(graveyard.event(1))
    assert first == again
    assert len(await letters(graveyard)) == 1


async def test_a_letter_too_large_for_its_topic_leaves_its_payload_in_the_row(graveyard: Graveyard) -> None:
    """The value of a claim letter is found whole in the inbox, by its hash.

    Case: B31
    Parts: real (PostgreSQL)
    Red when: dlq/letter.py's _fits returns True
    """
    value = b"\x00v" * 499_500
    await graveyard.bury(graveyard.event(1, value=value))
    (row,) = await letters(graveyard)
    letter = read_letter(Record(row.topic, 0, 0, row.key, row.payload, row.headers))
    assert (letter.value, letter.claim) == (None, hashlib.sha256(value).hexdigest())
    async with graveyard.db.transaction() as conn:
        assert await conn.scalar(sa.select(graveyard.t.failure.c.value)) == value


@pytest.mark.parametrize(
    "text", ["a\0b", "\ud800 alone", "pair \ud83d\ude00", "\\u0000 as text", "x" * 100_000, "\x1b[31m", "\u202egnp"]
)
async def test_a_failure_can_be_written_whatever_the_exception_says(graveyard: Graveyard, text: str) -> None:
    """NUL, lone surrogates and text without end in an exception never keep its event from being buried.

    Case: B43
    Parts: real (PostgreSQL)
    Red when: inbox/safe_text.py's safe_text returns its argument
    """
    event = graveyard.event(1, tenant=text)
    event.brand = text
    await graveyard.bury(event, dead=dead(Reason.REJECTED, ValueError(text), event.record))
    (row,) = await letters(graveyard)
    letter = read_letter(Record(row.topic, 0, 0, row.key, row.payload, row.headers))
    assert letter.exception_type == "ValueError"
    assert "\0" not in (letter.exception_message or "\0")


async def test_a_real_integrity_error_leaves_no_value_in_row_letter_or_audit(graveyard: Graveyard) -> None:
    """The unique violation of a real PostgreSQL is told by SQLSTATE and constraint; the card is nowhere.

    Case: B38
    Parts: real (PostgreSQL)
    Red when: dlq/failure_text.py leaves "sqlalchemy" out of _DATABASE_ROOTS
    """
    insert = sa.text("INSERT INTO public.cards (card) VALUES (:card)")
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.text("CREATE TABLE public.cards (card text PRIMARY KEY)"))
        await conn.execute(insert, {"card": "4111-test-card"})
    with pytest.raises(IntegrityError) as failed:
        async with graveyard.db.transaction() as conn:
            await conn.execute(insert, {"card": "4111-test-card"})
    event = graveyard.event(1)
    outcome = dead(Reason.REJECTED, failed.value, event.record)
    assert outcome.why == "SQLSTATE 23505, constraint cards_pkey, table cards"
    await graveyard.bury(event, dead=outcome)
    (letter,) = await letters(graveyard)
    async with graveyard.db.transaction() as conn:
        row = (await conn.execute(sa.select(graveyard.t.failure))).one()
    assert "4111" not in repr(letter)
    assert "4111" not in repr(row)


async def test_a_letter_after_a_replay_stands_beside_the_first(graveyard: Graveyard) -> None:
    burial = Burial("billing", graveyard.clock)
    buried = burial.bury(graveyard.place(), "revenue", graveyard.event(1), REJECTED, attempts=5)
    assert buried.row.first_failed_at == datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    await graveyard.put([buried])
    assert [row.id for row in await letters(graveyard)] == [buried.letter.id]
