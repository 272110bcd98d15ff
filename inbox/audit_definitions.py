"""The seals of the audit: each line's place in a chain of hashes. What they promise is said in `audit_seal`. No IO."""

from __future__ import annotations

import sqlalchemy as sa

from .columns import Bytes, Long, Time, check, column, key, unique


def audit_seal_table(m: sa.MetaData) -> sa.Table:
    """One row for each sealed line; a trigger refuses UPDATE, DELETE and TRUNCATE.

    `xid` is the line's transaction, 0 for one of a former cluster; `system` is the cluster that sealed it.
    """
    return sa.Table(
        "audit_seal",
        m,
        column("n", Long),
        column("audit_id", Long),
        column("xid", Long),
        column("system", Long),
        column("digest", Bytes),
        column("sealed_at", Time, "clock_timestamp()"),
        key("audit_seal", "n"),
        unique("audit_seal", "audit_id"),
        check("audit_seal", "numbers", "n >= 1 AND octet_length(digest) = 32"),
    )
