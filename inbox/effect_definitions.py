"""The tables of calls to the outside, and of what replicas share about them. No IO."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from .columns import Bytes, Int, Long, Text, Time, check, column, identity, index, key, nullable, short, unique

NOT_PLAIN = "state IN ('failed', 'unknown', 'resolved')"
"""What is found by operation and correlation: whatever was not plain success. A success is found by its identity, which
follows from (scope, owner, name, operation id), and costs no more than its key.
"""


def effect_table(m: sa.MetaData) -> sa.Table:
    """Calls to the outside: what was intended, under which key, and what is known of its end.

    One row for each operation; `identity` is the hash of (scope, owner, name, operation id), whose texts stand beside
    it to be read. `attempt_id` is the call that counts now, `earlier` those before it: a late answer of one of them is
    evidence, and an alarm where a byte (`effects.GIVEN_UP`) stands behind its id. `key` goes out with the call and is
    the same in every attempt, unless a person said otherwise (`key_no`). `due` is when another attempt or a probe may
    look at it. `in_doubt`: an attempt before this one may have been done. `unsure` counts the calls that nobody knew
    the end of, since one was refused or a person looked.
    """
    return sa.Table("effect", m, *_effect_columns(), *_effect_rules(), postgresql_with={"fillfactor": 70})


def _effect_columns() -> list[sa.Column[Any]]:
    return [
        identity("id"),
        column("identity", Bytes),
        column("scope", Text),
        column("owner", Text),
        column("name", Text),
        column("operation_id", Text),
        column("state", Text),
        column("rule", Text),
        column("provider", Text),
        column("fingerprint", Bytes),
        column("attempt_id", Bytes),
        column("earlier", postgresql.ARRAY(Bytes), "'{}'"),
        column("attempts", Long, "1"),
        column("unsure", Long, "0"),
        column("in_doubt", sa.Boolean(), "false"),
        column("key", Text),
        column("key_no", Int, "0"),
        column("key_since", Time, "clock_timestamp()"),
        column("intended_at", Time, "clock_timestamp()"),
        column("deadline", Time),
        column("due", Time),
        nullable("ended_at", Time),
        nullable("external_id", Text),
        nullable("second_external_id", Text),
        nullable("result", postgresql.JSONB()),
        column("error", Text, "''"),
        nullable("resolution", Text),
        column("probes", Long, "0"),
        column("consumer", Text, "''"),
        nullable("event_id", Bytes),
        nullable("tenant", Text),
        nullable("brand", Text),
        column("correlation_id", Text, "''"),
        column("row_version", Long, "1"),
    ]


def _effect_rules() -> list[sa.Constraint | sa.Index]:
    def rule(name: str, text: str) -> sa.CheckConstraint:
        return check("effect", name, text)

    return [
        key("effect", "id"),
        unique("effect", "identity"),
        rule("names", "owner <> '' AND name <> '' AND operation_id <> '' AND key <> ''"),
        rule("state", "state IN ('intended', 'completed', 'failed', 'unknown', 'resolved')"),
        rule("rule", "rule IN ('idempotent_key', 'probe', 'review')"),
        rule("resolution", "(state = 'resolved') = (resolution IS NOT NULL)"
             " AND (resolution IS NULL OR resolution IN ('done', 'not_done', 'discarded'))"),
        rule("ended", "(state = 'intended') = (ended_at IS NULL)"),
        rule("result", "result IS NULL OR state = 'completed' OR resolution = 'done'"),
        rule("ids", "octet_length(identity) = 16 AND octet_length(attempt_id) = 16 AND octet_length(fingerprint) = 16"
             " AND (event_id IS NULL OR octet_length(event_id) = 16)"),
        rule("numbers", "attempts >= 1 AND unsure >= 0 AND key_no >= 0 AND probes >= 0 AND row_version >= 1"),
        index("effect_open", "due", where="state IN ('intended', 'unknown')"),
        index("effect_operation_id", "operation_id", where=NOT_PLAIN),
        index("effect_correlation_id", "correlation_id", where=NOT_PLAIN),
    ]  # fmt: skip


def lease_table(m: sa.MetaData) -> sa.Table:
    """Who does what only one may do. `token` stands in a unique key: a new holder waits for the old one's writes."""
    return sa.Table(
        "lease",
        m,
        column("name", Text),
        column("token", Long, "0"),
        column("holder", Text),
        column("expires_at", Time),
        key("lease", "name"),
        unique("lease", "name", "token"),
        short("lease", "name"),
        check("lease", "token", "token >= 0"),
        postgresql_with={"fillfactor": 50},
    )


def breaker_table(m: sa.MetaData) -> sa.Table:
    """A circuit breaker that all replicas share: of a provider, or of a consumer's dead letters."""
    return sa.Table(
        "breaker",
        m,
        column("name", Text),
        column("state", Text),
        column("failures", Long, "0"),
        column("why", Text, "''"),
        nullable("opened_at", Time),
        nullable("retry_at", Time),
        column("changes", Long, "0"),
        key("breaker", "name"),
        short("breaker", "name"),
        check("breaker", "state", "state IN ('closed', 'open', 'half_open')"),
        check("breaker", "times", "num_nulls(opened_at, retry_at) = CASE state WHEN 'closed' THEN 2 ELSE 0 END"),
        check("breaker", "numbers", "failures >= 0 AND changes >= 0"),
    )


def suspect_table(m: sa.MetaData) -> sa.Table:
    """What is handled alone (a record, or the failure row `failure_id` of one): written before it is touched.

    `deaths` counts the unclean ends at which it was found `in_hand`.
    """
    return sa.Table(
        "suspect",
        m,
        column("consumer", Text),
        column("topic", Text),
        column("partition", Int),
        column("record_offset", Long),
        nullable("failure_id", Long),
        column("since", Time, "clock_timestamp()"),
        column("deaths", Long, "0"),
        column("in_hand", sa.Boolean(), "true"),
        key("suspect", "consumer", "topic", "partition"),
        check("suspect", "numbers", "partition >= 0 AND record_offset >= 0 AND deaths >= 0"),
    )
