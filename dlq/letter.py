"""The dead letter: the record byte for byte as it came, and headers that say why it is dead and what to do. No IO.

Key, value and the record's own headers are never touched; None stays None. Headers of an earlier letter are replaced,
so that a letter's letter is no bigger. A record too large for the topic still gets its letter: a claim letter, with the
hash of the value that stays in the inbox.
"""

from __future__ import annotations

import datetime
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, final

from ..inbox.event import Header, Headers, Record
from ..inbox.identity import outbox_id16
from ..inbox.json_text import json_text
from .foreign import LetterFormat, foreign_fields
from .letter_headers import (
    FORMAT_VERSION,
    LETTER_HEADERS,
    OUR_NAMES,
    REPLAY,
    REPLAY_COMMAND,
    RUNBOOK,
    SHARE_GROUP_HEADERS,
    SHARE_GROUP_PREFIX,
    VERSION,
    bounded,
    to_bytes,
    to_text,
)
from .runbooks import runbook_of

LETTER_BYTES_MAX: Final = 1_000_000
"""librdkafka's default `message.max.bytes`: what is larger is refused by the producer before it reaches the broker."""

LETTER_BYTES_MIN: Final = 65_536
"""Room for our own headers at their longest (each is bounded, together below 40 KB) with something to spare."""

FRAMING_BYTES: Final = 2_048
"""Kept free for the batch's and the record's framing, and for the header that the outbox adds."""

_HEADER_FRAMING_BYTES: Final = 10
"""Two varints of at most five bytes around each header's name and value."""

RELEASED: Final = "released"
HELD: Final = "held"


@final
@dataclass(slots=True, kw_only=True)
class Letter:
    """A dead letter, whoever wrote it. What its headers do not say is None.

    `headers` are the record's own. `left_out` names what a claim letter lacks: `value`, `headers`, `key`.
    Nobody changes one; it is not frozen, because that makes it three times as slow to make.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    format: LetterFormat = LetterFormat.TIDEGATE
    dead_letter_id: str
    reason: str | None = None
    disposition: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    stack_digest: str | None = None
    event_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    operation_id: str | None = None
    traceparent: str | None = None
    tenant: str | None = None
    brand: str | None = None
    consumer: str | None = None
    handler: str | None = None
    handler_version: int | None = None
    attempts: int | None = None
    first_failed_at: datetime.datetime | None = None
    last_failed_at: datetime.datetime | None = None
    origin_topic: str | None = None
    origin_incarnation: int | None = None
    origin_partition: int | None = None
    origin_offset: int | None = None
    origin_timestamp_ms: int | None = None
    origin_timestamp_type: int | None = None
    schema_id: int | None = None
    replay_count: int | None = None
    claim: str | None = None
    claim_bytes: int | None = None
    left_out: tuple[str, ...] | None = None


class Written(NamedTuple):
    """A letter as it goes out."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def dead_letter_topic(topic: str, consumer: str) -> str:
    """The topic of a consumer's dead letters from `topic`.

    >>> dead_letter_topic("shop.orders", "billing-orders")
    'shop.orders.billing-orders.dlq'
    """
    return f"{topic}.{consumer}.dlq"


class Victim(NamedTuple):
    """For whom a record is dead: the consumer, the handler's name and version, and the event's 16-byte identity."""

    consumer: str
    handler: str
    version: int
    event_id: bytes


def dead_letter_id(victim: Victim, origin: Record, incarnation: int, replay_count: int) -> bytes:
    """The letter's 16-byte identity, which is its outbox id: the same after any repeat of the same burial.

    A letter after a replay is another one. The origin is part of it, so that two records of one key both keep theirs.
    """
    place = f"letter/{origin.topic}/{incarnation}/{origin.partition}/{origin.offset}"
    handler = f"{victim.consumer}/{victim.handler}/{victim.version}"
    topic = dead_letter_topic(origin.topic, victim.consumer)
    return outbox_id16(handler, victim.event_id.hex(), topic, origin.key, place, replay_count)


def replay_command(letter_id: str, tenant: str | None) -> str:
    """The command line that replays one letter. As it stands it only shows what it would do: `--yes` does it.

    >>> replay_command("00ff", "acme")
    "tidegate dlq replay 00ff --tenant acme --reason 'cause repaired'"
    >>> replay_command("00ff", None)
    "tidegate dlq replay 00ff --all-tenants --reason 'cause repaired'"
    """
    whose = "--all-tenants" if tenant is None else f"--tenant {shlex.quote(tenant)}"
    return f"tidegate dlq replay {shlex.quote(letter_id)} {whose} --reason 'cause repaired'"


