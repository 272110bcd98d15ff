"""The intake: records become events with an identity, a scope and a route. It runs in the client thread, and does no IO
but what its codec does (a schema that is seen for the first time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, final

from ..inbox.errors import DependencyError, RecordError
from ..inbox.event import Event, Partition, Record
from ..inbox.identity import event_id16, event_ids16, event_prefix, payload_hash8, payload_hashes8, position_id16
from ..inbox.outcome import Reason
from ..inbox.scope import EventIdRule, FromCloudEvent, FromField, FromHeader, FromPosition, Scope
from .app import Consumer
from .client.ports import Rejected, Taken
from .codecs.codec import Codec, CodecStalled, Decoded
from .routing import Route, Router, class_of

_PREFIXES_MAX = 10_000
"""Identity prefixes remembered, one for each (topic, type, tenant): a bound against tenants without end."""

Identify = Callable[[Record, Any], bytes]


@final
class EventIntake:
    """Decodes, identifies and routes the records of one consumer.

    `incarnations` (topic -> number) is read for ids made of positions; its owner fills it before a partition is read.
    `count_unmatched` is called with topic and type name for each event that no handler takes.
    """

    def __init__(
        self,
        consumer: Consumer,
        codec: Codec,
        router: Router,
        incarnations: Mapping[str, int],
        count_unmatched: Callable[[str, str], None],
    ) -> None:
        self._consumer = consumer
        self._codec = codec
        self._router = router
        self._incarnations = incarnations
        self._count_unmatched = count_unmatched
        self._identify = identifier(consumer.event_id)
        self._by_position = isinstance(consumer.event_id, FromPosition)
        self._require_key = consumer.require_key
        rule, plain = consumer.event_id, consumer.scope == Scope()
        self._id_header = rule.name if isinstance(rule, FromHeader) and plain else None
        self._scope = None if consumer.scope == Scope() else consumer.scope
        self._prefixes: dict[tuple[str, str, bytes], bytes] = {}
        self._last: tuple[str | None, type, Route] = (None, type(None), router.tombstone)

    def take(self, partition: Partition, epoch: int, records: list[Record]) -> Taken:
        """Decode one partition's consecutive records. A dependency that is away ends the run early, losing nothing."""
        decoded, stall = self._decode(records)
        if self._id_header is not None and stall is None:
            taken = self._take_alike(records, decoded, self._id_header)
            if taken is not None:
                return taken
        sorting = _Sorting()
        events, make = sorting.events, self._event
        for record, result in zip(records, decoded, strict=False):
            try:
                event, route = make(record, result)
            except RecordError as error:
                sorting.rejects.append(Rejected(record, error.reason, str(error)))
                continue
            if route.lanes:
                sorting.mark(route.lanes)
            elif not route.projections:
                self._unmatched(sorting, record, event)
                continue
            events.append(event)
        stalled_at = records[len(decoded)].offset if stall is not None else None
        return sorting.taken(stalled_at, stall)

    def _take_alike(
        self, records: list[Record], decoded: list[Decoded | RecordError | None], name: str
    ) -> Taken | None:
        """The usual case, column by column: all of one type, each with its id in the header `name`. None: it is not so.

        It does for many records what `_event` does for one; a property test holds the two together.
        """
        alike = None if self._require_key else _of_one_type(decoded)
        if alike is None:
            return None
        route = self._router.route(alike[0].type, class_of(alike[0].value))
        given = [found for record in records if (found := _header(record, name))]
        if route.is_empty or len(given) < len(records):
            return None
        type_name = alike[0].type
        ids = event_ids16(self._prefix(records[0].topic, type_name, b""), given)
        hashes = payload_hashes8([record.value or b"" for record in records])
        columns = zip(records, alike, ids, given, hashes, strict=True)
        events = [Event(d.value, r, type_name, event_id, id_text, found) for r, d, event_id, id_text, found in columns]
        everyone = tuple(range(len(events)))
        return Taken(tuple(events), (), dict.fromkeys(route.lanes, everyone), _size_bytes(events))

    def event_of(self, record: Record) -> tuple[Event[Any], Route]:
        """One record as an event. Raises RecordError where it is none, DependencyError where that is not known yet."""
        decoded, stall = self._decode([record])
        if stall is not None:
            raise stall
        return self._event(record, decoded[0])

    def events_of(self, records: list[Record]) -> list[Event[Any] | None]:
        """Many records, of any partitions, as events; None where one is none. Raises DependencyError, as for one."""
        decoded, stall = self._decode(records)
        if stall is not None:
            raise stall
        if self._id_header is not None and len({record.topic for record in records}) == 1:
            alike = self._take_alike(records, decoded, self._id_header)
            if alike is not None:
                return list(alike.events)
        return [self._event_or_none(record, result) for record, result in zip(records, decoded, strict=True)]

    def _event_or_none(self, record: Record, decoded: Decoded | RecordError | None) -> Event[Any] | None:
        try:
            return self._event(record, decoded)[0]
        except RecordError:
            return None

    def _decode(self, records: list[Record]) -> tuple[list[Decoded | RecordError | None], DependencyError | None]:
        living = [record for record in records if record.value is not None]
        stall = None
        try:
            results: list[Decoded | RecordError] = self._codec.decode_many(living)
        except CodecStalled as stalled:
            results, stall = stalled.done, stalled.cause
        if len(living) == len(records):
            return list(results), stall
        return _with_tombstones(records, results), stall

    def _event(self, record: Record, decoded: Decoded | RecordError | None) -> tuple[Event[Any], Route]:
        if decoded is None:
            return self._tombstone(record)
        if isinstance(decoded, RecordError):
            raise decoded
        if self._require_key and record.key is None:
            raise RecordError(Reason.NO_KEY, "the record has no key, and this consumer requires one")
        value, type_name = decoded.value, decoded.type
        event = self._identified(record, value, type_name)
        last_type, last_class, last_route = self._last  # one value: several threads read and write it
        if type_name is last_type and class_of(value) is last_class:
            return event, last_route  # records of one type come in runs
        route = self._router.route(type_name, class_of(value))
        self._last = (type_name, class_of(value), route)
        return event, route

    def _tombstone(self, record: Record) -> tuple[Event[Any], Route]:
        if record.key is None:
            raise RecordError(Reason.NO_KEY, "a tombstone without a key deletes nothing")
        return self._identified(record, None, ""), self._router.tombstone

    def _identified(self, record: Record, value: Any, type_name: str) -> Event[Any]:
        scope = self._scope
        tenant = None if scope is None or scope.tenant is None else record.header(scope.tenant.name)
        if self._by_position or (value is None and isinstance(self._consumer.event_id, FromField)):
            incarnation = self._incarnations.get(record.topic, 0)
            event_id = position_id16(record.topic, incarnation, record.partition, record.offset)
            id_text: bytes | str = f"{record.topic}/{incarnation}/{record.partition}/{record.offset}"
        else:
            id_text = self._identify(record, value)
            event_id = event_id16(self._prefix(record.topic, type_name, tenant or b""), id_text)
        payload_hash = payload_hash8(record.value)
        if scope is None:
            return Event(value, record, type_name, event_id, id_text, payload_hash)
        return Event(value, record, type_name, event_id, id_text, payload_hash, *scope_of(record, scope))

    def _prefix(self, topic: str, type_name: str, tenant: bytes) -> bytes:
        prefix = self._prefixes.get((topic, type_name, tenant))
        if prefix is None:
            prefix = event_prefix(topic, type_name, tenant)
            if len(self._prefixes) < _PREFIXES_MAX:
                self._prefixes[(topic, type_name, tenant)] = prefix
        return prefix

    def _unmatched(self, sorting: _Sorting, record: Record, event: Event[Any]) -> None:
        self._count_unmatched(record.topic, event.type)
        if self._consumer.unmatched == "dead":
            sorting.rejects.append(Rejected(record, Reason.UNMATCHED, f"no handler takes {event.type or 'its type'}"))


