"""The journal of backfills: what each one asked for, how far it is in each partition, and what became of what it read.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
CREATE TABLE backfill (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  consumer TEXT NOT NULL,
  handler TEXT NOT NULL,
  kind TEXT NOT NULL,
  actor TEXT NOT NULL,
  why TEXT NOT NULL,
  wanted JSONB NOT NULL,
  cluster_id TEXT NOT NULL,
  read BIGINT DEFAULT 0 NOT NULL,
  handled BIGINT DEFAULT 0 NOT NULL,
  skipped BIGINT DEFAULT 0 NOT NULL,
  refused BIGINT DEFAULT 0 NOT NULL,
  failed BIGINT DEFAULT 0 NOT NULL,
  causes JSONB DEFAULT '{}' NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  touched_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT backfill_pkey PRIMARY KEY (id),
  CONSTRAINT backfill_kind CHECK (kind IN ('command', 'projection')),
  CONSTRAINT backfill_words CHECK (consumer <> '' AND handler <> '' AND actor <> '' AND why <> ''),
  CONSTRAINT backfill_adds_up CHECK (read = handled + skipped + refused + failed),
  CONSTRAINT backfill_numbers CHECK (handled >= 0 AND skipped >= 0 AND refused >= 0 AND failed >= 0)
)
""",
    """
CREATE TABLE backfill_part (
  backfill BIGINT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  incarnation BIGINT NOT NULL,
  start_offset BIGINT NOT NULL,
  next_offset BIGINT NOT NULL,
  end_offset BIGINT NOT NULL,
  chunk_end BIGINT,
  known BIGINT[] DEFAULT '{}' NOT NULL,
  CONSTRAINT backfill_part_pkey PRIMARY KEY (backfill, topic, partition),
  CONSTRAINT backfill_part_numbers CHECK (partition >= 0 AND incarnation >= 0 AND start_offset >= 0
    AND next_offset >= start_offset AND end_offset >= next_offset),
  CONSTRAINT backfill_part_chunk CHECK (chunk_end > next_offset AND chunk_end <= end_offset)
)
""",
)


def upgrade() -> None:
    """Nothing that stands there is changed."""
    for statement in STATEMENTS:
        op.execute(statement.strip())


def downgrade() -> None:
    """There is no way back: what was backfilled would be forgotten."""
    raise NotImplementedError("this migration is not undone: it would forget what was backfilled")
