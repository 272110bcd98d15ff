"""The verbs of `tidegate dlq` besides replay, and their options; `letter_acts.py` does what they say.

Whatever changes letters is a dry run without `--yes`, and ends with 1 where anything was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from ...dlq.deeds import cancelling, discarding, redacting
from ...dlq.grouping import USUAL, By
from ...dlq.selection import Filter
from ...inbox.errors import ConfigurationError
from ...inbox.outcome import FailureState
from ..app import Consumer
from . import letter_acts, letters
from .access import access
from .filtering import Chosen, choosing, filtering
from .loading import load_app
from .options import AppOption, ConfigOption, JsonOption, TokenOption

NEEDS = ("database.url",)

Reason = Annotated[str, typer.Option("--reason", help="Why: it stands in the audit.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it: without this it is a dry run.")]
Letter = Annotated[str, typer.Argument(help="A letter's number, its 32-digit id, or topic/partition@offset.")]


def list_letters(
    wanted: Filter,
    after: Annotated[int, typer.Option("--after", help="Behind this number: the next page.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest first, without key and payload."""
    asyncio.run(letters.list_letters(access(app, config, NEEDS, token_file), wanted, after, limit, as_json))


def groups(
    wanted: Filter,
    by: Annotated[list[By] | None, typer.Option("--by", help="What letters have in common; may be repeated.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count letters by what they have in common, the largest group first, with the notes that were left."""
    asked = access(app, config, NEEDS, token_file)
    asyncio.run(letter_acts.list_groups(asked, wanted, by or list(USUAL), limit, as_json))


def note(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="As `groups` names it.")],
    text: Annotated[str, typer.Option("--text", help="What whoever comes next should know.")],
    reason: Reason,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
) -> None:
    """Leave a note on a group of letters. No payload belongs into it: whoever sees the whole group reads it."""
    asyncio.run(letter_acts.leave_note(access(app, config, NEEDS, token_file), group, text, reason))


def show(
    letter: Letter,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show key, value and headers: audited, with a reason.")
    ] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why it is revealed: it stands in the audit.")] = None,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one letter with everything that is known of it; its payload is masked."""
    if reveal and not (reason or "").strip():
        raise ConfigurationError.of("--reason", "it is not said why", "a reveal needs a reason: it stands in the audit")
    asked = access(app, config, NEEDS, token_file)
    asyncio.run(letter_acts.show(asked, _consumers(app), letter, reason if reveal else None, as_json))


@choosing()
def discard(
    letters: Chosen,
    reason: Reason,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    yes: Yes = False,
    as_json: JsonOption = False,
) -> None:
    """Give letters up for good: they are never run again, and stay as a memory that answers repeats."""
    asked = access(app, config, NEEDS, token_file)
    _act(letter_acts.act(asked, discarding(), "discard", letters, reason, yes, as_json))


@choosing(state=None)
def redact(
    letters: Chosen,
    reason: Reason,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Of this subject: the CloudEvents header ce_subject.")
    ] = None,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    yes: Yes = False,
    as_json: JsonOption = False,
) -> None:
    """Erase the payloads of a key, a subject or named letters, whatever their state, from rows and saved letters."""
    asked = access(app, config, NEEDS, token_file)
    _act(letter_acts.redact(asked, redacting(), letters, subject, reason, yes, as_json))


@choosing()
def export(
    letters: Chosen,
    reason: Reason,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    output: Annotated[Path | None, typer.Option("--output", help="A new file instead of standard output.")] = None,
) -> None:
    """Write letters with all their bytes as lines of JSON; bytes are in base64."""
    asyncio.run(letter_acts.export(access(app, config, NEEDS, token_file), letters, reason, output))


def edit(
    letter: Letter,
    reason: Reason,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    value_file: Annotated[
        Path | None, typer.Option("--value-file", help="The repaired value; without it $EDITOR opens.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The file holds the bytes themselves, not their text.")] = False,
    yes: Yes = False,
) -> None:
    """Repair a dead letter's value, checked by its codec; what was received stays beside it. Then replay it."""
    if raw and value_file is None:
        raise ConfigurationError.of("--raw", "no file is given", "name it: --value-file FILE")
    asked = access(app, config, NEEDS, token_file)
    asyncio.run(letter_acts.edit(asked, _consumers(app), letter, reason, value_file, raw, yes))


@choosing(state=FailureState.QUEUED)
def cancel(
    letters: Chosen,
    reason: Reason,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    yes: Yes = False,
    as_json: JsonOption = False,
) -> None:
    """End retries that wait, and take replays back: the letters are dead, and may be replayed later."""
    asked = access(app, config, NEEDS, token_file)
    _act(letter_acts.act(asked, cancelling(reason), "cancel", letters, reason, yes, as_json))


def add_to(dlq_app: typer.Typer) -> None:
    """Give `tidegate dlq` these verbs."""
    dlq_app.command(name="list")(filtering(list_letters))
    dlq_app.command()(filtering(groups))
    for verb in (note, show, discard, cancel, edit, export, redact):
        dlq_app.command()(verb)


def _consumers(app: str | None) -> dict[str, Consumer]:
    return dict(load_app(app).consumers) if app else {}


def _act(work: Coroutine[Any, Any, bool]) -> None:
    if not asyncio.run(work):
        raise typer.Exit(1)
