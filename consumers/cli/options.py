"""Options that several verbs share, and the two consoles: results to standard output, all else to standard error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

OUT: Final = Console(highlight=False)
"""Results: what a pipe wants to have."""

ERR: Final = Console(stderr=True, highlight=False, soft_wrap=True)
"""Problems and progress. Never wrapped: a problem is one line, also in a log."""

AppOption = Annotated[
    str | None,
    typer.Option("--app", envvar="TIDEGATE_APP", metavar="MODULE:ATTRIBUTE", help="Your App, as shop.events:app."),
]
ConsumerOption = Annotated[
    str | None,
    typer.Option("--consumer", envvar="TIDEGATE_CONSUMER", metavar="NAME", help="One of the app's consumers."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file with settings (or TIDEGATE_CONFIG)."),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="TIDEGATE_TOKEN_FILE",
        metavar="FILE",
        help="Your signed token, in a file (or the token itself in TIDEGATE_TOKEN).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
