"""Effects as values: whose they are, the key that a repeat finds again, the request's fingerprint, a row as read.

No IO; time and chance are arguments.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import re
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

from .effect_rules import Asked, Effect
from .effect_states import EffectState, Resolution
from .event import Event, Partition
from .identity import digest16, event_id16, length_prefixed
from .json_text import flat_json

NOT_TOLD: Final = b"\0" * 16
"""The fingerprint of a request that nobody told: it contradicts nothing."""

Request: TypeAlias = Any
"""What is to be sent: bytes, text, or whatever `fingerprint` can read."""


class Home(NamedTuple):
    """Under whose fence an intent is written: a partition of a consumer, with the fence's epoch."""

    consumer: str
    partition: Partition
    epoch: int


class Origin(NamedTuple):
    """Where the events behind effects were read: after a restore an event's place says whether a missing row proves
    anything.
    """

    consumer: str
    partition: Partition


@final
class Owner:
    """Whose effects these are: one value for many calls, so that what they share is made, and sent, once.

    `name` is read by people and is part of the key that goes out. `identity` is what the row is found by; it outlives
    a renaming. Within `scope` an operation id counts: it keeps the same one of two tenants (or two kinds of event)
    apart.
    """

    __slots__ = ("_prefixes", "brand", "home", "identity", "name", "origin", "scope", "tenant")

    def __init__(
        self,
        name: str,
        identity: str = "",
        scope: str = "",
        home: Home | None = None,
        origin: Origin | None = None,
        tenant: str | None = None,
        brand: str | None = None,
    ) -> None:
        self.name = name
        self.identity = identity
        self.scope = scope
        self.home = home
        self.origin = origin
        self.tenant = tenant
        self.brand = brand
        self._prefixes: dict[str, tuple[bytes, bytes]] = {}

    def prefixes(self, effect: str) -> tuple[bytes, bytes]:
        """What the identities of all its operations of an effect begin with, and their keys."""
        found = self._prefixes.get(effect)
        if found is None:
            whose = ((b"effect", self.identity or self.name), (b"effect-key", self.name))
            row, key = (length_prefixed((kind, *map(_bytes, (self.scope, name, effect)))) for kind, name in whose)
            found = self._prefixes[effect] = row, key
        return found


class Call(NamedTuple):
    """One operation that is about to be done."""

    effect: Effect
    owner: Owner
    operation_id: str
    fingerprint: bytes
    identity: bytes
    key: str
    """The idempotency key: derived, so that a repeat after a restore sends the same one. A UUID in form, because some
    services demand one.
    """
    correlation_id: str
    event: Event[Any] | None
    """Because of which it is done. Nothing was called before its record was written: that bounds how old a key is."""

    @classmethod
    def of(
        cls, effect: Effect, owner: Owner, operation_id: str, request: Request,
        correlation_id: str = "", event: Event[Any] | None = None,
    ) -> Call:  # fmt: skip
        """Raises ValueError for an operation id that is empty, TypeError for one that is no text.

        And TypeError for a request that has no stable form.
        """
        if not isinstance(operation_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
            raise TypeError(f"operation_id= is a {type(operation_id).__name__}: give text, str(...) of it say")
        if not operation_id:
            raise ValueError("an effect needs an operation id that is not empty: it is what a repeat is known by")
        of_row, of_key = owner.prefixes(effect.name)
        operation = _bytes(operation_id)
        identity, key = event_id16(of_row, operation), _uuid(event_id16(of_key, operation))
        return cls(effect, owner, operation_id, fingerprint(request), identity, key, correlation_id, event)


def next_key(key: str) -> str:
    """The key behind `key`, where a person said that the service must not take the next call for a repeat."""
    return _uuid(digest16(b"effect-key-next", key.encode()))


def _uuid(digest: bytes) -> str:
    """A digest in the form of a name-based UUID (version 5, the variant of RFC 9562)."""
    text = digest.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """A row as it was read, at `now` by the database's clock. `row_version` goes back with what is done to it.

    `restored_at` is set where the event behind it lies below the bound of a restored database: when that was declared.
    """

    id: int
    state: EffectState
    rule: str
    fingerprint: bytes
    attempt_id: bytes
    attempts: int
    unsure: int
    in_doubt: bool
    key: str
    key_no: int
    key_since: datetime.datetime
    intended_at: datetime.datetime
    deadline: datetime.datetime
    due: datetime.datetime
    ended_at: datetime.datetime | None
    external_id: str | None
    result: Any
    error: str
    resolution: Resolution | None
    probes: int
    row_version: int
    now: datetime.datetime
    restored_at: datetime.datetime | None = None
    name: str = ""
    operation_id: str = ""
    tenant: str | None = None
    brand: str | None = None
    correlation_id: str = ""

    @property
    def is_done(self) -> bool:
        """Its result is known."""
        return self.state is EffectState.COMPLETED or self.resolution is Resolution.DONE

    def asked(self) -> Asked:
        """What a probe is asked about."""
        return Asked(
            self.name, self.key, self.operation_id, self.external_id, self.attempts, self.tenant, self.brand,
            self.correlation_id,
        )  # fmt: skip


class ResultRefused(ValueError):
    """A result that the ledger does not keep: no JSON, or too large."""


EXTERNAL_ID_CHARS_MAX: Final = 500
"""More than any service's ids have; two that differ only behind this count as one."""

_RESULTS: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def result_text(result: Any, bytes_max: int) -> str | None:
    """The result as the JSON that is stored, None for None. Raises ResultRefused, saying why and what to do."""
    if result is None:
        return None
    try:
        flat = flat_json(result)
        text = _RESULTS.encode(result) if flat is None else flat.decode()
        size = len(text.encode()) if flat is None else len(flat)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultRefused(
            f"the result is not JSON ({type(error).__name__}): give dicts with text as keys, lists, text, numbers,"
            " booleans and None"
        ) from error
    if size > bytes_max:
        raise ResultRefused(f"the result has {size} bytes of JSON, more than result_bytes_max={bytes_max}")
    if "\\u0000" in text and _NUL.search(text):
        raise ResultRefused("the result holds a NUL character, which no database text can hold")
    return text


def fingerprint(request: Request) -> bytes:
    """16 bytes that are the same for the same request in every process; `NOT_TOLD` for None.

    Bytes and text as they are; else JSON with sorted keys, where dataclasses, pydantic models, enums, UUIDs, decimals,
    dates and bytes may stand. Raises TypeError for anything whose form could differ from run to run: a set, say, also
    one in a model.
    """
    if request is None:
        return NOT_TOLD
    if isinstance(request, bytes | bytearray):
        return digest16(b"request-bytes", bytes(request))
    text = _ENCODER.encode(request).encode()
    return event_id16(_OF_JSON, len(text).to_bytes(4, "big") + text)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        _refuse_sets(dump())  # as JSON they are lists, in an order that is another one in each process
        return dump(mode="json")
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - json looks into it
    raise TypeError(f"request= holds a {type(value).__name__}, which has no stable form: give JSON, text or bytes")


def _refuse_sets(dumped: object) -> None:
    """Looks through what a model gave as Python values."""
    if isinstance(dumped, set | frozenset):
        raise TypeError("request= holds a model with a set, which has no stable form: have it give a sorted list")
    if isinstance(dumped, Mapping):
        held = cast("Mapping[object, object]", dumped)
        dumped = [*held, *held.values()]
    if isinstance(dumped, list | tuple | deque):
        for value in cast("Iterable[object]", dumped):
            _refuse_sets(value)


_OF_JSON: Final = length_prefixed((b"request-json",))

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)