def replay_instruction(letter: Letter) -> dict[str, Any]:
    """The replay instruction as docs/dead-letter-format.md's JSON Schema describes it."""
    return _instruction(letter, _texts_of(letter))


def _instruction(letter: Letter, texts: Mapping[str, str]) -> dict[str, Any]:
    """Its texts are those of the headers: bounded, and nothing in them that UTF-8 cannot hold."""
    return {
        "version": FORMAT_VERSION,
        "dead_letter_id": texts["dead_letter_id"],
        "consumer": texts.get("consumer"),
        "handler": texts.get("handler"),
        "handler_version": letter.handler_version,
        "event_id": texts.get("event_id"),
        "tenant": texts.get("tenant"),
        "reason": texts.get("reason"),
        "replay_count": letter.replay_count,
        "runbook": runbook_of(texts.get("reason")),
        "origin": {
            "topic": texts.get("origin_topic"),
            "incarnation": letter.origin_incarnation,
            "partition": letter.origin_partition,
            "offset": letter.origin_offset,
        },
    }


# ------------------------------------------------------------------------------------------------------------ writing


def write_letter(letter: Letter, limit_bytes: int = LETTER_BYTES_MAX) -> Written:
    """The letter as key, value and headers, at most `limit_bytes` on the wire.

    What does not fit becomes a claim letter: without its value or, where that does not help, without its own headers
    or its key too, in that order. Our own headers are bounded, so this always ends.
    """
    assert limit_bytes >= LETTER_BYTES_MIN, f"a letter needs {LETTER_BYTES_MIN} bytes at least"
    whole = _written(letter)
    received_bytes = written_bytes(Written(letter.key, letter.value, letter.headers))
    if received_bytes + LETTER_BYTES_MIN <= limit_bytes or _fits(whole, limit_bytes):  # nearly all, without counting
        return whole
    for left_out in _LEAVING_OUT:
        claim = _written(_without(letter, left_out))
        if _fits(claim, limit_bytes):
            return claim
    raise AssertionError("our own headers are bounded, so a letter of nothing else fits")


_LEAVING_OUT = (("value",), ("headers",), ("value", "headers"), ("value", "headers", "key"))
"""The value first: it is nearly always what is too large. Headers alone before both: a value that fits should go."""


def shrunk(record: Record) -> Written | None:
    """The letter in `record`, which its topic does not take, with less in it; None where there is nothing to leave out.

    What was left out stands in the inbox's row.
    """
    letter = read_letter(record)
    parts = {"value": letter.value, "headers": letter.headers, "key": letter.key}
    there = {name for name, part in parts.items() if part}
    gone = {*(letter.left_out or ())}
    for left_out in _LEAVING_OUT:
        if gone <= {*left_out} and there & {*left_out}:
            return _written(_without(letter, left_out))
    return None


def emptied(record: Record) -> Written:
    """The letter in `record` without anything that came with the event: a claim letter whose claim nobody can redeem.

    Its message may hold words of the event's too, so it goes as well.
    """
    letter = replace(read_letter(record), exception_message=None)
    return _written(_without(letter, ("value", "headers", "key")))


def _without(letter: Letter, left_out: tuple[str, ...]) -> Letter:
    """The claim letter that stands for `letter`; what is one already keeps the hash of the value that it lacks."""
    value = letter.value or b""
    return replace(
        letter,
        key=None if "key" in left_out else letter.key,
        value=None if "value" in left_out else letter.value,
        headers=() if "headers" in left_out else letter.headers,
        claim=letter.claim or hashlib.sha256(value).hexdigest(),
        claim_bytes=len(value) if letter.claim_bytes is None else letter.claim_bytes,
        left_out=left_out,
    )


def _written(letter: Letter) -> Written:
    texts, headers = _told(letter)
    ours = [header for header in headers if header is not None]
    ours += _derived(letter, texts)
    ours += [(name, header[1]) for name, place in _SHARED if (header := headers[place]) is not None]
    return Written(letter.key, letter.value, (*own_headers(letter.headers), *ours))


