"""The journal of replays: what each one asked for, how far it is, and what became of every letter.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
ALTER TABLE failure
  ADD COLUMN attempt_id BYTEA,
  ADD CONSTRAINT failure_attempt CHECK (octet_length(attempt_id) = 16)
""",
    "CREATE UNIQUE INDEX failure_letter_key ON failure (handler, version, event_id) WHERE origin = 'letter'",
    """
CREATE TABLE replay (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  source TEXT NOT NULL,
  actor TEXT NOT NULL,
  why TEXT NOT NULL,
  wanted JSONB NOT NULL,
  bound BIGINT DEFAULT 0 NOT NULL,
  position BIGINT DEFAULT 0 NOT NULL,
  read BIGINT DEFAULT 0 NOT NULL,
  replayed BIGINT DEFAULT 0 NOT NULL,
  skipped BIGINT DEFAULT 0 NOT NULL,
  refused BIGINT DEFAULT 0 NOT NULL,
  causes JSONB DEFAULT '{}' NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  touched_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT replay_pkey PRIMARY KEY (id),
  CONSTRAINT replay_source CHECK (source IN ('inbox', 'topic')),
  CONSTRAINT replay_words CHECK (actor <> '' AND why <> ''),
  CONSTRAINT replay_adds_up CHECK (read = replayed + skipped + refused),
  CONSTRAINT replay_numbers CHECK (bound >= 0 AND position >= 0 AND replayed >= 0 AND skipped >= 0 AND refused >= 0)
)
""",
    """
CREATE TABLE replay_part (
  replay BIGINT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  next_offset BIGINT NOT NULL,
  end_offset BIGINT NOT NULL,
  CONSTRAINT replay_part_pkey PRIMARY KEY (replay, topic, partition),
  CONSTRAINT replay_part_numbers CHECK (partition >= 0 AND next_offset >= 0 AND end_offset >= 0)
)
""",
    """
CREATE TABLE replay_letter (
  replay BIGINT NOT NULL,
  failure_id BIGINT NOT NULL,
  replay_count BIGINT NOT NULL,
  CONSTRAINT replay_letter_pkey PRIMARY KEY (replay, failure_id)
)
""",
)


def upgrade() -> None:
    """Nothing that stands there is changed."""
    for statement in STATEMENTS:
        op.execute(statement.strip())


def downgrade() -> None:
    """There is no way back: what was replayed would be forgotten, and replayed again."""
    raise NotImplementedError("this migration is not undone: it would forget what was replayed")
