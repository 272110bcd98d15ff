"""`tidegate check`: everything that would keep `run` from starting or from keeping its promise, found at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.leaving import left_by, left_by_consumer, open_effects
from ...inbox import standbys, versions
from ...inbox.consumers import gone_consumers
from ...inbox.errors import ConfigurationError, FatalError, Problem, RecordError, TidegateError
from ...inbox.event import Record
from ...inbox.handlers import gone_handlers, kind_problems, known_handlers, two_problem
from ...inbox.migrate import check_schema
from ...inbox.store import STORE_ERRORS, Store
from ...inbox.tables import Tables
from .. import identity
from ..app import App, Consumer
from ..settings import Settings
from .cluster import Cluster
from .database_errors import told
from .preparing import open_store
from .topics import check_letter_topics

POSTGRESQL_MIN: Final = 150_000
"""PostgreSQL 15: the oldest that the statements are tested on."""


@dataclass(slots=True)
class Findings:
    """What was found: problems fail the check, warnings do not."""

    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[str] = field(default_factory=list[str])


def check(settings: Settings, app: App, consumers: Sequence[Consumer]) -> Findings:
    """Look at the database, the cluster and the registry, and at what they know of these consumers of the app.

    Consumers that the app no longer has are looked for whichever are meant: no other look would find them.
    """
    warnings = dict.fromkeys(warning for consumer in consumers for warning in consumer.warnings())
    found = Findings(warnings=list(warnings))
    _permission(settings, found)
    found.problems += asyncio.run(_database(settings, app, consumers, found.warnings))
    found.problems += _cluster(settings, consumers, found.warnings)
    for consumer in consumers:
        found.problems += _codec(settings, consumer)
    return found


def _permission(settings: Settings, found: Findings) -> None:
    """Whether settings and policy fit together, and whether there is a policy at all."""
    try:
        identity.read_policy(settings.permission)
    except ConfigurationError as error:
        found.problems += error.problems
    if identity.is_open(settings.permission):
        found.warnings.append(
            f"no policy is configured (permission.policy_file): whoever reaches the database may do everything, "
            f"and stands in the audit as the operating system's user ({identity.os_user()})"
        )


# ---------------------------------------------------------------------------------------------------------- database


async def _database(settings: Settings, app: App, consumers: Sequence[Consumer], warnings: list[str]) -> list[Problem]:
    store = open_store(settings, "check")
    try:
        async with store.transaction() as conn:
            warnings += standbys.dangers_of(await standbys.look(conn)) if app.effects else []
            return await _looked_at(conn, store, app, consumers)
    except ConfigurationError as error:
        return list(error.problems)
    except FatalError as error:
        return [Problem("database.schema", str(error).partition(". Fix: ")[0], error.fix)]
    except STORE_ERRORS as error:
        what = f"the database does not answer: {told(error)}"
        return [Problem("database.url", what, "check the address, and that it runs")]
    finally:
        await store.database.close()


async def _looked_at(conn: AsyncConnection, store: Store, app: App, consumers: Sequence[Consumer]) -> list[Problem]:
    problems: list[Problem] = []
    version = int(await conn.scalar(sa.text("SELECT current_setting('server_version_num')")))
    if version < POSTGRESQL_MIN:
        problems.append(Problem("database.url", f"it is PostgreSQL {version // 10_000}", "use PostgreSQL 15 or newer"))
    await check_schema(conn, store.tables)
    for consumer in consumers:
        problems += await _handlers(conn, store, consumer)
        problems += await _effects(conn, store.tables, consumer.name, app.effects)
    gone = await gone_consumers(conn, store.tables, app.name, app.consumers)
    return problems + [await _gone_consumer(conn, store.tables, app.name, name) for name in gone]


async def _handlers(conn: AsyncConnection, store: Store, consumer: Consumer) -> list[Problem]:
    t, renamed = store.tables, consumer.renamed
    known = await known_handlers(conn, t, consumer.name)
    gone = await gone_handlers(conn, t, consumer.name, consumer.handler_names, renamed)
    problems = [await _gone(conn, t, consumer.name, name, gone[name]) for name in gone if name not in renamed.values()]
    problems += await kind_problems(conn, t, consumer.name, consumer.kinds, renamed)
    problems += [two_problem(consumer.name, new, old) for new, old in renamed.items() if {new, old} <= known.keys()]
    declared = {known[name]: (name, p.version) for name, p in consumer.projections.items() if name in known}
    return problems + [
        Problem(
            f"projection {change.name!r} of {consumer.name!r}",
            f"its version is {change.declared}, but version {change.live} is live, and this release cannot rebuild yet",
            f"declare version={change.live} again, or give the changed projection a new name",
        )
        for change in await versions.changed(conn, store.tables, declared)
    ]


async def _effects(conn: AsyncConnection, t: Tables, consumer: str, effects: Collection[str]) -> list[Problem]:
    """Calls that nobody knows the end of need their declaration: its rule says how they are ended."""
    return [
        Problem(
            f"effect {name!r}",
            f"the end of {count} calls by {consumer!r} is not known, and the app no longer declares it",
            "declare it again until they are ended, or end them: `tidegate review list`",
        )
        for name, count in (await open_effects(conn, t, consumer)).items()
        if name not in effects
    ]


async def _gone(conn: AsyncConnection, t: Tables, consumer: str, name: str, handler_id: int) -> Problem:
    left = await left_by(conn, t, [handler_id])
    return Problem(
        f"handler {name!r} of {consumer!r}",
        f"the database knows it and the app no longer has it; it left {left}, which stay as they are",
        f"put it back, declare its new name with renamed_from={name!r}, or discard what it left: "
        f"`tidegate handlers discard {name} --consumer {consumer}`",
    )


async def _gone_consumer(conn: AsyncConnection, t: Tables, app: str, name: str) -> Problem:
    left = await left_by_consumer(conn, t, name)
    calls = f", and end its calls: `tidegate review list --consumer {name}`" if left.calls else ""
    return Problem(
        f"consumer {name!r} of app {app!r}",
        f"the database knows it and the app no longer has it; it left {left}, which stay as they are",
        f"put it back, or discard what it left: `tidegate handlers discard --consumer {name}`{calls} "
        "(where another app of this name has it, give one of the two a name of its own)",
    )


# ----------------------------------------------------------------------------------------------- cluster and registry


def _cluster(settings: Settings, consumers: Sequence[Consumer], warnings: list[str]) -> list[Problem]:
    problems: list[Problem] = []

    def look() -> None:
        cluster = Cluster(settings)
        for consumer in consumers:
            for topic, facts in cluster.describe(consumer.topics).items():
                if facts.error is not None:
                    fix = f"make it, or correct topics= of consumer {consumer.name!r}"
                    problems.append(Problem(f"topic {topic}", facts.error, fix))
            refused, known = check_letter_topics(settings, cluster, consumer)
            problems.extend(refused)
            warnings.extend(known)

    fix = "check the address, TLS and SASL settings, and the brokers"
    return _said("kafka.bootstrap_servers", look, fix) + problems


def _codec(settings: Settings, consumer: Consumer) -> list[Problem]:
    """Open the codec, and have it look for a schema id that nobody has: a registry that is away cannot say so."""
    at_once = replace(settings.codec_settings(), missing_tries=1, missing_grace_s=0.0)

    def look() -> None:
        codec = consumer.codec.open(at_once)
        codec.types(consumer.payload_types())
        with suppress(RecordError):
            codec.decode(Record(consumer.topics[0], 0, 0, None, _FRAME_OF_NOBODY))

    return _said(f"codec of consumer {consumer.name!r}", look, "check registry.url and what answers there")


_FRAME_OF_NOBODY: Final = b"\x00\x7f\xff\xff\xff"
"""Confluent's framing with the highest schema id, and nothing behind it."""


def _said(key: str, look: Callable[[], object], fix: str) -> list[Problem]:
    """What a look-up raised, as problems."""
    try:
        look()
    except ConfigurationError as error:
        return list(error.problems)
    except TidegateError as error:
        return [Problem(key, str(error), fix)]
    return []
