-- The shop's own tables. `invoice` has no unique key on purpose: that each order gets one is the promise on trial.
CREATE TABLE revenue_by_day (
  tenant text,
  day date,
  orders bigint NOT NULL,
  cents bigint NOT NULL,
  PRIMARY KEY (tenant, day)
);
CREATE TABLE invoice (number text NOT NULL, order_id text NOT NULL, cents bigint NOT NULL);
