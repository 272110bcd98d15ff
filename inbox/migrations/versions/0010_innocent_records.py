"""When a record that a dead owner had alone in its hands was last handled unharmed: then deaths are chance.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing that stands there is changed."""
    op.execute("ALTER TABLE fence ADD COLUMN innocent_at TIMESTAMP WITH TIME ZONE")


def downgrade() -> None:
    """Nothing but the memory of it is lost."""
    op.execute("ALTER TABLE fence DROP COLUMN innocent_at")
