"""Where each handler's claims begin, by the incarnation of its topic.

Of handlers that are there already it is not known any more, so it is where they stand now: what was handled has its
claim still, and a missing claim of an older event proves nothing. Names are unqualified: the migration runs with our
schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE generation_birth ADD COLUMN incarnation BIGINT DEFAULT 0 NOT NULL",
    """
INSERT INTO generation_birth (n, handler, version, topic, partition, incarnation, next_offset)
SELECT g.n, c.handler, c.version, c.topic, c.partition, c.incarnation, c.next_offset
  FROM generation g CROSS JOIN checkpoint c
    ON CONFLICT DO NOTHING
""",
)


def upgrade() -> None:
    """Nothing that stands there is changed."""
    for statement in STATEMENTS:
        op.execute(statement.strip())


def downgrade() -> None:
    """There is no way back: what is older than the claims would be taken for what was never handled."""
    raise NotImplementedError("this migration is not undone: it would forget where claims begin")
