"""A backfill may hold a projection's live version, and may be abandoned.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE checkpoint ADD COLUMN held BIGINT",
    "ALTER TABLE checkpoint ADD CONSTRAINT checkpoint_held CHECK (held IS NULL OR detached)",
    "ALTER TABLE backfill ADD COLUMN abandoned_at TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE backfill ADD CONSTRAINT backfill_over CHECK (ended_at IS NULL OR abandoned_at IS NULL)",
    "ALTER TABLE backfill_part ADD COLUMN live_offset BIGINT",
    """
ALTER TABLE backfill_part ADD CONSTRAINT backfill_part_live
  CHECK (live_offset >= start_offset AND live_offset <= end_offset)
""",
)


def upgrade() -> None:
    """Nothing that stands there is changed."""
    for statement in STATEMENTS:
        op.execute(statement.strip())


def downgrade() -> None:
    """There is no way back: what is held would write beside its backfill."""
    raise NotImplementedError("this migration is not undone: it would forget what is held")
