"""The intake's quick way, column by column, makes of any records exactly what its careful way makes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumers import App, Json, header
from tidegate.consumers.client.ports import Taken
from tidegate.consumers.codecs.codec import Codec, CodecSettings
from tidegate.consumers.intake import EventIntake
from tidegate.consumers.routing import Router
from tidegate.inbox.event import Event, Header, Partition, Record

ID = "event-id"
PLACE = Partition("orders", 0)


@dataclass(frozen=True)
class Placed:
    """One of two types."""

    n: int


@dataclass(frozen=True)
class Paid:
    """The other one; only a command takes it."""

    n: int


@final
class Counted:
    """What was said to be unmatched."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __call__(self, topic: str, type_name: str) -> None:
        self.said.append((topic, type_name))


def intake(counted: Counted) -> EventIntake:
    app = App("shop", owner="us")
    orders = app.consumer("orders", topics=["orders"], codec=Json(type=header("type")), event_id=header(ID))

    @orders.projection("placed", on=Placed)
    async def placed(events: Sequence[Event[Placed]], tx: object) -> None:
        """Never called."""

    @orders.command("pay", on=(Placed, Paid))
    def pay(event: Event[Placed | Paid]) -> None:
        """Never called."""

    codec: Codec = Json(type=header("type")).open(CodecSettings())
    codec.types((Placed, Paid))
    router = Router(tuple(orders.projections.values()), tuple(orders.commands.values()))
    return EventIntake(orders, codec, router, {}, counted)


values = st.sampled_from([b'{"n": 1}', b'{"n": 2}', b"", b"{", b"null", None])
names = st.sampled_from([b"Placed", b"Placed", b"Placed", b"Paid", b"Unknown"])
ids = st.sampled_from([b"a", b"b", b"", None])


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """Consecutive records, mostly alike."""
    made: list[Record] = []
    for offset in range(draw(st.integers(1, 8))):
        given_id, name = draw(ids), draw(names)
        headers: list[Header] = [("type", name), (ID, given_id)]
        if draw(st.booleans()):
            headers.insert(0, (ID, b"overruled"))
        key = draw(st.sampled_from([b"k", b"", None]))
        made.append(Record("orders", 0, offset, key, draw(values), tuple(headers)))
    return made


def told(taken: Taken) -> dict[str, Any]:
    """Everything in it, comparable."""
    return {
        "events": [
            (e.offset, e.value, e.type, e.event_id, e.id_text, e.payload_hash, e.tenant, e.brand) for e in taken.events
        ],
        "rejects": [(reject.record.offset, reject.reason, reject.message) for reject in taken.rejects],
        "lanes": {lane: indexes for lane, indexes in taken.lanes.items() if indexes},
        "size": taken.size_bytes,
    }


@given(records())
def test_all_at_once_is_what_one_by_one_is(batch: list[Record]) -> None:
    at_once, counted = Counted(), Counted()
    together = told(intake(at_once).take(PLACE, 1, batch))
    careful = intake(counted)
    careful._id_header = None  # pyright: ignore[reportPrivateUsage] - takes the quick way away
    assert together == told(careful.take(PLACE, 1, batch))
    assert at_once.said == counted.said


@given(st.integers(1, 8))
def test_records_that_are_all_alike_take_the_quick_way(count: int) -> None:
    batch = [Record("orders", 0, n, b"k", b'{"n": 1}', (("type", b"Placed"), (ID, b"%d" % n))) for n in range(count)]
    quick = intake(Counted())
    quick._event = None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - the careful way is gone
    taken = quick.take(PLACE, 1, batch)
    assert [event.value for event in taken.events] == [Placed(1)] * count
    assert taken.lanes == {"pay": tuple(range(count))}