_ALIKE: Final = frozenset(
    {
        *("reason", "disposition", "exception_type", "stack_digest", "tenant", "brand", "consumer", "handler"),
        *("handler_version", "attempts", "origin_topic", "origin_incarnation", "origin_partition"),
        *("origin_timestamp_type", "schema_id", "replay_count"),
    }
)
"""Fields in which letters of one handler and one cause are alike: two thirds of all, written once for all of them."""

KINDS_MAX: Final = 1_000
"""Kinds of letters that are remembered, about 3 KB each: handlers times causes times partitions of a busy day."""

_KIND: Final = tuple(row for row in LETTER_HEADERS if row.field in _ALIKE)
_OWN: Final = tuple(
    (place, row.field, row.name, row.write) for place, row in enumerate(LETTER_HEADERS) if row.field not in _ALIKE
)
_kind_of: Final = attrgetter(*[row.field for row in _KIND])
_own_of: Final = attrgetter(*[field for _, field, _, _ in _OWN])
_PLACES: Final = {row.field: place for place, row in enumerate(LETTER_HEADERS)}
_SHARED: Final = tuple((SHARE_GROUP_PREFIX + suffix, _PLACES[field]) for suffix, field in SHARE_GROUP_HEADERS)
_VERSION: Final = (VERSION, to_bytes(str(FORMAT_VERSION)))


def _texts_of(letter: Letter) -> dict[str, str]:
    """What each header says, by the field that it tells."""
    return _told(letter)[0]


def _told(letter: Letter) -> tuple[dict[str, str], list[Header | None]]:
    """The same, and the headers at their places; None for what the letter does not say."""
    of_kind, there = _told_of_kind(_kind_of(letter))
    texts, headers = {**of_kind}, [*there]
    for (place, field, name, write), value in zip(_OWN, _own_of(letter), strict=True):
        if value is not None:
            text = texts[field] = write(value)
            headers[place] = (name, to_bytes(text))
    return texts, headers


@lru_cache(KINDS_MAX)
def _told_of_kind(values: tuple[Any, ...]) -> tuple[Mapping[str, str], tuple[Header | None, ...]]:
    pairs = zip(_KIND, values, strict=True)
    texts = {row.field: row.write(value) for row, value in pairs if value is not None}
    there = [(row.name, to_bytes(texts[row.field])) if row.field in texts else None for row in LETTER_HEADERS]
    return texts, tuple(there)


def own_headers(headers: Headers) -> Headers:
    """The record's own headers: without those of an earlier letter, and without any that pretend to be one's."""
    return tuple(header for header in headers if header[0] not in OUR_NAMES)


def _derived(letter: Letter, texts: Mapping[str, str]) -> list[Header]:
    return [
        _VERSION,
        (REPLAY, to_bytes(json_text(_instruction(letter, texts)))),
        (REPLAY_COMMAND, to_bytes(replay_command(texts["dead_letter_id"], texts.get("tenant")))),
        (RUNBOOK, to_bytes(runbook_of(texts.get("reason")))),
    ]


def _fits(written: Written, limit_bytes: int) -> bool:
    return written_bytes(written) + FRAMING_BYTES <= limit_bytes


def written_bytes(written: Written) -> int:
    """Bytes of key, value and headers, framing of the headers included."""
    key, value, headers = written
    names = len(to_bytes("".join([name for name, _ in headers])))
    values = sum([len(value) for _, value in headers if value])
    return len(key or b"") + len(value or b"") + names + values + len(headers) * _HEADER_FRAMING_BYTES


# ------------------------------------------------------------------------------------------------------------ reading


def read_letter(record: Record) -> Letter:
    """The letter in `record`: ours, or one written by Spring, Kafka Streams, Kafka Connect or a share group.

    Never raises: a header that makes no sense counts as absent, and a record that is no letter at all comes back with
    `LetterFormat.NONE`. Everything in it is text that anybody may have written: show it, match it, don't believe it.
    """
    if record.header(LETTER_HEADERS[0].name) is not None:
        letter_format, headers, fields = LetterFormat.TIDEGATE, own_headers(record.headers), _our_fields(record)
    else:
        letter_format, headers, fields = foreign_fields(record)
    return Letter(key=record.key, value=record.value, headers=headers, format=letter_format, **bounded(fields))


def _our_fields(record: Record) -> dict[str, Any]:
    texts = {name: to_text(value) for name, value in record.headers if value is not None}
    fields: dict[str, Any] = dict.fromkeys((row.field for row in LETTER_HEADERS), None)
    return fields | {row.field: row.read(texts[row.name]) for row in LETTER_HEADERS if row.name in texts}
