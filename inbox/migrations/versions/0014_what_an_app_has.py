"""What an app has: the kind of each handler, and whose each consumer is.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

KINDS = """
UPDATE handler h
   SET kind = CASE WHEN NOT EXISTS (SELECT FROM version v WHERE v.projection = h.id) THEN 'command'
                   WHEN NOT EXISTS (SELECT FROM checkpoint c WHERE c.handler = h.id AND c.version = 0)
                   THEN 'projection' END
 WHERE h.name <> ''
"""
"""A projection has a version from its first start on. One that was both is what its next start says."""


def upgrade() -> None:
    """A consumer is nobody's until its process starts anew."""
    op.execute("ALTER TABLE handler ADD COLUMN kind TEXT")
    op.execute(KINDS)
    op.execute("ALTER TABLE handler ADD CONSTRAINT handler_kind CHECK (kind IN ('command', 'projection'))")
    op.execute("ALTER TABLE consumer ADD COLUMN app TEXT")


def downgrade() -> None:
    """Both come back with each start."""
    op.execute("ALTER TABLE consumer DROP COLUMN app")
    op.execute("ALTER TABLE handler DROP COLUMN kind")
