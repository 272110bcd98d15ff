"""Each table's columns, keys and rules. What they promise together is said in `tables`. No IO."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

NAME_CHARS_MAX: Final = 255
"""For names in unique keys: four bytes a character, twice, stay below the 2,704 bytes of a btree row."""

ID_TEXT_CHARS_MAX: Final = 512
"""How much of a readable id is kept; the key is its hash."""

INDEXED_TEXT_CHARS_MAX: Final = 300
"""For text in an index of its own: four bytes a character stay below the 2,704 bytes of a btree row."""

_Text: Final = sa.Text()
_Bytes: Final = sa.LargeBinary()
_Long: Final = sa.BigInteger()
_Int: Final = sa.Integer()
_Time: Final = sa.DateTime(timezone=True)


def _column(name: str, type_: sa.types.TypeEngine[Any], default: str | None = None) -> sa.Column[Any]:
    server_default = None if default is None else sa.text(default)
    return sa.Column(name, type_, nullable=False, server_default=server_default, autoincrement=False)


def _nullable(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=True)


def _identity(name: str) -> sa.Column[Any]:
    return sa.Column(name, _Long, sa.Identity(always=True), nullable=False)


def _check(table: str, name: str, rule: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(rule, name=f"{table}_{name}")


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"{table}_key")


def _index(name: str, *columns: str, where: str | None = None, unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, postgresql_where=None if where is None else sa.text(where))


def _short(table: str, *names: str) -> sa.CheckConstraint:
    rule = " AND ".join(f"{name} <> '' AND char_length({name}) <= {NAME_CHARS_MAX}" for name in names)
    return _check(table, "names", rule)


def handler_table(m: sa.MetaData) -> sa.Table:
    """Each registered projection or command of a consumer; `''` is for records without a handler of their own."""
    return sa.Table(
        "handler",
        m,
        _identity("id"),
        _column("consumer", _Text),
        _column("name", _Text),
        _key("handler", "id"),
        _unique("handler", "consumer", "name"),
        _check("handler", "names", f"consumer <> '' AND char_length(consumer) <= {NAME_CHARS_MAX}"
               f" AND char_length(name) <= {NAME_CHARS_MAX}"),
    )  # fmt: skip


def topic_table(m: sa.MetaData) -> sa.Table:
    """What a topic's name stands for now; `incarnation` is raised when the topic was made anew under its old name."""
    return sa.Table(
        "topic",
        m,
        _column("name", _Text),
        _nullable("topic_id", _Text),
        _column("incarnation", _Long, "0"),
        _key("topic", "name"),
        _check("topic", "incarnation", "incarnation >= 0"),
    )


def consumer_table(m: sa.MetaData) -> sa.Table:
    """Every consumer that ever started: `start="latest"` holds only at the first start."""
    return sa.Table(
        "consumer",
        m,
        _column("name", _Text),
        _column("first_started_at", _Time, "clock_timestamp()"),
        _key("consumer", "name"),
        _short("consumer", "name"),
    )


def fence_table(m: sa.MetaData) -> sa.Table:
    """Who may write for a partition.

    `epoch` stands in a unique key, so that changing it waits for `FOR KEY SHARE`; `wanted` stands in none, so that
    setting it waits for nobody.
    """
    return sa.Table(
        "fence",
        m,
        _column("consumer", _Text),
        _column("topic", _Text),
        _column("partition", _Int),
        _column("epoch", _Long, "0"),
        _nullable("wanted", _Text),
        _nullable("kafka_offset", _Long),
        _nullable("released_at", _Time),
        _column("crashes", _Long, "0"),
        _key("fence", "consumer", "topic", "partition"),
        _unique("fence", "consumer", "topic", "partition", "epoch"),
        _short("fence", "consumer", "topic"),
        _check("fence", "numbers", "partition >= 0 AND epoch >= 0 AND kafka_offset >= 0 AND crashes >= 0"),
        postgresql_with={"fillfactor": 50},
    )


def checkpoint_table(m: sa.MetaData) -> sa.Table:
    """How far a handler's version is in a partition, durable and moved by compare-and-set."""
    return sa.Table(
        "checkpoint",
        m,
        _column("handler", _Long),
        _column("version", _Int),
        _column("topic", _Text),
        _column("partition", _Int),
        _column("incarnation", _Long, "0"),
        _column("next_offset", _Long),
        _column("detached", sa.Boolean(), "false"),
        _key("checkpoint", "handler", "version", "topic", "partition"),
        _check("checkpoint", "numbers", "version >= 0 AND partition >= 0 AND incarnation >= 0 AND next_offset >= 0"),
        postgresql_with={"fillfactor": 50},
    )


