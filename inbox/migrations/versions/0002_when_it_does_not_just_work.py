"""Parked keys, the ledger of calls to the outside, leases, breakers, and records that are handled alone.

Names are unqualified: the migration runs with our schema as its whole search path.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE handler
  ADD COLUMN former_name TEXT,
  ADD COLUMN discarded_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE fence
  ADD COLUMN crash_point BIGINT,
  ADD COLUMN in_hand BIGINT[] DEFAULT '{}' NOT NULL;

ALTER TABLE parked_key
  ADD COLUMN waiting BIGINT DEFAULT 0 NOT NULL,
  ADD COLUMN head_seq BIGINT,
  ADD COLUMN head_due TIMESTAMP WITH TIME ZONE,
  ADD COLUMN head_home_topic TEXT,
  ADD COLUMN head_home_partition INTEGER,
  DROP CONSTRAINT parked_key_numbers,
  ADD CONSTRAINT parked_key_numbers CHECK (octet_length(key_hash) = 16 AND next_seq >= 1 AND waiting >= 0),
  ADD CONSTRAINT parked_key_head CHECK (num_nulls(head_due, head_home_topic, head_home_partition) IN (0, 3) AND
    (head_due IS NULL OR head_seq IS NOT NULL) AND (waiting = 0) = (head_seq IS NULL));

ALTER TABLE failure
  ADD COLUMN alone BOOLEAN DEFAULT false NOT NULL,
  ADD COLUMN holds BOOLEAN DEFAULT false NOT NULL,
  ADD COLUMN class_attempts BIGINT DEFAULT 0 NOT NULL,
  ADD COLUMN put_xid BIGINT DEFAULT 0 NOT NULL,
  ADD COLUMN retrying_since TIMESTAMP WITH TIME ZONE,
  ADD COLUMN effect_id BIGINT,
  ADD CONSTRAINT failure_holds CHECK (NOT holds OR state = 'dead'),
  DROP CONSTRAINT failure_numbers,
  ADD CONSTRAINT failure_numbers CHECK (version >= 0 AND incarnation >= 0 AND seq >= 1 AND attempts >= 0 AND
    class_attempts >= 0 AND replay_count >= 0 AND row_version >= 1 AND timestamp_type BETWEEN 0 AND 2);

ALTER TABLE failure ALTER COLUMN put_xid SET DEFAULT CAST(CAST(pg_current_xact_id() AS text) AS bigint);

UPDATE failure SET alone = true WHERE key IS NULL OR state = 'linked';

DROP INDEX failure_pick_up;

DROP INDEX failure_lane
"""

INDEXES = """
CREATE INDEX parked_key_due ON parked_key (handler, head_home_topic, head_home_partition, head_due) WHERE
  head_due IS NOT NULL;
CREATE INDEX parked_key_waiting ON parked_key (handler, topic, key_hash) WHERE waiting > 0;
CREATE INDEX failure_put ON failure (handler, put_xid, id);
CREATE INDEX failure_pick_up ON failure (handler, home_topic, home_partition, due) WHERE state = 'queued' AND alone;
CREATE INDEX failure_lane ON failure (handler, topic, lane, seq) WHERE NOT alone AND (state IN ('queued',
  'unknown') OR holds);
CREATE INDEX outbox_failure_id ON outbox (failure_id) WHERE failure_id IS NOT NULL;
CREATE INDEX failure_effect_id ON failure (effect_id) WHERE effect_id IS NOT NULL;
"""

HEADS = """
UPDATE parked_key p SET waiting = h.waiting, head_seq = h.seq, head_due = h.due, head_home_topic = h.home_topic,
       head_home_partition = h.home_partition
  FROM (SELECT DISTINCT ON (handler, topic, lane) handler, topic, lane, seq, due,
               CASE WHEN state = 'queued' THEN home_topic END AS home_topic,
               CASE WHEN state = 'queued' THEN home_partition END AS home_partition,
               count(*) OVER (PARTITION BY handler, topic, lane) AS waiting
          FROM failure WHERE NOT alone AND state IN ('queued', 'unknown')
         ORDER BY handler, topic, lane, seq) h
 WHERE p.handler = h.handler AND p.topic = h.topic AND p.key_hash = h.lane
"""

