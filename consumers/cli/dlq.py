"""`tidegate dlq`: the verbs on dead letters, which stand in `letter_verbs` and `replay_verb`."""

from __future__ import annotations

import typer

from . import letter_verbs, replay_verb

dlq_app = typer.Typer(no_args_is_help=True, help="Look at dead letters, and replay them once their cause is repaired.")

letter_verbs.add_to(dlq_app)
replay_verb.add_to(dlq_app)
