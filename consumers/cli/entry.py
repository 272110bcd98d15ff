"""The verbs of `tidegate` and their options. What a verb does stands in the module that it calls.

Exit codes: 0 done, 78 the configuration is wrong (every problem is printed as `key: what. Fix: ...`), 70 it cannot go
on and a person has to look, 77 whoever asks may not do it, 2 the command line itself is wrong.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.markup import escape

from ...dlq.failure_text import full_message
from ...dlq.permission import NotPermitted
from ...inbox import grants
from ...inbox.errors import EXIT_CONFIGURATION, EXIT_FATAL, ConfigurationError, FatalError, TidegateError
from ...inbox.migrate import upgrade
from ...inbox.store import STORE_ERRORS
from ...inbox.tables import tables
from .. import config_report, logs, metrics
from ..settings import Log, Settings
from ..token_rules import TokenRefused
from . import checking, explaining, handlers, lagging, restoring, running, showing, topics
from .access import access, access_to
from .audit import audit_app
from .backfill import backfill
from .breakers import breakers_app
from .database_errors import told_with_fix
from .dlq import dlq_app
from .letter_verbs import cancel
from .options import ERR, OUT, AppOption, ConfigOption, ConsumerOption, JsonOption, TokenOption
from .preparing import choose, chosen, judge, prepare, settings_only
from .review import review_app

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
    logs.configure(Log(level="warning"))
    try:
        app()
    except ConfigurationError as error:
        sys.exit(_problems(error))
    except (NotPermitted, TokenRefused) as error:
        ERR.print(f"[red]not permitted:[/red] {escape(str(error))}")
        sys.exit(error.exit_code)
    except FatalError as error:
        ERR.print(f"[red]fatal:[/red] {escape(full_message(error))}")
        sys.exit(error.exit_code)
    except TidegateError as error:
        ERR.print(f"[red]failed:[/red] {escape(full_message(error))}")
        sys.exit(EXIT_FATAL)
    except STORE_ERRORS as error:
        ERR.print(f"[red]database:[/red] {escape(told_with_fix(error))}")
        sys.exit(EXIT_FATAL)


@app.command()
def run(app: AppOption = None, consumer: ConsumerOption = None, config: ConfigOption = None) -> None:
    """Consume until SIGTERM: read, handle once, commit."""
    prepared = prepare(app, config, BOTH)
    raise typer.Exit(running.serve(prepared, choose(prepared.app, consumer)))


@app.command()
def check(app: AppOption = None, consumer: ConsumerOption = None, config: ConfigOption = None) -> None:
    """Find everything that would keep `run` from its promise: settings, declarations, database, topics, registry."""
    prepared, problems = judge(app, config, BOTH)
    warnings: list[str] = []
    if prepared is not None:
        found = checking.check(prepared.settings, prepared.app, chosen(prepared.app, consumer))
        problems += found.problems
        warnings += found.warnings
    for warning in warnings:
        ERR.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    if problems:
        raise ConfigurationError(problems)
    OUT.print("no problems found")


@app.command()
def migrate(
    app: AppOption = None,
    config: ConfigOption = None,
    role: Annotated[
        str | None,
        typer.Option("--grants", metavar="ROLE", help="Only print the SQL that gives this role a worker's rights."),
    ] = None,
) -> None:
    """Make or update tidegate's tables. Any number may run at once."""
    if role is not None:
        settings = settings_only(app, config).settings
        sys.stdout.write(grants.statements(tables(settings.database.schema_name), role))
        return
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


@app.command()
def explain(
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="A projection or a command.")],
    app: AppOption = None,
    consumer: ConsumerOption = None,
    exception: Annotated[
        str | None, typer.Option("--exception", metavar="MODULE.CLASS", help="Only the path that this one takes.")
    ] = None,
) -> None:
    """Say in plain English what becomes of a handler's failures: rules, tables, retries, key, limits."""
    explaining.explain(app, handler, consumer, exception)


