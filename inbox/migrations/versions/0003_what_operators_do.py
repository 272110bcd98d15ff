"""Values that a person repaired, payloads that were erased, notes on groups of letters, and the ways to find them.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
ALTER TABLE failure
  ADD COLUMN edited_value BYTEA,
  ADD COLUMN edit_id BYTEA,
  ADD COLUMN redacted_at TIMESTAMP WITH TIME ZONE,
  ADD CONSTRAINT failure_edit CHECK (num_nulls(edited_value, edit_id) IN (0, 2) AND (edit_id IS NULL OR
    octet_length(edit_id) = 16)),
  ADD CONSTRAINT failure_redacted CHECK (redacted_at IS NULL OR (num_nonnulls(key, value, edited_value) = 0
    AND state IN ('dead', 'discarded', 'linked')))
""",
    "CREATE INDEX failure_state ON failure (state, id)",
    """
CREATE INDEX failure_dead ON failure (handler, reason, exception_type, tenant, last_failed_at, first_failed_at)
  WHERE state = 'dead'
""",
    "CREATE INDEX failure_key ON failure (sha256(key)) WHERE key IS NOT NULL",
    """
CREATE TABLE note (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  group_name TEXT NOT NULL,
  actor TEXT NOT NULL,
  text TEXT NOT NULL,
  CONSTRAINT note_pkey PRIMARY KEY (id),
  CONSTRAINT note_words CHECK (group_name <> '' AND actor <> '' AND text <> '')
)
""",
    "CREATE INDEX note_group_name ON note (group_name, id)",
)


def upgrade() -> None:
    """Nothing that stands there is changed."""
    for statement in STATEMENTS:
        op.execute(statement.strip())


def downgrade() -> None:
    """There is no way back: repairs and what was erased would be forgotten."""
    raise NotImplementedError("this migration is not undone: it would forget what was repaired and what was erased")
