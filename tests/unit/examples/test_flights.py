"""The flights example's functions, called as in any unit test: what a row of the data set becomes, and what follows."""

from __future__ import annotations

import datetime
from typing import Any, cast

import pytest

from examples.flights.app import (
    Compensate,
    CompensationGranted,
    FlightArrived,
    FlightCancelled,
    FlightDiverted,
    Rebook,
    Tally,
    app,
    compensate,
    compensation_for,
    rebook,
    rebooking_for,
)
from examples.flights.producer import Report, report
from tidegate.consumers import BlockingContext, Context, Event

NOON = datetime.datetime(2013, 7, 1, 16, tzinfo=datetime.UTC)
CANCELLED = FlightCancelled("UA1/EWR/2013-07-01", "UA", "IAH", NOON)
ROW = {
    "year": "2013",
    "month": "7",
    "day": "1",
    "carrier": "UA",
    "flight": "1",
    "origin": "EWR",
    "dest": "IAH",
    "distance": "1400",
    "minute": "15",
    "time_hour": "2013-07-01T16:00:00Z",
    "tailnum": "N14228",
}


def arrived(delay_min: int) -> Event[FlightArrived]:
    return Event(FlightArrived("UA1/EWR/2013-07-01", "UA", 1_400, NOON, delay_min))


class Notes:
    """Stands for a Context: keeps what the handler does."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.published: list[tuple[str, object, object]] = []
        self.tx = self

    def execute(self, _statement: object, parameters: dict[str, Any]) -> Notes:
        self.rows.append(parameters)
        return self

    async def publish(self, topic: str, value: object, *, key: object = None) -> None:
        self.published.append((topic, value, key))

    def __await__(self) -> Any:
        yield from ()


def test_three_hours_late_is_not_more_than_three_hours_late() -> None:
    assert compensation_for(arrived(180)) is None
    assert compensation_for(arrived(-20)) is None
    assert compensation_for(arrived(181)) == Compensate("UA1/EWR/2013-07-01", 181, 1_400)


@pytest.mark.parametrize(("miles", "dollars"), [(1_000, 250), (1_001, 400), (2_000, 400), (2_001, 600)])
def test_the_longer_the_way_the_more(miles: int, dollars: int) -> None:
    assert Compensate("UA1", 181, miles).dollars == dollars


async def test_a_compensation_is_written_down_and_told() -> None:
    notes = Notes()
    await compensate(Compensate("UA1", 200, 1_400), cast("Context", notes))
    assert notes.rows == [{"flight": "UA1", "late_min": 200, "dollars": 400}]
    assert notes.published == [("flights.compensations", CompensationGranted("UA1", 200, 400), "UA1")]


def test_passengers_of_a_cancelled_flight_are_rebooked() -> None:
    notes = Notes()
    command = rebooking_for(Event(CANCELLED))
    assert command == Rebook("UA1/EWR/2013-07-01", "IAH")
    rebook(command, cast("BlockingContext", notes))
    assert notes.rows == [{"flight": "UA1/EWR/2013-07-01", "destination": "IAH"}]


def test_a_flight_that_did_not_arrive_adds_no_delay() -> None:
    tally = Tally()
    for flight in (arrived(30).value, arrived(-10).value, FlightDiverted("UA", NOON), CANCELLED):
        tally.count(flight)
    assert tally == Tally(arrived=2, delay_min=20, diverted=1, cancelled=1)


def test_a_hole_in_the_row_is_another_event_and_never_a_zero() -> None:
    flown = ROW | {"dep_time": "1220", "dep_delay": "5"}
    assert report(ROW).type == "FlightCancelled"
    assert report(flown).type == "FlightDiverted"
    assert report(flown | {"arr_delay": "-11"}) == Report(
        "FlightArrived",
        {
            "flight": "UA1/EWR/2013-07-01",
            "carrier": "UA",
            "origin": "EWR",
            "destination": "IAH",
            "miles": 1_400,
            "plane": "N14228",
            "scheduled_departure": NOON + datetime.timedelta(minutes=15),
            "departure_delay_min": 5,
            "arrival_delay_min": -11,
        },
    )


def test_the_declarations_are_sound() -> None:
    assert app.problems() == []
