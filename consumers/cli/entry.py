"""The verbs of `tidegate` and their options. What a verb does stands in the module that it calls.

Exit codes: 0 done, 78 the configuration is wrong (every problem is printed as `key: what. Fix: ...`), 70 it cannot go
on and a person has to look, 2 the command line itself is wrong.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.markup import escape

from ...inbox.errors import EXIT_CONFIGURATION, EXIT_FATAL, ConfigurationError, FatalError, TidegateError
from ...inbox.migrate import upgrade
from ...inbox.store import STORE_ERRORS
from .. import config_report, metrics
from ..settings import Settings, masked_address
from . import running, showing
from .options import ERR, OUT, AppOption, ConfigOption, ConsumerOption, JsonOption
from .preparing import choose, prepare, settings_only

DATABASE = ("database.url",)
BOTH = ("database.url", "kafka.bootstrap_servers")

app = typer.Typer(
    name="tidegate",
    help="Kafka consumers whose repeated events never become repeated business effects.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        app()
    except ConfigurationError as error:
        sys.exit(_problems(error))
    except FatalError as error:
        ERR.print(f"[red]fatal:[/red] {escape(str(error))}")
        sys.exit(error.exit_code)
    except TidegateError as error:
        ERR.print(f"[red]failed:[/red] {escape(str(error))}")
        sys.exit(EXIT_FATAL)
    except STORE_ERRORS as error:
        ERR.print(f"[red]database:[/red] {escape(_store_error(error))}")
        sys.exit(EXIT_FATAL)


@app.command()
def run(app: AppOption = None, consumer: ConsumerOption = None, config: ConfigOption = None) -> None:
    """Consume until SIGTERM: read, handle once, commit."""
    prepared = prepare(app, config, BOTH)
    raise typer.Exit(running.serve(prepared, choose(prepared.app, consumer)))


@app.command()
def migrate(app: AppOption = None, config: ConfigOption = None) -> None:
    """Make or update tidegate's tables. Any number may run at once."""
    settings = settings_only(app, config, DATABASE).settings
    asyncio.run(_migrate(settings))


@app.command(name="config")
def show_config(
    app: AppOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    reference: Annotated[bool, typer.Option("--reference", help="Print docs/settings.md: every key there is.")] = False,
    metric_names: Annotated[bool, typer.Option("--metrics", help="Print docs/metrics.md: every metric.")] = False,
) -> None:
    """Show every setting in force and where it came from, secrets masked."""
    if reference or metric_names:
        sys.stdout.write(config_report.reference() if reference else metrics.reference())
        return
    showing.show(settings_only(app, config), as_json)


async def _migrate(settings: Settings) -> None:
    done = await upgrade(settings.database.dsn(), settings.database.schema_name)
    schema = settings.database.schema_name
    if done.before == done.after:
        OUT.print(f"schema {schema}: up to date at {done.after}")
    else:
        OUT.print(f"schema {schema}: {done.before or 'made new'} -> {done.after}")


def _problems(error: ConfigurationError) -> int:
    count = len(error.problems)
    ERR.print(f"[red]{count} problem{'s' if count != 1 else ''} with the configuration:[/red]")
    for problem in error.problems:
        ERR.print(f"  [bold]{escape(problem.key)}[/bold]: {escape(problem.what)}. Fix: {escape(problem.fix)}")
    return EXIT_CONFIGURATION


def _store_error(error: BaseException) -> str:
    """A driver's text, on one line: the database cannot be reached, or it refused us; both are the operator's."""
    text = masked_address(" ".join(str(error).split())) or type(error).__name__
    return f"{text}. Fix: check database.url, that PostgreSQL answers there, and this role's rights"
