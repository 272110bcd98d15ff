"""All tables of tidegate, in one schema of a configurable name. No IO.

What the keys promise: a claim is one narrow row for each (handler, version, event id); a failure row is one for each
(handler, version, position); a fence has one row for each (consumer, topic, partition). No column of a unique key is
ever NULL. There are no foreign keys: each would take row locks that stand in no lock order.

**The lock order of every transaction** (a step may be left out, never moved; functions of this room name theirs):

0. the journal row of a replay, which only replays lock
1. `fence` rows, then `version` rows, then `lease` rows, in key order, `FOR KEY SHARE`
2. `parked_key` rows, in key order, by upsert
3. the generation lock, shared; then the catalogue; then the probe of all generations and failure rows in one statement
4. claims, in the order of (handler, version, id)
5. the user's tables
6. `failure` rows by id, then the `effect` row that they wait for
7. `outbox` and `audit`, inserts only
8. `checkpoint` rows, in key order, compare-and-set; the births of first ones
9. the journal rows of a backfill, which only its own process writes

`breaker` rows stand in no other transaction, nor do leases that change hands and the ledger's own statements.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Final, LiteralString, final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import RESERVED_WORDS

from .audit_definitions import audit_seal_table
from .backfill_definitions import backfill_part_table, backfill_table
from .effect_definitions import breaker_table, effect_table, lease_table, suspect_table
from .errors import ConfigurationError
from .replay_definitions import replay_letter_table, replay_part_table, replay_table
from .table_definitions import (
    audit_table,
    checkpoint_table,
    claim_table,
    consumer_table,
    failure_table,
    fence_table,
    generation_birth_table,
    generation_table,
    handler_table,
    note_table,
    outbox_table,
    parked_key_table,
    restored_table,
    topic_table,
    version_table,
)

DEFAULT_SCHEMA: Final = "tidegate"

VERSION_TABLE: Final = "tidegate_version"
"""Alembic's table of our revision, in our schema; no name that a user's own Alembic has, wherever that looks."""

_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


@final
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Tables:
    """Our tables in the schema `schema`; made by `tables`."""

    schema: str
    metadata: sa.MetaData
    handler: sa.Table
    topic: sa.Table
    consumer: sa.Table
    fence: sa.Table
    checkpoint: sa.Table
    version: sa.Table
    restored: sa.Table
    generation: sa.Table
    generation_birth: sa.Table
    claim_1: sa.Table
    parked_key: sa.Table
    failure: sa.Table
    outbox: sa.Table
    audit: sa.Table
    audit_seal: sa.Table
    effect: sa.Table
    lease: sa.Table
    breaker: sa.Table
    suspect: sa.Table
    note: sa.Table
    replay: sa.Table
    replay_part: sa.Table
    replay_letter: sa.Table
    backfill: sa.Table
    backfill_part: sa.Table

    texts: dict[str, sa.TextClause] = field(default_factory=dict[str, sa.TextClause])
    """Statements as they were made: to find the names in one costs more than to run it does here."""

    def __repr__(self) -> str:
        return f"Tables({self.schema})"

    def sql(self, template: LiteralString) -> sa.TextClause:
        """A statement in which `{fence}`, `{claim_1}`, ... stand for our tables and `{schema}` for the schema.

        The type says that the template stands in the source, so nothing but these names ever gets into its text.
        """
        text = self.texts.get(template)
        if text is None:
            names = {table.name: table.fullname for table in self.metadata.tables.values()}
            text = self.texts[template] = sa.text(template.format(schema=self.schema, **names))
        return text

    @property
    def generation_lock(self) -> int:
        """The key of the advisory lock that a claiming transaction shares and the rotator takes alone."""
        return advisory_key(self.schema, "generations")


def tables(schema: str = DEFAULT_SCHEMA) -> Tables:
    """All tables, in `schema`: lower case letters, digits and underscores, so that it needs no quotes anywhere."""
    if _SCHEMA_NAME.fullmatch(schema) is None or schema.startswith("pg_") or schema in RESERVED_WORDS:
        raise ConfigurationError.of(
            "database.schema",
            f"{schema!r} is no name for a schema here",
            "use up to 48 lower case letters, digits and underscores, no digit or pg_ first, and no word of SQL",
        )
    metadata = sa.MetaData(schema=schema)
    return Tables(
        schema=schema,
        metadata=metadata,
        handler=handler_table(metadata),
        topic=topic_table(metadata),
        consumer=consumer_table(metadata),
        fence=fence_table(metadata),
        checkpoint=checkpoint_table(metadata),
        version=version_table(metadata),
        restored=restored_table(metadata),
        generation=generation_table(metadata),
        generation_birth=generation_birth_table(metadata),
        claim_1=claim_table(metadata, 1),
        parked_key=parked_key_table(metadata),
        failure=failure_table(metadata),
        outbox=outbox_table(metadata),
        audit=audit_table(metadata),
        audit_seal=audit_seal_table(metadata),
        effect=effect_table(metadata),
        lease=lease_table(metadata),
        breaker=breaker_table(metadata),
        suspect=suspect_table(metadata),
        note=note_table(metadata),
        replay=replay_table(metadata),
        replay_part=replay_part_table(metadata),
        replay_letter=replay_letter_table(metadata),
        backfill=backfill_table(metadata),
        backfill_part=backfill_part_table(metadata),
    )


def advisory_key(schema: str, purpose: str) -> int:
    """A positive 63-bit key of an advisory lock, of its own for each schema and purpose."""
    return zlib.crc32(f"tidegate/{schema}/{purpose}".encode()) | (0x7164 << 32)
