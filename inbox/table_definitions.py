"""Each table's columns, keys and rules. What they promise together is said in `tables`. No IO."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from .columns import (
    NAME_CHARS_MAX,
    Bytes,
    Int,
    Long,
    Text,
    Time,
    check,
    column,
    identity,
    index,
    key,
    nullable,
    short,
    unique,
)


def handler_table(m: sa.MetaData) -> sa.Table:
    """Each registered projection or command of a consumer; `''` is for records without a handler of their own.

    `former_name` is what a renamed one was called before; `discarded_at` says that a gone one is not missed. `kind` is
    said at the first start, and never changes.
    """
    return sa.Table(
        "handler",
        m,
        identity("id"),
        column("consumer", Text),
        column("name", Text),
        nullable("former_name", Text),
        nullable("discarded_at", Time),
        nullable("kind", Text),
        key("handler", "id"),
        unique("handler", "consumer", "name"),
        check("handler", "names", f"consumer <> '' AND char_length(consumer) <= {NAME_CHARS_MAX}"
               f" AND char_length(name) <= {NAME_CHARS_MAX}"),
        check("handler", "kind", "kind IN ('command', 'projection')"),
    )  # fmt: skip


def topic_table(m: sa.MetaData) -> sa.Table:
    """What a topic's name stands for now; `incarnation` is raised when the topic was made anew under its old name."""
    return sa.Table(
        "topic",
        m,
        column("name", Text),
        nullable("topic_id", Text),
        column("incarnation", Long, "0"),
        key("topic", "name"),
        check("topic", "incarnation", "incarnation >= 0"),
    )


def consumer_table(m: sa.MetaData) -> sa.Table:
    """Every consumer that ever started: `start="latest"` holds only at the first start.

    `app` is the name of the app that started it last: what that one no longer has is gone, another app's is not.
    """
    return sa.Table(
        "consumer",
        m,
        column("name", Text),
        column("first_started_at", Time, "clock_timestamp()"),
        column("done_needs", postgresql.JSONB(), "'{}'"),
        nullable("app", Text),
        key("consumer", "name"),
        short("consumer", "name"),
    )


def fence_table(m: sa.MetaData) -> sa.Table:
    """Who may write for a partition.

    `epoch` stands in a unique key, so that changing it waits for `FOR KEY SHARE`; `wanted` stands in none, so that
    setting it waits for nobody.
    """
    return sa.Table(
        "fence",
        m,
        column("consumer", Text),
        column("topic", Text),
        column("partition", Int),
        column("epoch", Long, "0"),
        nullable("wanted", Text),
        nullable("kafka_offset", Long),
        nullable("released_at", Time),
        column("crashes", Long, "0"),
        nullable("crash_point", Long),
        column("in_hand", postgresql.ARRAY(sa.BigInteger()), "'{}'"),
        nullable("innocent_at", Time),
        key("fence", "consumer", "topic", "partition"),
        unique("fence", "consumer", "topic", "partition", "epoch"),
        short("fence", "consumer", "topic"),
        check("fence", "numbers", "partition >= 0 AND epoch >= 0 AND kafka_offset >= 0 AND crashes >= 0"),
        postgresql_with={"fillfactor": 50},
    )


def checkpoint_table(m: sa.MetaData) -> sa.Table:
    """How far a handler's version is in a partition, durable and moved by compare-and-set.

    `held`: by the backfill of this number, and then nobody moves it (see `holds`).
    """
    return sa.Table(
        "checkpoint",
        m,
        column("handler", Long),
        column("version", Int),
        column("topic", Text),
        column("partition", Int),
        column("incarnation", Long, "0"),
        column("next_offset", Long),
        column("detached", sa.Boolean(), "false"),
        nullable("held", Long),
        key("checkpoint", "handler", "version", "topic", "partition"),
        check("checkpoint", "numbers", "version >= 0 AND partition >= 0 AND incarnation >= 0 AND next_offset >= 0"),
        check("checkpoint", "held", "held IS NULL OR detached"),
        postgresql_with={"fillfactor": 50},
    )


