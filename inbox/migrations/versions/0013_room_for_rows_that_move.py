"""A row that fails is written anew when it is tried or replayed: beside itself, where there is room for it.

What is there stays as it is until it is written anew. Names are unqualified: the migration runs with our schema as its
whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INDEXES = ("failure_position_key", "failure_put")
"""Those that grow at their ends, where pages are filled to the brim otherwise."""


def upgrade() -> None:
    """Takes no time: only what comes is put with room beside it."""
    op.execute("ALTER TABLE failure SET (fillfactor = 50)")
    for name in INDEXES:
        op.execute(f"ALTER INDEX {name} SET (fillfactor = 50)")


def downgrade() -> None:
    """The old release does not mind the room."""
    op.execute("ALTER TABLE failure RESET (fillfactor)")
    for name in INDEXES:
        op.execute(f"ALTER INDEX {name} RESET (fillfactor)")