TABLES = """
CREATE TABLE effect (
  id BIGINT GENERATED ALWAYS AS IDENTITY,
  identity BYTEA NOT NULL,
  scope TEXT NOT NULL,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  operation_id TEXT NOT NULL,
  state TEXT NOT NULL,
  rule TEXT NOT NULL,
  provider TEXT NOT NULL,
  fingerprint BYTEA NOT NULL,
  attempt_id BYTEA NOT NULL,
  earlier BYTEA[] DEFAULT '{}' NOT NULL,
  attempts BIGINT DEFAULT 1 NOT NULL,
  unsure BIGINT DEFAULT 0 NOT NULL,
  in_doubt BOOLEAN DEFAULT false NOT NULL,
  key TEXT NOT NULL,
  key_no INTEGER DEFAULT 0 NOT NULL,
  key_since TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  intended_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  deadline TIMESTAMP WITH TIME ZONE NOT NULL,
  due TIMESTAMP WITH TIME ZONE NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  external_id TEXT,
  second_external_id TEXT,
  result JSONB,
  error TEXT DEFAULT '' NOT NULL,
  resolution TEXT,
  probes BIGINT DEFAULT 0 NOT NULL,
  consumer TEXT DEFAULT '' NOT NULL,
  event_id BYTEA,
  tenant TEXT,
  brand TEXT,
  correlation_id TEXT DEFAULT '' NOT NULL,
  row_version BIGINT DEFAULT 1 NOT NULL,
  CONSTRAINT effect_pkey PRIMARY KEY (id),
  CONSTRAINT effect_key UNIQUE (identity),
  CONSTRAINT effect_names CHECK (owner <> '' AND name <> '' AND operation_id <> '' AND key <> ''),
  CONSTRAINT effect_state CHECK (state IN ('intended', 'completed', 'failed', 'unknown', 'resolved')),
  CONSTRAINT effect_rule CHECK (rule IN ('idempotent_key', 'probe', 'review')),
  CONSTRAINT effect_resolution CHECK ((state = 'resolved') = (resolution IS NOT NULL) AND (resolution IS NULL
    OR resolution IN ('done', 'not_done', 'discarded'))),
  CONSTRAINT effect_ended CHECK ((state = 'intended') = (ended_at IS NULL)),
  CONSTRAINT effect_result CHECK (result IS NULL OR state = 'completed' OR resolution = 'done'),
  CONSTRAINT effect_ids CHECK (octet_length(identity) = 16 AND octet_length(attempt_id) = 16 AND
    octet_length(fingerprint) = 16 AND (event_id IS NULL OR octet_length(event_id) = 16)),
  CONSTRAINT effect_numbers CHECK (attempts >= 1 AND unsure >= 0 AND key_no >= 0 AND probes >= 0 AND
    row_version >= 1)
) WITH (fillfactor = 70);
CREATE INDEX effect_correlation_id ON effect (correlation_id) WHERE state IN ('failed', 'unknown', 'resolved');
CREATE INDEX effect_open ON effect (due) WHERE state IN ('intended', 'unknown');
CREATE INDEX effect_operation_id ON effect (operation_id) WHERE state IN ('failed', 'unknown', 'resolved');
CREATE TABLE lease (
  name TEXT NOT NULL,
  token BIGINT DEFAULT 0 NOT NULL,
  holder TEXT NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
  CONSTRAINT lease_pkey PRIMARY KEY (name),
  CONSTRAINT lease_key UNIQUE (name, token),
  CONSTRAINT lease_names CHECK (name <> '' AND char_length(name) <= 255),
  CONSTRAINT lease_token CHECK (token >= 0)) WITH (fillfactor = 50);
CREATE TABLE breaker (
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  failures BIGINT DEFAULT 0 NOT NULL,
  why TEXT DEFAULT '' NOT NULL,
  opened_at TIMESTAMP WITH TIME ZONE,
  retry_at TIMESTAMP WITH TIME ZONE,
  changes BIGINT DEFAULT 0 NOT NULL,
  CONSTRAINT breaker_pkey PRIMARY KEY (name),
  CONSTRAINT breaker_names CHECK (name <> '' AND char_length(name) <= 255),
  CONSTRAINT breaker_state CHECK (state IN ('closed', 'open', 'half_open')),
  CONSTRAINT breaker_times CHECK (num_nulls(opened_at, retry_at) = CASE state WHEN 'closed' THEN 2 ELSE 0 END),
  CONSTRAINT breaker_numbers CHECK (failures >= 0 AND changes >= 0)
);
CREATE TABLE suspect (
  consumer TEXT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  record_offset BIGINT NOT NULL,
  failure_id BIGINT,
  since TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
  deaths BIGINT DEFAULT 0 NOT NULL,
  in_hand BOOLEAN DEFAULT true NOT NULL,
  CONSTRAINT suspect_pkey PRIMARY KEY (consumer, topic, partition),
  CONSTRAINT suspect_numbers CHECK (partition >= 0 AND record_offset >= 0 AND deaths >= 0)
);
"""


def upgrade() -> None:
    """Rows that wait already keep their places; their lanes learn of them."""
    for script in (COLUMNS, INDEXES, HEADS, TABLES):
        for statement in script.split(";\n"):
            if statement.strip():
                op.execute(statement.strip().removesuffix(";"))


def downgrade() -> None:
    """There is no way back: what is parked and what was called would be forgotten."""
    raise NotImplementedError("this migration is not undone: it would forget which calls were made")