@final
class _Sorting:
    """The outcome of one take, as it grows."""

    __slots__ = ("events", "lanes", "rejects")

    def __init__(self) -> None:
        self.events: list[Event[Any]] = []
        self.lanes: dict[str, list[int]] = {}
        self.rejects: list[Rejected] = []

    def mark(self, lanes: tuple[str, ...]) -> None:
        """The event that comes next is for these."""
        for lane in lanes:
            self.lanes.setdefault(lane, []).append(len(self.events))

    def taken(self, stalled_at: int | None, stall: DependencyError | None) -> Taken:
        return Taken(
            events=tuple(self.events),
            rejects=tuple(self.rejects),
            lanes={name: tuple(indexes) for name, indexes in self.lanes.items()},
            size_bytes=_size_bytes(self.events),
            stalled_at=stalled_at,
            stall=stall,
        )


def _size_bytes(events: Sequence[Event[Any]]) -> int:
    return sum([len(event.record.key or b"") + len(event.record.value or b"") for event in events])


def _of_one_type(decoded: list[Decoded | RecordError | None]) -> list[Decoded] | None:
    """The same list, where all are decoded, to one type and class; else None."""
    if set(map(type, decoded)) != {Decoded}:
        return None
    alike = cast(list[Decoded], decoded)
    kinds = {value.__class__ for value in [result.value for result in alike]}
    return alike if len(kinds) == 1 and len({result.type for result in alike}) == 1 else None