def version_table(m: sa.MetaData) -> sa.Table:
    """The versions of a projection; fenced like a partition, so that freezing one waits for its open writers."""
    return sa.Table(
        "version",
        m,
        column("projection", Long),
        column("version", Int),
        column("state", Text),
        column("epoch", Long, "0"),
        nullable("wanted", Text),
        key("version", "projection", "version"),
        unique("version", "projection", "version", "epoch"),
        check("version", "state", "state IN ('live', 'building', 'frozen', 'gone')"),
        check("version", "numbers", "version >= 0 AND epoch >= 0"),
    )


def restored_table(m: sa.MetaData) -> sa.Table:
    """Below `until_offset` the database may have forgotten what it knew: there a missing row proves nothing."""
    return sa.Table(
        "restored",
        m,
        column("consumer", Text),
        column("topic", Text),
        column("partition", Int),
        column("until_offset", Long),
        column("declared_at", Time, "clock_timestamp()"),
        column("declared_by", Text),
        key("restored", "consumer", "topic", "partition"),
        check("restored", "numbers", "partition >= 0 AND until_offset >= 0"),
    )


def generation_table(m: sa.MetaData) -> sa.Table:
    """The catalogue of claim tables. Claims go into the highest `n` that is open; all in it are probed."""
    return sa.Table(
        "generation",
        m,
        column("n", Int),
        column("table_name", Text),
        column("state", Text),
        column("born_at", Time, "clock_timestamp()"),
        key("generation", "n"),
        check("generation", "state", "state IN ('open', 'closed')"),
        check("generation", "table_name", "table_name = 'claim_' || n"),
    )


def generation_birth_table(m: sa.MetaData) -> sa.Table:
    """Each handler's checkpoints when a generation was made: what is older than the window is told by offsets.

    Offsets of `incarnation`: those of a topic that was made anew mean other records. See `births`.
    """
    return sa.Table(
        "generation_birth",
        m,
        column("n", Int),
        column("handler", Long),
        column("version", Int),
        column("topic", Text),
        column("partition", Int),
        column("incarnation", Long, "0"),
        column("next_offset", Long),
        key("generation_birth", "n", "handler", "version", "topic", "partition"),
    )


def claim_table(m: sa.MetaData, n: int) -> sa.Table:
    """What was handled: 16 bytes of identity and 8 of payload hash. Narrow, and without checks: the hottest table."""
    name = f"claim_{n}"
    return sa.Table(
        name,
        m,
        column("handler", Long),
        column("version", Int),
        column("event_id", Bytes),
        column("payload_hash8", Long),
        key(name, "handler", "version", "event_id"),
    )


def parked_key_table(m: sa.MetaData) -> sa.Table:
    """A lane that had a failure; `next_seq`, drawn under the row's lock, is the order within the lane.

    `waiting` counts the rows that hold the lane (queued, unknown, dead under `hold`): the key is parked while there are
    any. `head_seq` is the place of the first of them; `head_due` and `head_home_*` are its own where it is queued: what
    may be taken up is found by them, however many rows wait behind.
    """
    return sa.Table(
        "parked_key",
        m,
        column("handler", Long),
        column("topic", Text),
        column("key_hash", Bytes),
        column("key", Bytes),
        column("next_seq", Long),
        column("waiting", Long, "0"),
        nullable("head_seq", Long),
        nullable("head_due", Time),
        nullable("head_home_topic", Text),
        nullable("head_home_partition", Int),
        key("parked_key", "handler", "topic", "key_hash"),
        check("parked_key", "numbers", "octet_length(key_hash) = 16 AND next_seq >= 1 AND waiting >= 0"),
        check("parked_key", "head", "num_nulls(head_due, head_home_topic, head_home_partition) IN (0, 3)"
               " AND (head_due IS NULL OR head_seq IS NOT NULL) AND (waiting = 0) = (head_seq IS NULL)"),
        index("parked_key_due", "handler", "head_home_topic", "head_home_partition", "head_due",
              where="head_due IS NOT NULL"),
        index("parked_key_waiting", "handler", "topic", "key_hash", where="waiting > 0"),
    )  # fmt: skip


