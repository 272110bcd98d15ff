-- The flights team's own tables. Only the read model has a key: that each flight is compensated and rebooked once is the
-- promise on trial.
CREATE SCHEMA flights;
CREATE TABLE flights.delay (
  carrier text,
  hour int,  -- of the scheduled departure, on New York's clocks
  arrived bigint NOT NULL,
  delay_min bigint NOT NULL,  -- the sum of the arrivals' delays; those that came early count below zero
  diverted bigint NOT NULL,
  cancelled bigint NOT NULL,
  PRIMARY KEY (carrier, hour)
);
CREATE TABLE flights.compensation (flight text NOT NULL, late_min int NOT NULL, dollars int NOT NULL);
CREATE TABLE flights.rebooking (flight text NOT NULL, destination text NOT NULL);
