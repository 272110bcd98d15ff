"""What a person has to give who says of an effect's call that it was done, as the app of each consumer declares it.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Until its process starts anew a consumer declares nothing."""
    op.execute("ALTER TABLE consumer ADD COLUMN done_needs JSONB DEFAULT '{}' NOT NULL")


def downgrade() -> None:
    """Nothing but the declarations is lost: they come with each start."""
    op.execute("ALTER TABLE consumer DROP COLUMN done_needs")