def failure_table(m: sa.MetaData) -> sa.Table:
    """Whatever was not plain success, with the record's bytes: the queue of the slow way.

    `put_xid` is the transaction that put the row: what was put since a snapshot is found by it. `edited_value` is what
    a person repaired; what was received stays beside it. A redacted row has no payload any more, and is never run.
    Pages are half filled, because a row is written anew when it is tried or replayed: on its own page that is half the
    log.
    """
    parts = (*_failure_columns(), *_failure_rules(), *_failure_indexes())
    return sa.Table("failure", m, *parts, postgresql_with={"fillfactor": 50})


def _failure_columns() -> list[sa.Column[Any]]:
    return [
        identity("id"),
        column("handler", Long),
        column("version", Int),
        column("origin", Text),
        column("topic", Text),
        column("incarnation", Long),
        column("partition", Int),
        column("record_offset", Long),
        column("home_topic", Text),
        column("home_partition", Int),
        column("event_id", Bytes),
        column("payload_hash8", Long),
        column("lane", Bytes),
        column("alone", sa.Boolean(), "false"),
        column("holds", sa.Boolean(), "false"),
        column("seq", Long),
        column("state", Text),
        column("reason", Text),
        nullable("due", Time),
        nullable("duplicate_of", Long),
        column("attempts", Long),
        column("class_attempts", Long, "0"),
        nullable("retrying_since", Time),
        nullable("effect_id", Long),
        column("replay_count", Long, "0"),
        column("row_version", Long, "1"),
        column("put_xid", Long, "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"),
        column("first_failed_at", Time),
        column("last_failed_at", Time),
        column("exception_type", Text),
        column("message", Text),
        column("stack_digest", Text),
        column("id_text", Text),
        column("type", Text),
        nullable("tenant", Text),
        nullable("brand", Text),
        column("correlation_id", Text),
        column("operation_id", Text),
        nullable("schema_id", Long),
        nullable("key", Bytes),
        nullable("value", Bytes),
        column("headers", Bytes),
        column("timestamp_ms", Long),
        column("timestamp_type", Int),
        nullable("edited_value", Bytes),
        nullable("edit_id", Bytes),
        nullable("redacted_at", Time),
        nullable("attempt_id", Bytes),
    ]


def _failure_rules() -> list[sa.Constraint]:
    def rule(name: str, text: str) -> sa.CheckConstraint:
        return check("failure", name, text)

    return [
        key("failure", "id"),
        rule("origin", "origin IN ('event', 'job', 'letter')"),
        rule("event_has_position", "origin <> 'event' OR (topic <> '' AND partition >= 0 AND record_offset >= 0)"),
        rule("home", "home_topic <> '' AND home_partition >= 0"),
        rule("state", "state IN ('queued', 'dead', 'unknown', 'discarded', 'linked')"),
        rule("queued_is_due", "(state = 'queued') = (due IS NOT NULL)"),
        rule("holds", "NOT holds OR state = 'dead'"),
        rule("linked_has_original", "(state = 'linked') = (duplicate_of IS NOT NULL)"),
        rule("reason", "reason <> ''"),
        rule("hashes", "octet_length(event_id) = 16 AND octet_length(lane) = 16"),
        rule("numbers", "version >= 0 AND incarnation >= 0 AND seq >= 1 AND attempts >= 0 AND class_attempts >= 0"
             " AND replay_count >= 0 AND row_version >= 1 AND timestamp_type BETWEEN 0 AND 2"),
        rule("order_of_time", "first_failed_at <= last_failed_at"),
        rule("edit", "num_nulls(edited_value, edit_id) IN (0, 2) AND (edit_id IS NULL OR octet_length(edit_id) = 16)"),
        rule("redacted", "redacted_at IS NULL OR (num_nonnulls(key, value, edited_value) = 0"
             " AND state IN ('dead', 'discarded', 'linked'))"),
        rule("attempt", "octet_length(attempt_id) = 16"),
    ]  # fmt: skip