@app.command()
def lag(
    app: AppOption = None, consumer: ConsumerOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show how far each handler is behind, whether a worker is alive or not."""
    settings = settings_only(app, config, BOTH).settings
    asyncio.run(lagging.lag(settings, consumer, as_json))


@app.command()
def restored(
    reason: Annotated[str, typer.Option("--reason", help="What happened: it stands in the audit.")],
    consumer: ConsumerOption = None,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Declare that the database was put back to an earlier copy: go on from there, and trust no missing row."""
    if consumer is None:
        raise ConfigurationError.of("--consumer", "it is not given", "name the consumer (its Kafka group)")
    asked = access(app, config, BOTH, token_file)
    declarations = asyncio.run(restoring.look(asked, consumer))
    restoring.show(consumer, declarations)
    if not yes:
        typer.confirm("Is that what happened?", abort=True, err=True)
    asyncio.run(restoring.declare(asked, consumer, declarations, reason))
    OUT.print("declared; start the consumer again")


topic_app = typer.Typer(no_args_is_help=True, help="Say what happened to a topic, or make what is missing.")
app.add_typer(topic_app, name="topic")
handlers_app = typer.Typer(no_args_is_help=True, help="See the handlers that the database knows; discard one.")
app.add_typer(handlers_app, name="handlers")
app.command()(cancel)
app.add_typer(dlq_app, name="dlq")
app.add_typer(review_app, name="review")
app.add_typer(breakers_app, name="breakers")
app.add_typer(audit_app, name="audit")
app.command()(backfill)


@topic_app.command(name="reset")
def reset_topic(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    reason: Annotated[str, typer.Option("--reason", help="Why: it stands in the audit.")],
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Do not ask the broker for the topic's id: count it as re-created now.")
    ] = False,
) -> None:
    """Declare that a topic was deleted and made anew: its records are new ones, whatever their offsets."""
    needs = DATABASE if by_hand else BOTH
    asyncio.run(topics.reset(access(app, config, needs, token_file), topic, by_hand, reason))


@topic_app.command(name="create")
def create_topics(app: AppOption = None, consumer: ConsumerOption = None, config: ConfigOption = None) -> None:
    """Make the dead-letter topics that do not exist yet."""
    prepared = prepare(app, config, ("kafka.bootstrap_servers",))
    topics.create(prepared.settings, chosen(prepared.app, consumer))


@handlers_app.command(name="list")
def list_handlers(
    app: AppOption = None,
    consumer: ConsumerOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
) -> None:
    """List every handler that the database knows, whether the app has it, or its consumer, or not."""
    prepared = prepare(app, config, DATABASE)
    asyncio.run(handlers.show(access_to(prepared.settings, token_file), prepared.app, consumer))


@handlers_app.command(name="discard")
def discard_handler(
    reason: Annotated[str, typer.Option("--reason", help="Why: it stands in the audit.")],
    name: Annotated[
        str | None,
        typer.Argument(
            help="A handler that the app no longer has; left out: all of a consumer that it no longer has.",
            show_default=False,
        ),
    ] = None,
    app: AppOption = None,
    consumer: ConsumerOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it you only see what would be done.")] = False,
) -> None:
    """Say that what a gone handler or consumer left is not wanted: its rows are discarded, and `check` is content."""
    prepared = prepare(app, config, DATABASE)
    asked = access_to(prepared.settings, token_file)
    asyncio.run(handlers.discard(asked, prepared.app, consumer, name, reason, really=yes))


@app.command()
def demo(keep: Annotated[bool, typer.Option("--keep", help="Go on running until Ctrl-C.")] = False) -> None:
    """See the promise kept: a shop on an embedded PostgreSQL and a mock Kafka, with repeats, a failure and a replay."""
    from ..demo.run import demo as tell  # only here: its parts are an extra

    raise typer.Exit(tell(keep=keep))


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
