"""`tidegate dlq`: each verb as an operator types it, on letters of a real database."""

from __future__ import annotations

import asyncio
import base64
import getpass
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.avro import body, framed, save
from tests.support.cli import Ended, environment, tidegate
from tests.support.review_desk import ReviewDesk
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.event import Event
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.tables import tables

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "string", "mask": False},
        {"name": "card", "type": "string"},
        {"name": "cents", "type": "long"},
    ],
}
CARD = "4111-1111"


class Operator:
    """Somebody at the command line of a graveyard."""

    def __init__(self, graveyard: Graveyard, url: str, folder: Path) -> None:
        self.graveyard = graveyard
        self.folder = folder
        self.variables = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_REGISTRY_URL": str(folder)}
        save(folder, {1: ORDER})

    async def types(self, *arguments: str, **variables: str) -> Ended:
        """Run `tidegate dlq ...`."""
        return await asyncio.to_thread(tidegate, "dlq", *arguments, variables=self.variables | variables)

    async def says(self, *arguments: str, **variables: str) -> str:
        """The same, which must work; what it prints."""
        ended = await self.types(*arguments, **variables)
        assert ended.code == 0, ended.err + ended.out
        return ended.out

    async def told(self, *arguments: str) -> Any:
        """The same as JSON."""
        return json.loads(await self.says(*arguments, "--json"))

    def order(self, offset: int, **more: Any) -> Event[None]:
        """An order in framed Avro."""
        value = framed(1, body(ORDER, {"order_id": f"o-{offset}", "card": CARD, "cents": 100})).value
        return self.graveyard.event(offset, value=value, **more)

    async def column(self, columns: str, number: int) -> Any:
        """What stands in a row."""
        async with self.graveyard.db.transaction() as conn:
            row = (await conn.execute(sa.text(f"SELECT {columns} FROM tidegate.failure WHERE id = {number}"))).one()
        return row[0] if len(row) == 1 else tuple(row)

    async def acts(self) -> list[tuple[Any, ...]]:
        """(act, allowed) of each audit line."""
        return [(act, allowed) for act, _, allowed, *_ in await ReviewDesk(self.graveyard).audit()]


@pytest.fixture
async def operator(migrated_url: str, tmp_path: Path) -> AsyncIterator[Operator]:
    """Somebody at the command line of a database of this test's own."""
    t = tables()
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=2, tx_pool_max=1))
    try:
        async with database.transaction() as conn:
            handlers = await register_handlers(conn, t, "billing", ["revenue", "invoices"])
        yield Operator(Graveyard(database, t, handlers), migrated_url, tmp_path)
    finally:
        await database.close()


async def test_letters_are_counted_by_what_they_have_in_common_and_notes_stay(operator: Operator) -> None:
    graveyard = operator.graveyard
    await graveyard.bury(*[operator.order(n, tenant="acme") for n in range(3)])
    await graveyard.bury(operator.order(9), dead=Dead(Reason.TIMEOUT, "too long"), handler="invoices")
    first, second = await operator.told("groups")
    assert (first["letters"], first["reason"], first["handler"]) == (3, "rejected", "revenue")
    assert (second["letters"], second["reason"], second["exception_type"]) == (1, "timeout", "")
    note = ("note", first["group"], "--text", "fixed in 1.4, replay on Monday")
    unsaid = await operator.types(*note)
    assert (unsaid.code, "--reason" in unsaid.err) == (2, True)
    assert (await operator.types(*note, "--reason", " ")).code == 70
    assert "noted on" in await operator.says(*note, "--reason", "found the bug")
    assert "replay on Monday" in await operator.says("groups")
    again = (await operator.told("groups", "--handler", "revenue"))[0]
    assert [(note["actor"], note["text"]) for note in again["notes"]] == [
        (f"os:{getpass.getuser()}", "fixed in 1.4, replay on Monday")
    ]
    by_tenant = await operator.told("groups", "--by", "tenant", "--by", "hour")
    assert [(group["tenant"], group["letters"]) for group in by_tenant] == [("acme", 3), (None, 1)]
    no_tenant = by_tenant[1]["group"]
    assert (await operator.told("discard", "--group", no_tenant, "--reason", "x"))["done"] == 1
    assert (await operator.told("discard", "--group", first["group"], "--reason", "x"))["done"] == 3
    unknown = await operator.types("note", "hre-0123456789", "--text", "x", "--reason", "y")
    assert (unknown.code, "no letter is in a group" in unknown.err) == (70, True)
    assert "is no group's name" in (await operator.types("discard", "--group", "x", "--reason", "y")).err


