"""Audit lines know their transaction and are sealed into a chain; acts on many letters are found by each of them.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE audit ADD COLUMN xid BIGINT DEFAULT 0 NOT NULL",
    "ALTER TABLE audit ALTER COLUMN xid SET DEFAULT CAST(CAST(pg_current_xact_id() AS text) AS bigint)",
    "CREATE INDEX audit_xid ON audit (xid, id)",
    "CREATE INDEX audit_details ON audit USING gin (details jsonb_path_ops)",
    """
    CREATE TABLE audit_seal (
      n BIGINT NOT NULL,
      audit_id BIGINT NOT NULL,
      xid BIGINT NOT NULL,
      system BIGINT NOT NULL,
      digest BYTEA NOT NULL,
      sealed_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
      CONSTRAINT audit_seal_pkey PRIMARY KEY (n),
      CONSTRAINT audit_seal_key UNIQUE (audit_id),
      CONSTRAINT audit_seal_numbers CHECK (n >= 1 AND octet_length(digest) = 32)
    )
    """,
    """
    CREATE TRIGGER audit_seal_rows_stay BEFORE UPDATE OR DELETE ON audit_seal
      FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()
    """,
    """
    CREATE TRIGGER audit_seal_table_stays BEFORE TRUNCATE ON audit_seal
      FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()
    """,
)


def upgrade() -> None:
    """Lines that stand already belong to transactions that have ended: xid 0; the first pass seals them."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """There is no way back: the chain would be forgotten."""
    raise NotImplementedError("this migration is not undone: it would forget how the audit was sealed")