def version_table(m: sa.MetaData) -> sa.Table:
    """The versions of a projection; fenced like a partition, so that freezing one waits for its open writers."""
    return sa.Table(
        "version",
        m,
        _column("projection", _Long),
        _column("version", _Int),
        _column("state", _Text),
        _column("epoch", _Long, "0"),
        _nullable("wanted", _Text),
        _key("version", "projection", "version"),
        _unique("version", "projection", "version", "epoch"),
        _check("version", "state", "state IN ('live', 'building', 'frozen', 'gone')"),
        _check("version", "numbers", "version >= 0 AND epoch >= 0"),
    )


def restored_table(m: sa.MetaData) -> sa.Table:
    """Below `until_offset` the database may have forgotten what it knew: there a missing row proves nothing."""
    return sa.Table(
        "restored",
        m,
        _column("consumer", _Text),
        _column("topic", _Text),
        _column("partition", _Int),
        _column("until_offset", _Long),
        _column("declared_at", _Time, "clock_timestamp()"),
        _column("declared_by", _Text),
        _key("restored", "consumer", "topic", "partition"),
        _check("restored", "numbers", "partition >= 0 AND until_offset >= 0"),
    )


def generation_table(m: sa.MetaData) -> sa.Table:
    """The catalogue of claim tables. Claims go into the highest `n` that is open; all in it are probed."""
    return sa.Table(
        "generation",
        m,
        _column("n", _Int),
        _column("table_name", _Text),
        _column("state", _Text),
        _column("born_at", _Time, "clock_timestamp()"),
        _key("generation", "n"),
        _check("generation", "state", "state IN ('open', 'closed')"),
        _check("generation", "table_name", "table_name = 'claim_' || n"),
    )


def generation_birth_table(m: sa.MetaData) -> sa.Table:
    """Each handler's checkpoints when a generation was made: what is older than the window is told by offsets."""
    return sa.Table(
        "generation_birth",
        m,
        _column("n", _Int),
        _column("handler", _Long),
        _column("version", _Int),
        _column("topic", _Text),
        _column("partition", _Int),
        _column("next_offset", _Long),
        _key("generation_birth", "n", "handler", "version", "topic", "partition"),
    )


def claim_table(m: sa.MetaData, n: int) -> sa.Table:
    """What was handled: 16 bytes of identity and 8 of payload hash. Narrow, and without checks: the hottest table."""
    name = f"claim_{n}"
    return sa.Table(
        name,
        m,
        _column("handler", _Long),
        _column("version", _Int),
        _column("event_id", _Bytes),
        _column("payload_hash8", _Long),
        _key(name, "handler", "version", "event_id"),
    )


def parked_key_table(m: sa.MetaData) -> sa.Table:
    """A lane that had a failure; `next_seq`, drawn under the row's lock, is the order within the lane."""
    return sa.Table(
        "parked_key",
        m,
        _column("handler", _Long),
        _column("topic", _Text),
        _column("key_hash", _Bytes),
        _column("key", _Bytes),
        _column("next_seq", _Long),
        _key("parked_key", "handler", "topic", "key_hash"),
        _check("parked_key", "numbers", "octet_length(key_hash) = 16 AND next_seq >= 1"),
    )


def failure_table(m: sa.MetaData) -> sa.Table:
    """Whatever was not plain success, with the record's bytes: the queue of the slow way."""
    return sa.Table("failure", m, *_failure_columns(), *_failure_rules(), *_failure_indexes())


def _failure_columns() -> list[sa.Column[Any]]:
    return [
        _identity("id"),
        _column("handler", _Long),
        _column("version", _Int),
        _column("origin", _Text),
        _column("topic", _Text),
        _column("incarnation", _Long),
        _column("partition", _Int),
        _column("record_offset", _Long),
        _column("home_topic", _Text),
        _column("home_partition", _Int),
        _column("event_id", _Bytes),
        _column("payload_hash8", _Long),
        _column("lane", _Bytes),
        _column("seq", _Long),
        _column("state", _Text),
        _column("reason", _Text),
        _nullable("due", _Time),
        _nullable("duplicate_of", _Long),
        _column("attempts", _Long),
        _column("replay_count", _Long, "0"),
        _column("row_version", _Long, "1"),
        _column("first_failed_at", _Time),
        _column("last_failed_at", _Time),
        _column("exception_type", _Text),
        _column("message", _Text),
        _column("stack_digest", _Text),
        _column("id_text", _Text),
        _column("type", _Text),
        _nullable("tenant", _Text),
        _nullable("brand", _Text),
        _column("correlation_id", _Text),
        _column("operation_id", _Text),
        _nullable("schema_id", _Long),
        _nullable("key", _Bytes),
        _nullable("value", _Bytes),
        _column("headers", _Bytes),
        _column("timestamp_ms", _Long),
        _column("timestamp_type", _Int),
    ]


