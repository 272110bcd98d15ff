"""`tidegate dlq`: group, note, show, discard, cancel, redact, export, edit. Payload is masked unless it is revealed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from rich.markup import escape
from rich.table import Table

from ...dlq import acting, editing, exporting, grouping, looking
from ...dlq import replay as service
from ...dlq.acting import Deed, Errand
from ...dlq.erasing import Leftovers, erase_leftovers
from ...dlq.grouping import By, LetterGroup
from ...dlq.looking import Looked, ValueRefused
from ...dlq.permission import Gate
from ...dlq.selection import Filter
from ...inbox.errors import ConfigurationError, TidegateError
from ..app import Consumer
from ..letter_values import LetterValues
from .access import Access, open_gate
from .filtering import Chosen
from .letters import plain_entry, when
from .options import ERR, OUT

SHOWN_MAX: Final = 1_000
"""Letters that are named one by one in an answer; of a million nobody reads the numbers, the audit has them."""

TOLD_MAX: Final = 20
"""Refused letters that a table names; the rest is counted."""


# ------------------------------------------------------------------------------------------------------------ groups


async def list_groups(access: Access, wanted: Filter, by: Sequence[By], limit: int, as_json: bool) -> None:
    """Print the groups, the largest first."""
    async with open_gate(access, "dlq groups") as gate:
        found = await service.list_groups(gate, wanted, by, limit=limit)
    if as_json:
        OUT.print_json(json.dumps([_plain_group(group) for group in found]))
        return
    if not found:
        OUT.print("no letters")
        return
    table = Table(
        "group", "letters", *[each.value for each in found[0].by], "oldest", "latest", box=None, pad_edge=False
    )
    for group in found:
        times = (when(group.oldest), when(group.latest))
        table.add_row(group.name, str(group.letters), *[_common(group, each) for each in group.by], *times)
    OUT.print(table)
    for group in found:
        for note in group.notes:
            OUT.print(f"{group.name}  {when(note.at)} {escape(note.actor)}: {escape(note.text)}", soft_wrap=True)


def _common(group: LetterGroup, by: By) -> str:
    match by:
        case By.HANDLER:
            return f"{group.consumer}/{group.handler or '(all)'}"
        case By.REASON:
            return group.reason or ""
        case By.EXCEPTION:
            return escape(group.exception_type or "-")
        case By.TENANT:
            return escape(group.tenant or "-")
        case By.HOUR:
            return "" if group.hour is None else when(group.hour)


def _plain_group(group: LetterGroup) -> dict[str, Any]:
    fields = {"consumer": group.consumer, "handler": group.handler, "reason": group.reason}
    fields |= {"exception_type": group.exception_type, "tenant": group.tenant}
    notes = [{"at": when(note.at), "actor": note.actor, "text": note.text} for note in group.notes]
    return {
        "group": group.name, "by": [each.value for each in group.by], "letters": group.letters, **fields,
        "hour": None if group.hour is None else when(group.hour), "oldest": when(group.oldest),
        "latest": when(group.latest), "notes": notes,
    }  # fmt: skip


async def leave_note(access: Access, group: str, text: str, reason: str) -> None:
    """Leave a note on a group."""
    async with open_gate(access, "dlq") as gate:
        found = await grouping.note(gate.store, group, text, access.caller.actor, reason, access.caller)
    OUT.print(f"noted on {group}: {found.letters} letters")


# -------------------------------------------------------------------------------------------------------------- show


async def show(
    access: Access, consumers: Mapping[str, Consumer], reference: str, reason: str | None, as_json: bool
) -> None:
    """Print one letter with its history; with a reason its payload is revealed."""
    values = LetterValues(access.settings.codec_settings(), consumers)
    async with open_gate(access, "dlq") as gate:
        if reason is None:
            looked = await looking.look(gate.store, access.caller.actor, reference, values.read, access.caller)
        else:
            looked = await looking.reveal(
                gate.store, access.caller.actor, reason, reference, values.read, access.caller
            )
    fields = _fields(looked)
    history = [
        {"at": when(line.at), "act": line.line.act, "actor": line.line.actor,
         "why": str(line.line.details.get("why", ""))}
        for line in looked.audit
    ]  # fmt: skip
    if as_json:
        OUT.print_json(json.dumps(fields | {"audit": history}))
        return
    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        table.add_row(f"[bold]{name}[/bold]", "-" if value is None else escape(text))
    OUT.print(table)
    for line in history:
        OUT.print(f"{line['at']}  {line['act']} by {escape(line['actor'])}: {escape(line['why'])}")
    if not looked.revealed:
        ERR.print("the payload is masked: --reveal --reason WHY shows it, and stands in the audit")


def _fields(looked: Looked) -> dict[str, Any]:
    published = None if looked.published_at is None else when(looked.published_at)
    fields = plain_entry(looked.entry) | {"published_at": published, "value_form": looked.form}
    if looked.problem is not None:
        fields["value_problem"] = looked.problem
    fields |= {"key": looked.key, "value": looked.value, "headers": [list(header) for header in looked.headers]}
    if looked.repaired is not None:
        fields |= {"repaired": looked.repaired, "repaired_fields": list(looked.repaired_fields)}
    return fields


# -------------------------------------------------------------------------------------------- discard, cancel, redact


async def act(access: Access, deed: Deed, verb: str, chosen: Chosen, reason: str, yes: bool, as_json: bool) -> bool:
    """Do it to the letters, or say what would be done; False where anything was refused."""
    async with open_gate(access, "dlq") as gate:
        told = _Told(verb, dry_run=not yes)
        await _all_steps(gate, deed, await _errand(gate, chosen, reason, yes), told)
    told.tell(as_json)
    return not told.refused


async def redact(
    access: Access, deed: Deed, chosen: Chosen, subject: str | None, reason: str, yes: bool, as_json: bool
) -> bool:
    """Erase payloads, and what stands of them beside the rows. False where anything was refused."""
    if subject is not None:
        if chosen.filter.header is not None or chosen.references:
            raise ConfigurationError.of("--subject", "letters are named otherwise too", "do one of the two")
        wanted = replace(chosen.filter, header=("ce_subject", subject.encode("utf-8", "surrogateescape")))
        chosen = replace(chosen, filter=wanted)
    async with open_gate(access, "dlq") as gate:
        told = _Told("redact", dry_run=not yes)
        errand = await _errand(gate, chosen, reason, yes)
        await _all_steps(gate, deed, errand, told)
        told.leftovers = await erase_leftovers(gate.store, errand, gate.caller)
    told.tell(as_json)
    if not as_json:
        OUT.print("What Kafka holds (the topic and its dead-letter topic) lives until its retention ends.")
    return not told.refused


async def _errand(gate: Gate, chosen: Chosen, reason: str, yes: bool) -> Errand:
    async with gate.store.look() as conn:
        wanted = await chosen.resolved(conn, gate.store.tables, gate.caller.sees)
    return Errand(actor=gate.caller.actor, reason=reason, references=chosen.references, filter=wanted, dry_run=not yes)


async def _all_steps(gate: Gate, deed: Deed, errand: Errand, told: _Told) -> None:
    async for step in acting.steps(gate.store, deed, errand, gate.caller):
        told.add(step)
        if step.more:
            ERR.print(f"{told.done} of {told.read} so far")


class _Told:
    """What becomes the answer, in as much memory for a million letters as for one."""

    def __init__(self, verb: str, *, dry_run: bool) -> None:
        self.verb, self.dry_run = verb, dry_run
        self.read = self.done = self.refused = 0
        self.leftovers = Leftovers()
        self.reasons: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.ids: list[int] = []
        self.refusals: list[acting.Refusal] = []

    def add(self, step: acting.Step) -> None:
        self.read += step.read
        self.done += len(step.done)
        self.refused += len(step.refused)
        self.reasons.update(step.by_reason)
        self.causes.update(step.by_cause)
        self.ids += [entry.id for entry in step.done[: SHOWN_MAX - len(self.ids)]]
        self.refusals += step.refused[: SHOWN_MAX - len(self.refusals)]

    def tell(self, as_json: bool) -> None:
        if as_json:
            OUT.print_json(json.dumps({
                "dry_run": self.dry_run, "read": self.read, "done": self.done, "ids": self.ids,
                "by_reason": dict(self.reasons), "refused": [refusal._asdict() for refusal in self.refusals],
                "by_cause": dict(self.causes), "beside": self.leftovers._asdict(),
            }))  # fmt: skip
            return
        verb = f"would {self.verb}" if self.dry_run else _PAST[self.verb]
        if self.read or not any(self.leftovers):
            OUT.print(f"{verb} {self.done} letter{'' if self.done == 1 else 's'}" if self.read else "nothing matches")
        for reason, count in sorted(self.reasons.items()):
            OUT.print(f"  {count} x {reason}")
        for line in _beside(self.leftovers):
            OUT.print(f"{verb} {line}")
        for cause, count in sorted(self.causes.items()):
            OUT.print(f"refused {count}: {escape(cause)}", soft_wrap=True)
        for refusal in self.refusals[:TOLD_MAX]:
            OUT.print(f"  refused {escape(refusal.reference)}: {escape(refusal.cause)}", soft_wrap=True)
        if self.dry_run and self.done:
            ERR.print("nothing was changed: --yes does it")


def _beside(found: Leftovers) -> list[str]:
    """What stands beside the rows, in words."""
    unsent = f", of which {found.unsent} waited to be sent and will not be" if found.unsent else ""
    lines = (
        (found.letters, f"{found.letters} saved letters of events that were handled since"),
        (found.messages, f"{found.messages} records that handlers published{unsent}"),
        (found.results, f"the results of {found.results} calls"),
    )
    return [line for n, line in lines if n]


_PAST: Final = {"discard": "discarded", "cancel": "cancelled", "redact": "redacted"}


# ------------------------------------------------------------------------------------------------------------- export


async def export(access: Access, chosen: Chosen, reason: str, output: Path | None) -> None:
    """Write one line a letter; the file is new, and nobody else may read it."""
    async with open_gate(access, "dlq") as gate:
        errand = await _errand(gate, chosen, reason, yes=True)
        out: BinaryIO = sys.stdout.buffer if output is None else os.fdopen(_new_file(output), "wb")
        n = 0
        try:
            async for letter in exporting.export(gate.store, errand, gate.caller):
                _write(out, json.dumps(letter, separators=(",", ":")).encode() + b"\n")
                n += 1
        finally:
            if output is not None:
                out.close()
    ERR.print(f"exported {n} letter{'' if n == 1 else 's'}")


def _write(out: BinaryIO, line: bytes) -> None:
    """At once: what is not written whole is told here, and not when the process ends."""
    try:
        out.write(line)
        out.flush()
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise TidegateError(f"the export is not whole: {error.strerror}") from None


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError.of(
            "--output", f"{path}: {error.strerror}", "name a file that is not there yet"
        ) from None


# --------------------------------------------------------------------------------------------------------------- edit


async def edit(
    access: Access, consumers: Mapping[str, Consumer], reference: str, reason: str,
    value_file: Path | None, raw: bool, yes: bool,
) -> None:  # fmt: skip
    """Take the repaired value from a file or from an editor, check it, and put it beside the received one."""
    values = LetterValues(access.settings.codec_settings(), consumers)
    async with open_gate(access, "dlq") as gate:
        there = await editing.editable(gate.store, gate.caller.actor, reason, reference, gate.caller)
        consumer = there.entry.consumer
        if raw:
            value = _content(value_file)
        else:
            text = await _edited(values, consumer, there) if value_file is None else _text(_content(value_file))
            value = values.repaired(consumer, there.record, text)
        done = await editing.edit(
            gate.store,
            gate.caller.actor,
            reason,
            there,
            value,
            values.read,
            values.check,
            gate.caller,
            dry_run=not yes,
        )
    if done.edit_id is None:
        OUT.print(f"{'would take' if done.dry_run else 'took'} the repair of {done.entry.id} back")
    else:
        fields = ", ".join(done.fields) or "nothing that its codec reads"
        OUT.print(f"{'would repair' if done.dry_run else 'repaired'} {done.entry.id}: {escape(fields)}", soft_wrap=True)
    if done.dry_run:
        ERR.print("nothing was changed: --yes does it")
    elif done.edit_id is not None:
        OUT.print(f"replay it: tidegate dlq replay {done.entry.id} --reason '...'")


def _content(path: Path | None) -> bytes:
    assert path is not None, "the command line says which file"
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError.of("--value-file", f"{path}: {error.strerror}", "name the file") from None


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueRefused("the file is not UTF-8: with --raw it is taken as bytes") from None


async def _edited(values: LetterValues, consumer: str, there: editing.Editable) -> str:
    """The text as it was left in the editor. The file is this user's only, and gone afterwards."""
    before = values.text(consumer, there.record)
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        path = Path(folder) / f"letter-{there.entry.id}.json"
        os.close(_new_file(path))
        path.write_text(before, encoding="utf-8")
        command = [*shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"), str(path)]
        try:
            ended = await asyncio.to_thread(subprocess.run, command, check=False)
        except OSError as error:
            raise TidegateError(f"{command[0]} does not start ({error.strerror}): set EDITOR") from None
        if ended.returncode:
            raise ValueRefused(f"{command[0]} ended with {ended.returncode}: nothing was changed")
        after = path.read_text(encoding="utf-8")
    if after == before:
        raise ValueRefused("nothing was changed")
    return after