def _header(record: Record, name: str) -> bytes | None:
    """The value of the last header `name`; quickest where the record has no other."""
    headers = record.headers
    if len(headers) == 1 and headers[0][0] == name:
        return headers[0][1]
    return record.header(name)


def _with_tombstones(records: list[Record], results: list[Decoded | RecordError]) -> list[Decoded | RecordError | None]:
    """Put None in the tombstones' places, up to where the decoding stopped."""
    merged: list[Decoded | RecordError | None] = []
    following = iter(results)
    for record in records:
        if record.value is None:
            merged.append(None)
            continue
        result = next(following, None)
        if result is None:
            break
        merged.append(result)
    return merged


def scope_of(record: Record, scope: Scope) -> tuple[str | None, str | None]:
    """Tenant and brand of a record, from the headers that are declared to carry them."""
    tenant, brand = (None if named is None else record.header(named.name) for named in (scope.tenant, scope.brand))
    return _text(tenant), _text(brand)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def identifier(rule: EventIdRule) -> Identify:
    """The function that reads an event's declared id as bytes, or raises RecordError."""
    if isinstance(rule, FromHeader):
        return _header_identifier(rule.name)
    if isinstance(rule, FromCloudEvent):
        return _cloud_event_id
    if isinstance(rule, FromField):
        return _field_identifier(tuple(rule.name.split(".")))
    return _no_id


def _header_identifier(name: str) -> Identify:
    def identify(record: Record, value: Any) -> bytes:
        found = record.header(name)
        if not found:
            raise RecordError(
                Reason.UNDECODABLE, f"the header {name!r}, which holds the event's id, is missing or empty"
            )
        return found

    return identify


def _field_identifier(path: tuple[str, ...]) -> Identify:
    def identify(record: Record, value: Any) -> bytes:
        found: Any = value
        for name in path:
            found = cast(dict[str, Any], found).get(name) if isinstance(found, dict) else getattr(found, name, None)
        if found is None or found == "" or isinstance(found, dict | list):
            raise RecordError(
                Reason.UNDECODABLE, f"the field {'.'.join(path)!r}, which holds the event's id, is missing or empty"
            )
        return found if isinstance(found, bytes) else str(found).encode("utf-8", "surrogatepass")

    return identify


def _cloud_event_id(record: Record, value: Any) -> bytes:
    source, given = record.header("ce_source"), record.header("ce_id")
    if not source or not given:
        raise RecordError(Reason.UNDECODABLE, "the CloudEvents headers ce_source and ce_id must both be there")
    return len(source).to_bytes(4, "big") + source + given


def _no_id(record: Record, value: Any) -> bytes:
    raise AssertionError("an event known by its position has no id to read")
