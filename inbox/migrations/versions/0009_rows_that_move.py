"""What an operator looks up is indexed of rows that stand, not of those that are queued and soon gone.

A replay moves each of its rows into the queue and out of it: every index that has a row in both is written twice. The
foreign key of linked rows cost a query for each row that ended; who deletes the first row deletes them now. Names are
unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE failure DROP CONSTRAINT failure_duplicate_of_fkey",
    "DROP INDEX failure_handler",
    "CREATE INDEX failure_handler ON failure (handler, id) WHERE state = 'dead'",
    "DROP INDEX failure_correlation_id",
    "CREATE INDEX failure_correlation_id ON failure (correlation_id) WHERE state <> 'queued'",
    "DROP INDEX failure_operation_id",
    "CREATE INDEX failure_operation_id ON failure (operation_id) WHERE state <> 'queued'",
    "DROP INDEX failure_state",
    "CREATE INDEX failure_state ON failure (state, id) WHERE state <> 'queued'",
    "DROP INDEX failure_key",
    "CREATE INDEX failure_key ON failure (sha256(key)) WHERE key IS NOT NULL AND state <> 'queued'",
)


def upgrade() -> None:
    """Nothing that stands there is changed."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """There is no way back: repeats of what ended meanwhile would stay for ever."""
    raise NotImplementedError("this migration is not undone: rows would stay whose first one is gone")