def _failure_rules() -> list[sa.Constraint]:
    def rule(name: str, text: str) -> sa.CheckConstraint:
        return _check("failure", name, text)

    return [
        _key("failure", "id"),
        sa.ForeignKeyConstraint(["duplicate_of"], ["failure.id"], name="failure_duplicate_of_fkey", ondelete="CASCADE"),
        rule("origin", "origin IN ('event', 'job', 'letter')"),
        rule("event_has_position", "origin <> 'event' OR (topic <> '' AND partition >= 0 AND record_offset >= 0)"),
        rule("home", "home_topic <> '' AND home_partition >= 0"),
        rule("state", "state IN ('queued', 'dead', 'unknown', 'discarded', 'linked')"),
        rule("queued_is_due", "(state = 'queued') = (due IS NOT NULL)"),
        rule("linked_has_original", "(state = 'linked') = (duplicate_of IS NOT NULL)"),
        rule("reason", "reason <> ''"),
        rule("hashes", "octet_length(event_id) = 16 AND octet_length(lane) = 16"),
        rule("numbers", "version >= 0 AND incarnation >= 0 AND seq >= 1 AND attempts >= 0 AND replay_count >= 0"
             " AND row_version >= 1 AND timestamp_type BETWEEN 0 AND 2"),
        rule("order_of_time", "first_failed_at <= last_failed_at"),
    ]  # fmt: skip


def _failure_indexes() -> list[sa.Index]:
    position = ("handler", "version", "topic", "incarnation", "partition", "record_offset")
    return [
        _index("failure_position_key", *position, where="origin = 'event'", unique=True),
        _index("failure_event_id", "event_id"),
        _index("failure_handler", "handler", "state", "id"),
        _index("failure_pick_up", "home_topic", "home_partition", "due", where="state = 'queued'"),
        _index("failure_lane", "handler", "topic", "lane", "seq", where="state IN ('queued', 'unknown')"),
        _index("failure_duplicate_of", "duplicate_of", where="duplicate_of IS NOT NULL"),
        _index("failure_correlation_id", "correlation_id"),
        _index("failure_operation_id", "operation_id"),
    ]


def outbox_table(m: sa.MetaData) -> sa.Table:
    """What goes out to Kafka: committed with its cause, relayed in the order of `seq`."""
    return sa.Table(
        "outbox",
        m,
        _column("id", _Bytes),
        _identity("seq"),
        _column("kind", _Text),
        _nullable("consumer", _Text),
        _nullable("home_topic", _Text),
        _nullable("home_partition", _Int),
        _column("topic", _Text),
        _nullable("key", _Bytes),
        _nullable("payload", _Bytes),
        _column("headers", _Bytes),
        _column("correlation_id", _Text),
        _nullable("failure_id", _Long),
        _column("created_at", _Time, "clock_timestamp()"),
        _nullable("published_at", _Time),
        _key("outbox", "id"),
        _check("outbox", "id", "octet_length(id) = 16"),
        _check("outbox", "kind", "kind IN ('letter', 'publish')"),
        _check("outbox", "topic", "topic <> ''"),
        _check("outbox", "home", "num_nulls(consumer, home_topic, home_partition) IN (0, 3)"),
        _index("outbox_unpublished", "consumer", "home_topic", "home_partition", "seq", where="published_at IS NULL"),
        _index("outbox_waiting", "created_at", where="published_at IS NULL"),
        _index("outbox_correlation_id", "correlation_id"),
    )


def audit_table(m: sa.MetaData) -> sa.Table:
    """Who did what, allowed or denied. A trigger refuses UPDATE, DELETE and TRUNCATE."""
    return sa.Table(
        "audit",
        m,
        _identity("id"),
        _column("at", _Time, "clock_timestamp()"),
        _column("act", _Text),
        _column("actor", _Text),
        _column("allowed", sa.Boolean()),
        _column("consumer", _Text),
        _column("handler", _Text),
        _nullable("failure_id", _Long),
        _nullable("event_id", _Bytes),
        _column("correlation_id", _Text),
        _column("operation_id", _Text),
        _nullable("tenant", _Text),
        _nullable("brand", _Text),
        _column("details", postgresql.JSONB(), "'{}'"),
        _key("audit", "id"),
        _check("audit", "words", "act <> '' AND actor <> ''"),
        _index("audit_event_id", "event_id", where="event_id IS NOT NULL"),
        _index("audit_failure_id", "failure_id", where="failure_id IS NOT NULL"),
        _index("audit_correlation_id", "correlation_id"),
    )