def _failure_indexes() -> list[sa.Index]:
    position = ("handler", "version", "topic", "incarnation", "partition", "record_offset")
    return [
        index("failure_position_key", *position, where="origin = 'event'", unique=True, fillfactor=50),
        index("failure_letter_key", "handler", "version", "event_id", where="origin = 'letter'", unique=True),
        index("failure_event_id", "handler", "event_id"),
        index("failure_handler", "handler", "id", where="state = 'dead'"),
        index("failure_put", "handler", "put_xid", "id", fillfactor=50),
        index("failure_pick_up", "handler", "home_topic", "home_partition", "due", where="state = 'queued' AND alone"),
        index(
            "failure_lane",
            "handler",
            "topic",
            "lane",
            "seq",
            where="NOT alone AND (state IN ('queued', 'unknown') OR holds)",
        ),
        index("failure_effect_id", "effect_id", where="effect_id IS NOT NULL"),
        index("failure_duplicate_of", "duplicate_of", where="duplicate_of IS NOT NULL"),
        index("failure_correlation_id", "correlation_id", where="state <> 'queued'"),
        index("failure_operation_id", "operation_id", where="state <> 'queued'"),
        index("failure_state", "state", "id", where="state <> 'queued'"),
        index("failure_dead", "handler", "reason", "exception_type", "tenant", "last_failed_at", "first_failed_at",
              where="state = 'dead'"),
        sa.Index("failure_key", sa.text("sha256(key)"),
                 postgresql_where=sa.text("key IS NOT NULL AND state <> 'queued'")),
    ]  # fmt: skip


def note_table(m: sa.MetaData) -> sa.Table:
    """What operators wrote down about a group of letters; `group_name` as the groups are named."""
    return sa.Table(
        "note",
        m,
        identity("id"),
        column("at", Time, "clock_timestamp()"),
        column("group_name", Text),
        column("actor", Text),
        column("text", Text),
        key("note", "id"),
        check("note", "words", "group_name <> '' AND actor <> '' AND text <> ''"),
        index("note_group_name", "group_name", "id"),
    )


def outbox_table(m: sa.MetaData) -> sa.Table:
    """What goes out to Kafka: committed with its cause, relayed in the order of `seq`."""
    return sa.Table(
        "outbox",
        m,
        column("id", Bytes),
        identity("seq"),
        column("kind", Text),
        nullable("consumer", Text),
        nullable("home_topic", Text),
        nullable("home_partition", Int),
        column("topic", Text),
        nullable("key", Bytes),
        nullable("payload", Bytes),
        column("headers", Bytes),
        column("correlation_id", Text),
        nullable("failure_id", Long),
        column("created_at", Time, "clock_timestamp()"),
        nullable("published_at", Time),
        key("outbox", "id"),
        check("outbox", "id", "octet_length(id) = 16"),
        check("outbox", "kind", "kind IN ('letter', 'publish')"),
        check("outbox", "topic", "topic <> ''"),
        check("outbox", "home", "num_nulls(consumer, home_topic, home_partition) IN (0, 3)"),
        index("outbox_unpublished", "consumer", "home_topic", "home_partition", "seq", where="published_at IS NULL"),
        index("outbox_waiting", "created_at", where="published_at IS NULL"),
        index("outbox_correlation_id", "correlation_id"),
        index("outbox_failure_id", "failure_id", where="failure_id IS NOT NULL"),
    )


def audit_table(m: sa.MetaData) -> sa.Table:
    """Who did what, allowed or denied. A trigger refuses UPDATE, DELETE and TRUNCATE.

    `xid` is the transaction that wrote the line: what may be sealed is told by it.
    """
    return sa.Table(
        "audit",
        m,
        identity("id"),
        column("at", Time, "clock_timestamp()"),
        column("act", Text),
        column("actor", Text),
        column("allowed", sa.Boolean()),
        column("consumer", Text),
        column("handler", Text),
        nullable("failure_id", Long),
        nullable("event_id", Bytes),
        column("correlation_id", Text),
        column("operation_id", Text),
        nullable("tenant", Text),
        nullable("brand", Text),
        column("details", postgresql.JSONB(), "'{}'"),
        column("xid", Long, "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"),
        key("audit", "id"),
        check("audit", "words", "act <> '' AND actor <> ''"),
        index("audit_event_id", "event_id", where="event_id IS NOT NULL"),
        index("audit_failure_id", "failure_id", where="failure_id IS NOT NULL"),
        index("audit_correlation_id", "correlation_id"),
        index("audit_xid", "xid", "id"),
        sa.Index(
            "audit_details",
            "details",
            postgresql_using="gin",
            postgresql_ops={"details": "jsonb_path_ops"},
        ),
    )