async def test_a_letter_is_masked_but_for_what_its_schema_shows(operator: Operator) -> None:
    """Without --reveal no value of the event is printed; with it there is a reason, and a line in the audit.

    Case: B38
    Parts: real (PostgreSQL)
    Red when: dlq/looking.py's ReadValue.shown does not look at `reveal`
    """
    (number,) = await operator.graveyard.bury(operator.order(7, key=b"ann@example.com"))
    shown = await operator.types("show", str(number))
    assert CARD not in shown.out + shown.err
    assert "ann@example.com" not in shown.out
    fields = await operator.told("show", str(number))
    assert fields["value"] == {"order_id": "o-7", "card": "<text>", "cents": "<number>"}
    assert (fields["value_form"], fields["key"]) == ("avro shop.Order", "<bytes>")
    assert await operator.acts() == []
    refused = await operator.types("show", str(number), "--reveal")
    assert (refused.code, "a reveal needs a reason" in refused.err) == (78, True)
    revealed = await operator.told("show", str(number), "--reveal", "--reason", "ticket 7")
    assert (revealed["value"]["card"], revealed["key"]) == (CARD, "ann@example.com")
    assert (revealed["audit"][0]["act"], revealed["audit"][0]["why"]) == ("dlq_reveal", "ticket 7")


async def test_what_no_codec_reads_is_shown_in_hex_when_it_is_revealed(operator: Operator) -> None:
    numbers = await operator.graveyard.bury(
        operator.graveyard.event(1, value=b"\xff\x00secret"), operator.graveyard.event(2, value=b'{"a": {"b": 1}}'),
        operator.graveyard.event(3, value=None), operator.graveyard.event(4, value=b"\0\0\0\0\x09cut"),
    )  # fmt: skip
    forms = [(await operator.told("show", str(number)))["value_form"] for number in numbers]
    assert forms == ["bytes", "json", "tombstone", "bytes"]
    assert (await operator.told("show", str(numbers[1])))["value"] == {"a": {"b": "<number>"}}
    hexed = await operator.told("show", str(numbers[0]), "--reveal", "--reason", "x")
    assert hexed["value"] == b"\xff\x00secret".hex()


async def test_a_discard_is_a_dry_run_until_it_is_said(operator: Operator) -> None:
    numbers = await operator.graveyard.bury(*[operator.order(n) for n in range(3)])
    dry = await operator.types("discard", "--handler", "revenue", "--reason", "test orders")
    assert (dry.code, "would discard 3 letters" in dry.out, "3 x rejected" in dry.out) == (0, True, True)
    assert "--yes does it" in dry.err
    assert await operator.acts() == []
    assert "discarded 3 letters" in await operator.says("discard", "--all", "--reason", "test orders", "--yes")
    again = await operator.types("discard", str(numbers[0]), "999", "--reason", "x", "--yes")
    assert again.code == 1
    assert "it was discarded already" in again.out
    assert "no letter is known under this id" in again.out
    assert await operator.acts() == [("dlq_discard", True)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--reason", "x"), "it is not said which letters"),
        (("1", "--all", "--reason", "x"), "letters are named, and filtered too"),
        (("1",), "--reason"),
        (("--header", "x", "--reason", "y"), "is no header"),
        (("1", "--reason", " "), "a reason why"),
        (("x y", "--reason", "z"), "is no letter's name"),
    ],
)
async def test_half_a_command_line_is_told_what_is_missing(
    operator: Operator, arguments: tuple[str, ...], why: str
) -> None:
    ended = await operator.types("discard", *arguments)
    assert ended.code != 0
    assert why in ended.err + ended.out


