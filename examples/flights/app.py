"""Flights out of New York, all that the team writes: delays are added up, late and cancelled passengers looked after.

Nothing in here knows of repeats, offsets, retries or dead letters.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Avro, BlockingContext, Context, Event, cloudevents

app = App("flights", owner="flights-team")

reports = app.consumer(
    "flights",
    topics=["flights.reported"],
    codec=Avro(str(Path(__file__).parent / "schemas")),
    event_id=cloudevents(),
)


# Events: how a flight ended. There is one class for each ending, so that nobody can ask a cancelled flight for its
# delay. The schemas have more fields; a class names those that it wants.


@dataclass(frozen=True, slots=True)
class FlightArrived:
    """It reached its destination."""

    flight: str
    carrier: str
    miles: int
    scheduled_departure: datetime.datetime
    arrival_delay_min: int


@dataclass(frozen=True, slots=True)
class FlightDiverted:
    """It took off and landed elsewhere."""

    carrier: str
    scheduled_departure: datetime.datetime


@dataclass(frozen=True, slots=True)
class FlightCancelled:
    """It never took off."""

    flight: str
    carrier: str
    destination: str
    scheduled_departure: datetime.datetime


Flight = FlightArrived | FlightDiverted | FlightCancelled


# A projection: a batch of events becomes a read model, in one transaction.

NEW_YORK: Final = ZoneInfo("America/New_York")


@dataclass(slots=True)
class Tally:
    """What is added up for a carrier in an hour of the day."""

    arrived: int = 0
    delay_min: int = 0
    diverted: int = 0
    cancelled: int = 0

    def count(self, flight: Flight) -> None:
        """Add one flight."""
        match flight:
            case FlightArrived():
                self.arrived += 1
                self.delay_min += flight.arrival_delay_min
            case FlightDiverted():
                self.diverted += 1
            case FlightCancelled():
                self.cancelled += 1


@reports.projection("delays-by-carrier-and-hour", version=1)
async def delays(events: Sequence[Event[Flight]], tx: AsyncConnection) -> None:
    """Add the batch's flights to their carriers' hours."""
    tallies: defaultdict[tuple[str, int], Tally] = defaultdict(Tally)
    for event in events:
        flight = event.value
        tallies[flight.carrier, flight.scheduled_departure.astimezone(NEW_YORK).hour].count(flight)
    rows = [{"carrier": carrier, "hour": hour, **asdict(tally)} for (carrier, hour), tally in sorted(tallies.items())]
    await tx.execute(ADD_TO_DELAY, rows)


ADD_TO_DELAY = text("""
    INSERT INTO flights.delay AS old VALUES (:carrier, :hour, :arrived, :delay_min, :diverted, :cancelled)
    ON CONFLICT (carrier, hour) DO UPDATE SET
      arrived = old.arrived + excluded.arrived, delay_min = old.delay_min + excluded.delay_min,
      diverted = old.diverted + excluded.diverted, cancelled = old.cancelled + excluded.cancelled
""")


# A command: passengers who arrived more than three hours late are compensated.

LATE_MIN: Final = 180


@dataclass(frozen=True, slots=True)
class Compensate:
    """A command: what is to be done."""

    flight: str
    late_min: int
    miles: int

    @property
    def dollars(self) -> int:
        """For each passenger: the longer the way, the more."""
        return 250 if self.miles <= 1_000 else 400 if self.miles <= 2_000 else 600


@dataclass(frozen=True, slots=True)
class CompensationGranted:
    """The event that we publish."""

    flight: str
    late_min: int
    dollars: int


@reports.command("compensate", on=FlightArrived)
def compensation_for(event: Event[FlightArrived]) -> Compensate | None:
    """What is three hours late, and not a minute more, is not late enough."""
    flight = event.value
    late = flight.arrival_delay_min > LATE_MIN
    return Compensate(flight.flight, flight.arrival_delay_min, flight.miles) if late else None


@app.handler(Compensate)
async def compensate(command: Compensate, ctx: Context) -> None:
    """Write it down and tell the others: the row and the record land together, once."""
    granted = CompensationGranted(command.flight, command.late_min, command.dollars)
    await ctx.tx.execute(
        text("INSERT INTO flights.compensation VALUES (:flight, :late_min, :dollars)"), asdict(granted)
    )
    await ctx.publish("flights.compensations", granted, key=command.flight)


# Another one: passengers of a cancelled flight get a seat on a later one. They get no money, because the reports do not
# say how long before they were told. Nor do those of a diverted flight: nobody knows yet how late they will be.


@dataclass(frozen=True, slots=True)
class Rebook:
    """A command, carried out by a plain function: it may block, for it has a thread of its own."""

    flight: str
    destination: str


@reports.command("rebook", on=FlightCancelled)
def rebooking_for(event: Event[FlightCancelled]) -> Rebook:
    """Everybody still wants to get there."""
    return Rebook(event.value.flight, event.value.destination)


@app.handler(Rebook)
def rebook(command: Rebook, ctx: BlockingContext) -> None:
    """Put the flight on the desk's list."""
    ctx.tx.execute(text("INSERT INTO flights.rebooking VALUES (:flight, :destination)"), asdict(command))
