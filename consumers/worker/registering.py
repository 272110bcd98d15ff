"""What the database is told of an app at a process's start, and what it knows of it: handlers, versions, the clock."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import sqlalchemy as sa
import structlog

from ...dlq.leaving import open_effects
from ...inbox import checkpoint, consumers, handlers, versions
from ...inbox.database import NotConnectedError
from ...inbox.effect_rules import probe_of
from ...inbox.errors import ConfigurationError, FatalError, Problem
from ...inbox.migrate import check_schema
from ...inbox.points import Writes
from ...inbox.store import Store
from ..app import App, Consumer
from ..injection import Wants, read_wants
from .handling import Mediator

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """What the database knows of this consumer."""

    handler_ids: dict[str, int]
    known: bool
    """It ran before."""
    gone: tuple[str, ...]
    """Handlers that the app no longer has."""
    gone_consumers: int
    """How many whole consumers it no longer has."""
    now: datetime.datetime
    """The database's time."""


async def register(store: Store, app: App, consumer: Consumer) -> Registered:
    """Give each handler its id, and note what the app says of them.

    Raises:
        ConfigurationError: the schema does not fit, or a version or a name changed in a way that cannot be followed.
    """
    try:
        async with store.transaction(Writes.REGISTER) as conn:
            await check_schema(conn, store.tables)
            known = await consumers.ever_started(conn, store.tables, consumer.name)
            ids = await handlers.register_handlers(
                conn, store.tables, consumer.name, consumer.handler_names, consumer.renamed, consumer.kinds
            )
            declared = {ids[name]: (name, projection.version) for name, projection in consumer.projections.items()}
            changed = await versions.declare_live(conn, store.tables, declared)
            if changed:
                raise ConfigurationError([_changed(consumer, change) for change in changed])
            await consumers.first_start(conn, store.tables, consumer.name)
            await consumers.belongs_to(conn, store.tables, consumer.name, app.name)
            await consumers.declare_needs(conn, store.tables, consumer.name, app.effects.values())
            await checkpoint.attach_only(conn, store.tables, consumer.name, list(ids.values()))
            gone = await handlers.gone_handlers(conn, store.tables, consumer.name, consumer.handler_names)
            gone_consumers = await consumers.gone_consumers(conn, store.tables, app.name, app.consumers)
            open_calls = await open_effects(conn, store.tables, consumer.name)
            now = (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
    except OSError as error:
        raise FatalError(
            f"PostgreSQL does not answer ({error if isinstance(error, NotConnectedError) else type(error).__name__})",
            fix="check database.url and that the server runs",
        ) from error
    if gone:
        log.warning("handlers_gone", handlers=list(gone), what="their rows and checkpoints are left as they are")
    if gone_consumers:
        log.warning("consumers_gone", consumers=gone_consumers, what="what they left is left as it is")
    if undeclared := sorted(open_calls.keys() - app.effects):
        log.warning("effects_gone", effects=undeclared, what="the end of calls is not known; they are left as they are")
    return Registered(ids, known, tuple(gone), len(gone_consumers), now)


def _changed(consumer: Consumer, change: versions.Changed) -> Problem:
    return Problem(
        f"projection {change.name!r} of {consumer.name!r}",
        f"its version is {change.declared}, but version {change.live} is live, and this release cannot rebuild yet",
        f"declare version={change.live} again, or give the changed projection a new name",
    )


def refuse_missing(app: App, consumer: Consumer, mediator: Mediator) -> None:
    """Every parameter of every handler function can be filled, or nothing starts."""
    wanted: list[tuple[str, Wants, int]] = [
        (f"handler of {cls.__name__}", handler.wants, 1) for cls, handler in app.handlers.items()
    ]
    wanted += [
        (f"projection {name!r} of {consumer.name!r}", read_wants(projection.function), 2)
        for name, projection in consumer.projections.items()
    ]
    wanted += [
        (f"probe of effect {effect.name!r}", read_wants(found.function), 1)
        for effect in app.effects.values()
        if (found := probe_of(effect.rule)) is not None
    ]
    wanted += [(f"middleware {found.function.__name__!r}", found.wants, 2) for found in app.middlewares]
    problems = [
        Problem(key, what, "yield the resource from an @app.lifespan, or take the parameter out")
        for key, wants, taken in wanted
        for what in mediator.missing(wants, taken)
    ]
    if problems:
        raise ConfigurationError(problems)
