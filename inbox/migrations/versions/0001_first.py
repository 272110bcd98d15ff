"""The first tables: fence, checkpoints, claims in generations, failure rows, outbox, audit.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE handler (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  consumer TEXT NOT NULL,
  name TEXT NOT NULL,
  CONSTRAINT handler_pkey PRIMARY KEY (id),
  CONSTRAINT handler_key UNIQUE (consumer, name),
  CONSTRAINT handler_names CHECK (consumer <> '' AND char_length(consumer) <= 255 AND char_length(name) <= 255)
);

CREATE TABLE topic (
  name TEXT NOT NULL,
  topic_id TEXT,
  incarnation BIGINT DEFAULT 0 NOT NULL,
  CONSTRAINT topic_pkey PRIMARY KEY (name),
  CONSTRAINT topic_incarnation CHECK (incarnation >= 0)
);

CREATE TABLE consumer (
  name TEXT NOT NULL,
  first_started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT consumer_pkey PRIMARY KEY (name),
  CONSTRAINT consumer_names CHECK (name <> '' AND char_length(name) <= 255)
);

CREATE TABLE fence (
  consumer TEXT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  epoch BIGINT DEFAULT 0 NOT NULL,
  wanted TEXT,
  kafka_offset BIGINT,
  released_at TIMESTAMP WITH TIME ZONE,
  crashes BIGINT DEFAULT 0 NOT NULL,
  CONSTRAINT fence_pkey PRIMARY KEY (consumer, topic, partition),
  CONSTRAINT fence_key UNIQUE (consumer, topic, partition, epoch),
  CONSTRAINT fence_names CHECK (consumer <> '' AND char_length(consumer) <= 255 AND topic <> '' AND
    char_length(topic) <= 255),
  CONSTRAINT fence_numbers CHECK (partition >= 0 AND epoch >= 0 AND kafka_offset >= 0 AND crashes >= 0)
) WITH (fillfactor = 50);

CREATE TABLE checkpoint (
  handler BIGINT NOT NULL,
  version INTEGER NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  incarnation BIGINT DEFAULT 0 NOT NULL,
  next_offset BIGINT NOT NULL,
  detached BOOLEAN DEFAULT false NOT NULL,
  CONSTRAINT checkpoint_pkey PRIMARY KEY (handler, version, topic, partition),
  CONSTRAINT checkpoint_numbers CHECK (version >= 0 AND partition >= 0 AND incarnation >= 0 AND next_offset >= 0)
) WITH (fillfactor = 50);

CREATE TABLE version (
  projection BIGINT NOT NULL,
  version INTEGER NOT NULL,
  state TEXT NOT NULL,
  epoch BIGINT DEFAULT 0 NOT NULL,
  wanted TEXT,
  CONSTRAINT version_pkey PRIMARY KEY (projection, version),
  CONSTRAINT version_key UNIQUE (projection, version, epoch),
  CONSTRAINT version_state CHECK (state IN ('live', 'building', 'frozen', 'gone')),
  CONSTRAINT version_numbers CHECK (version >= 0 AND epoch >= 0)
);

CREATE TABLE restored (
  consumer TEXT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  until_offset BIGINT NOT NULL,
  declared_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  declared_by TEXT NOT NULL,
  CONSTRAINT restored_pkey PRIMARY KEY (consumer, topic, partition),
  CONSTRAINT restored_numbers CHECK (partition >= 0 AND until_offset >= 0)
);

CREATE TABLE generation (
  n INTEGER NOT NULL,
  table_name TEXT NOT NULL,
  state TEXT NOT NULL,
  born_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  CONSTRAINT generation_pkey PRIMARY KEY (n),
  CONSTRAINT generation_state CHECK (state IN ('open', 'closed')),
  CONSTRAINT generation_table_name CHECK (table_name = 'claim_' || n)
);

CREATE TABLE generation_birth (
  n INTEGER NOT NULL,
  handler BIGINT NOT NULL,
  version INTEGER NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  next_offset BIGINT NOT NULL,
  CONSTRAINT generation_birth_pkey PRIMARY KEY (n, handler, version, topic, partition)
);

CREATE TABLE claim_1 (
  handler BIGINT NOT NULL,
  version INTEGER NOT NULL,
  event_id BYTEA NOT NULL,
  payload_hash8 BIGINT NOT NULL,
  CONSTRAINT claim_1_pkey PRIMARY KEY (handler, version, event_id)
);

CREATE TABLE parked_key (
  handler BIGINT NOT NULL,
  topic TEXT NOT NULL,
  key_hash BYTEA NOT NULL,
  key BYTEA NOT NULL,
  next_seq BIGINT NOT NULL,
  CONSTRAINT parked_key_pkey PRIMARY KEY (handler, topic, key_hash),
  CONSTRAINT parked_key_numbers CHECK (octet_length(key_hash) = 16 AND next_seq >= 1)
);

CREATE TABLE failure (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  handler BIGINT NOT NULL,
  version INTEGER NOT NULL,
  origin TEXT NOT NULL,
  topic TEXT NOT NULL,
  incarnation BIGINT NOT NULL,
  partition INTEGER NOT NULL,
  record_offset BIGINT NOT NULL,
  home_topic TEXT NOT NULL,
  home_partition INTEGER NOT NULL,
  event_id BYTEA NOT NULL,
  payload_hash8 BIGINT NOT NULL,
  lane BYTEA NOT NULL,
  seq BIGINT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL,
  due TIMESTAMP WITH TIME ZONE,
  duplicate_of BIGINT,
  attempts BIGINT NOT NULL,
  replay_count BIGINT DEFAULT 0 NOT NULL,
  row_version BIGINT DEFAULT 1 NOT NULL,
  first_failed_at TIMESTAMP WITH TIME ZONE NOT NULL,
  last_failed_at TIMESTAMP WITH TIME ZONE NOT NULL,
  exception_type TEXT NOT NULL,
  message TEXT NOT NULL,
  stack_digest TEXT NOT NULL,
  id_text TEXT NOT NULL,
  type TEXT NOT NULL,
  tenant TEXT,
  brand TEXT,
  correlation_id TEXT NOT NULL,
  operation_id TEXT NOT NULL,
  schema_id BIGINT,
  key BYTEA,
  value BYTEA,
  headers BYTEA NOT NULL,
  timestamp_ms BIGINT NOT NULL,
  timestamp_type INTEGER NOT NULL,
  CONSTRAINT failure_pkey PRIMARY KEY (id),
  CONSTRAINT failure_duplicate_of_fkey FOREIGN KEY(duplicate_of) REFERENCES failure (id) ON DELETE CASCADE,
  CONSTRAINT failure_origin CHECK (origin IN ('event', 'job', 'letter')),
  CONSTRAINT failure_event_has_position CHECK (origin <> 'event' OR (topic <> '' AND partition >= 0 AND
    record_offset >= 0)),
  CONSTRAINT failure_home CHECK (home_topic <> '' AND home_partition >= 0),
  CONSTRAINT failure_state CHECK (state IN ('queued', 'dead', 'unknown', 'discarded', 'linked')),
  CONSTRAINT failure_queued_is_due CHECK ((state = 'queued') = (due IS NOT NULL)),
  CONSTRAINT failure_linked_has_original CHECK ((state = 'linked') = (duplicate_of IS NOT NULL)),
  CONSTRAINT failure_reason CHECK (reason <> ''),
  CONSTRAINT failure_hashes CHECK (octet_length(event_id) = 16 AND octet_length(lane) = 16),
  CONSTRAINT failure_numbers CHECK (version >= 0 AND incarnation >= 0 AND seq >= 1 AND attempts >= 0 AND
    replay_count >= 0 AND row_version >= 1 AND timestamp_type BETWEEN 0 AND 2),
  CONSTRAINT failure_order_of_time CHECK (first_failed_at <= last_failed_at)
);
CREATE INDEX failure_correlation_id ON failure (correlation_id);
CREATE INDEX failure_duplicate_of ON failure (duplicate_of) WHERE duplicate_of IS NOT NULL;
CREATE INDEX failure_event_id ON failure (event_id);
CREATE INDEX failure_handler ON failure (handler, state, id);
CREATE INDEX failure_lane ON failure (handler, topic, lane, seq) WHERE state IN ('queued', 'unknown');
CREATE INDEX failure_operation_id ON failure (operation_id);
CREATE INDEX failure_pick_up ON failure (home_topic, home_partition, due) WHERE state = 'queued';
CREATE UNIQUE INDEX failure_position_key ON failure (handler, version, topic, incarnation, partition,
  record_offset) WHERE origin = 'event';

CREATE TABLE outbox (
  id BYTEA NOT NULL,
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  kind TEXT NOT NULL,
  consumer TEXT,
  home_topic TEXT,
  home_partition INTEGER,
  topic TEXT NOT NULL,
  key BYTEA,
  payload BYTEA,
  headers BYTEA NOT NULL,
  correlation_id TEXT NOT NULL,
  failure_id BIGINT,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  published_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT outbox_pkey PRIMARY KEY (id),
  CONSTRAINT outbox_id CHECK (octet_length(id) = 16),
  CONSTRAINT outbox_kind CHECK (kind IN ('letter', 'publish')),
  CONSTRAINT outbox_topic CHECK (topic <> ''),
  CONSTRAINT outbox_home CHECK (num_nulls(consumer, home_topic, home_partition) IN (0, 3))
);
CREATE INDEX outbox_correlation_id ON outbox (correlation_id);
CREATE INDEX outbox_unpublished ON outbox (consumer, home_topic, home_partition, seq) WHERE published_at IS NULL;
CREATE INDEX outbox_waiting ON outbox (created_at) WHERE published_at IS NULL;

CREATE TABLE audit (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  act TEXT NOT NULL,
  actor TEXT NOT NULL,
  allowed BOOLEAN NOT NULL,
  consumer TEXT NOT NULL,
  handler TEXT NOT NULL,
  failure_id BIGINT,
  event_id BYTEA,
  correlation_id TEXT NOT NULL,
  operation_id TEXT NOT NULL,
  tenant TEXT,
  brand TEXT,
  details JSONB DEFAULT '{}' NOT NULL,
  CONSTRAINT audit_pkey PRIMARY KEY (id),
  CONSTRAINT audit_words CHECK (act <> '' AND actor <> '')
);
CREATE INDEX audit_correlation_id ON audit (correlation_id);
CREATE INDEX audit_event_id ON audit (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX audit_failure_id ON audit (failure_id) WHERE failure_id IS NOT NULL;
"""

FIRST_GENERATION = "INSERT INTO generation (n, table_name, state) VALUES (1, 'claim_1', 'open')"

REFUSE = """
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'audit lines are never changed or removed (%)', TG_OP USING ERRCODE = 'restrict_violation';
END
$$
"""

REFUSE_ROWS = """
CREATE TRIGGER audit_rows_stay BEFORE UPDATE OR DELETE ON audit
  FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()
"""

REFUSE_TRUNCATE = """
CREATE TRIGGER audit_table_stays BEFORE TRUNCATE ON audit
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()
"""


def upgrade() -> None:
    """Everything, in an empty schema."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement.strip().removesuffix(";"))
    for statement in (FIRST_GENERATION, REFUSE, REFUSE_ROWS, REFUSE_TRUNCATE):
        op.execute(statement)


def downgrade() -> None:
    """There is no way back from the first tables but dropping the schema, which a person does by hand."""
    raise NotImplementedError("the first migration is not undone; drop the schema by hand if you mean it")