async def test_a_filter_that_meets_nothing_says_so(operator: Operator) -> None:
    assert "nothing matches" in await operator.says("discard", "--tenant", "nobody", "--reason", "x", "--yes")


async def test_a_replay_is_taken_back(operator: Operator) -> None:
    (number,) = await operator.graveyard.bury(operator.order(1))
    await operator.graveyard.requeue(number)
    assert "cancelled 1 letter" in await operator.says("cancel", "--all", "--reason", "too early", "--yes")
    assert await operator.column("state, reason, message", number) == ("dead", "cancelled", "cancelled: too early")
    assert "cancelled" in await operator.says("list")


async def test_a_value_is_repaired_in_the_editor_and_the_received_one_stays(operator: Operator) -> None:
    """The editor gets the value as text; what it leaves is checked by the schema, and stored beside the original.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: inbox/repairs.py's edit writes `value` instead of `edited_value`
    """
    event = operator.order(7)
    (number,) = await operator.graveyard.bury(event)
    editor = operator.folder / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/100/250/" "$1"\n')
    editor.chmod(0o700)
    dry = await operator.says("edit", str(number), "--reason", "wrong price", EDITOR=str(editor))
    assert f"would repair {number}: cents" in dry
    assert await operator.column("edited_value", number) is None
    done = await operator.says("edit", str(number), "--reason", "wrong price", "--yes", EDITOR=str(editor))
    assert f"repaired {number}: cents" in done
    repaired = framed(1, body(ORDER, {"order_id": "o-7", "card": CARD, "cents": 250})).value
    stored = await operator.column("value, edited_value, octet_length(edit_id), state", number)
    assert stored == (event.record.value, repaired, 16, "dead")
    shown = await operator.told("show", str(number))
    assert (shown["repaired"]["card"], shown["repaired_fields"]) == ("<text>", ["cents"])
    lines = [json.dumps(line, default=str) for line in await ReviewDesk(operator.graveyard).audit()]
    assert not [line for line in lines if CARD in line or "250" in line.split("sha256")[0]]


async def test_a_repair_comes_from_a_file_and_is_taken_back(operator: Operator) -> None:
    (number,) = await operator.graveyard.bury(operator.order(7))
    file = operator.folder / "value"
    file.write_text(json.dumps({"order_id": "o-7", "card": CARD, "cents": 250}))
    await operator.says("edit", str(number), "--value-file", str(file), "--reason", "x", "--yes")
    file.write_bytes(await operator.column("value", number))
    back = await operator.says("edit", str(number), "--value-file", str(file), "--raw", "--reason", "x", "--yes")
    assert f"took the repair of {number} back" in back
    assert await operator.column("edited_value, edit_id", number) == (None, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it does not fit its schema"),
        ('{"order_id": "o-7", "card": "4111-1111"}', "it does not fit its schema"),
        ('{"order_id": "o-7", "card": "4111-1111", "cents": "a lot"}', "it does not fit its schema"),
        ('{"order_id": "o-7", "card": "4111-1111", "cents": 1, "more": 2}', "a field that its schema does not have"),
        ('{"order_id": "o-7", "card": "4111-1111", "cents": 100}', "nothing was changed"),
    ],
)
async def test_a_repair_that_does_not_fit_is_refused_without_its_value(operator: Operator, text: str, why: str) -> None:
    (number,) = await operator.graveyard.bury(operator.order(7))
    file = operator.folder / "value"
    file.write_text(text)
    ended = await operator.types("edit", str(number), "--value-file", str(file), "--reason", "x", "--yes")
    assert (ended.code, why in ended.err) == (70, True), ended.err
    assert CARD not in ended.err + ended.out
    assert "a lot" not in ended.err
    assert await operator.column("edited_value", number) is None


