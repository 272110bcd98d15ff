"""Effects as values: whose they are, the key that a repeat finds again, the request's fingerprint, a row as read.

No IO; time and chance are arguments.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, final

from .effect_rules import Asked, Effect
from .effect_states import EffectState, Resolution
from .event import Partition
from .identity import digest16, event_id16, length_prefixed

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
    """Where the event behind an effect was read: after a restore its place says whether a missing row proves anything.

    `at` bounds how old a key can be: nothing was called before the record was written.
    """

    consumer: str
    partition: Partition
    offset: int
    at: datetime.datetime | None


class Owner(NamedTuple):
    """Whose effects these are: for a consumer's handler one value for each handling, for others what they say.

    `name` is read by people and is part of the key that goes out. `identity` is what the row is found by; it outlives
    a renaming. `scope` keeps the same operation id of two tenants (or two kinds of event) apart.
    """

    name: str
    identity: str = ""
    scope: str = ""
    home: Home | None = None
    origin: Origin | None = None
    event_id: bytes | None = None
    tenant: str | None = None
    brand: str | None = None
    correlation_id: str = ""


class Call(NamedTuple):
    """One operation that is about to be done."""

    effect: Effect
    owner: Owner
    operation_id: str
    scope: str
    """Within which the operation id counts."""
    fingerprint: bytes
    identity: bytes
    key: str
    """The idempotency key: derived, so that a repeat after a restore sends the same one. A UUID in form, because some
    services demand one.
    """

    @classmethod
    def of(cls, effect: Effect, owner: Owner, operation_id: str, request: Request, scope: str | None = None) -> Call:
        """Raises ValueError for an empty operation id and TypeError for a request that has no stable form."""
        if not operation_id:
            raise ValueError("an effect needs an operation id that is not empty: it is what a repeat is known by")
        where = owner.scope if scope is None else scope
        name, operation = effect.name, _bytes(operation_id)
        identity = event_id16(_prefix(b"effect", where, owner.identity or owner.name, name), operation)
        key = _uuid(event_id16(_prefix(b"effect-key", where, owner.name, name), operation))
        return cls(effect, owner, operation_id, where, fingerprint(request), identity, key)


def next_key(key: str) -> str:
    """The key behind `key`, where a person said that the service must not take the next call for a repeat."""
    return _uuid(digest16(b"effect-key-next", key.encode()))


def _uuid(digest: bytes) -> str:
    """A digest in the form of a name-based UUID (version 5, the variant of RFC 9562)."""
    text = digest.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


@functools.lru_cache(maxsize=1024)
def _prefix(kind: bytes, *parts: str) -> bytes:
    """What many operations share: an owner has few scopes and effects, and thousands of operations a second."""
    return length_prefixed((kind, *map(_bytes, parts)))


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
        text = _RESULTS.encode(result)
        size = len(text.encode())
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
    dates and bytes may stand. Raises TypeError for anything whose form could differ from run to run.
    """
    if request is None:
        return NOT_TOLD
    if isinstance(request, bytes | bytearray):
        return digest16(b"request-bytes", bytes(request))
    return digest16(b"request-json", _ENCODER.encode(request).encode())


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
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


_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)