async def test_letters_are_exported_whole_and_the_audit_knows(operator: Operator) -> None:
    graveyard = operator.graveyard
    numbers = await graveyard.bury(
        operator.order(1), graveyard.event(2, value=b"\xff\0"), graveyard.event(3, value=None)
    )
    file = operator.folder / "letters.ndjson"
    ended = await operator.types("export", "--all", "--reason", "for the auditors", "--output", str(file))
    assert (ended.code, "exported 3 letters" in ended.err) == (0, True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == numbers
    assert base64.b64decode(lines[1]["value_base64"]) == b"\xff\0"
    assert lines[2]["value_base64"] is None
    assert lines[0]["headers"][0] == {"name": "ce_id", "value_base64": base64.b64encode(b"o-1").decode()}
    assert (file.stat().st_mode & 0o777) == 0o600
    assert (await operator.types("export", "--all", "--reason", "x", "--output", str(file))).code == 78
    piped = await operator.says("export", str(numbers[0]), "--reason", "x")
    assert json.loads(piped)["id"] == numbers[0]
    assert await operator.acts() == [("dlq_export", True)] * 2, "one act, one line"
    first, second = [details for *_, details in await ReviewDesk(graveyard).audit()]
    assert (first["why"], first["letters"], first["failure_ids"]) == ("for the auditors", 3, numbers)
    assert (second["letters"], second["failure_ids"]) == (1, numbers[:1])


async def test_an_export_that_nobody_reads_to_its_end_says_that_it_is_not_whole(operator: Operator) -> None:
    await operator.graveyard.bury(*[operator.order(n) for n in range(3)])
    ended = await operator.types("export", "--all", "--reason", "x", "--output", "/dev/full")
    assert ended.code == 78  # it is there already
    full = operator.folder / "full"
    full.symlink_to("/dev/full")
    assert (await operator.types("export", "--all", "--reason", "x", "--output", str(full))).code == 78
    command = [sys.executable, "-m", "tidegate.consumers.cli", "dlq", "export", "--all", "--reason", "x"]
    with Path("/dev/full").open("wb") as nowhere:
        done = await asyncio.to_thread(
            subprocess.run, command, stdout=nowhere, stderr=subprocess.PIPE, text=True, check=False,
            env=environment(operator.variables),
        )  # fmt: skip
    assert (done.returncode, "the export is not whole" in done.stderr) == (70, True), done.stderr


async def test_what_must_not_be_kept_is_erased_and_cannot_be_replayed(operator: Operator) -> None:
    graveyard = operator.graveyard
    (number, other) = await graveyard.bury(operator.order(7, key=b"ann"), operator.order(8, key=b"bob"))
    dry = await operator.says("redact", "--key", "ann", "--reason", "she asked")
    assert "would redact 1 letter" in dry
    done = await operator.says("redact", "--key", "ann", "--reason", "she asked", "--yes")
    assert "redacted 1 letter" in done
    assert "until its retention ends" in done
    assert await operator.column("key, value, message, redacted_at IS NULL", number) == (None, None, "", False)
    assert await operator.column("redacted_at IS NULL", other) is True
    replayed = await operator.types("replay", str(number), "--reason", "x", "--yes")
    assert replayed.code != 0
    assert "erased" in replayed.out + replayed.err
    shown = await operator.told("show", str(number), "--reveal", "--reason", "x")
    assert (shown["value_form"], shown["value"], shown["key"]) == ("erased", None, None)


async def test_a_letter_of_an_event_that_was_handled_since_is_erased_too(operator: Operator) -> None:
    (number,) = await operator.graveyard.bury(operator.order(7, key=b"ann"))
    async with operator.graveyard.db.transaction() as conn:
        await conn.execute(sa.text(f"DELETE FROM tidegate.failure WHERE id = {number}"))
    told = await operator.told("redact", "--key", "ann", "--reason", "she asked", "--yes")
    assert (told["done"], told["beside"]["letters"]) == (0, 1)
    async with operator.graveyard.db.transaction() as conn:
        assert (await conn.execute(sa.text("SELECT key, payload FROM tidegate.outbox"))).one() == (None, None)


async def test_a_subject_is_found_by_its_header(operator: Operator) -> None:
    await operator.graveyard.bury(operator.order(7))
    assert (await operator.told("redact", "--subject", "ann", "--reason", "x"))["read"] == 0
    assert (await operator.told("redact", "--header", "ce_id=o-7", "--reason", "x"))["done"] == 1
