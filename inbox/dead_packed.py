"""A group's dead rows and letters as parameters, and the part of a statement that unfolds them. No IO.

The driver looks at each member of an array, and with a member for each of forty columns that takes longer than to make
the row. So what rows of a group have in common is told once, as a kind; numbers go as text, which the driver does not
look into; what a letter repeats of its row is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, LiteralString, NamedTuple

from .arrays import Typed
from .failure_rows import NewFailure
from .outbox import NewOutgoing
from .outcome import FailureState
from .record_bytes import encode_headers


class DeadRow(NamedTuple):
    """A row, its letter, and its place in its lane."""

    row: NewFailure
    letter: NewOutgoing
    seq: int


class NotPackableError(Exception):
    """A letter has a key or a value that are neither its row's nor left out."""


def packed(rows: Iterable[DeadRow]) -> dict[str, object]:
    """The parameters of `GIVEN`. Raises NotPackableError."""
    kinds: dict[tuple[Any, ...], int] = {}
    numbers: list[tuple[int, ...]] = []
    rest: list[tuple[Any, ...]] = []
    for row, letter, seq in rows:
        assert _is_plain(row), "only what `failure_rows.dead` makes for a key that goes on"
        kind = kinds.setdefault(_kind_of(row, letter), len(kinds) + 1)
        numbers.append((kind, row.partition, row.record_offset, row.payload_hash8, seq, row.timestamp_ms))
        rest.append(_rest_of(row, letter))
    return {
        **{name: _array_text(column) for name, column in _columns(_NUMBERS, numbers)},
        **{name: _array(column) for name, column in _columns(_REST, rest)},
        **{name: _array(column) for name, column in _columns(_KIND, list(kinds))},
    }


def _is_plain(row: NewFailure) -> bool:
    """What the statement leaves to the table's defaults is as these say."""
    nothing = row.due is row.duplicate_of is row.retrying_since is row.effect_id is None
    return row.state is FailureState.DEAD and nothing and not row.class_attempts and not row.holds


# Each of these has its columns in the order of `_kind_of`, of the numbers in `packed`, and of `_rest_of`.
_KIND: Final[tuple[Typed, ...]] = (
    *(
        ("handler", "bigint"),
        ("version", "int"),
        ("incarnation", "bigint"),
        ("alone", "boolean"),
        ("attempts", "bigint"),
    ),
    *(("schema_id", "bigint"), ("timestamp_type", "int"), ("replay_count", "bigint"), ("origin", "text")),
    *(("topic", "text"), ("reason", "text"), ("exception_type", "text"), ("stack_digest", "text"), ("type", "text")),
    *(
        ("tenant", "text"),
        ("brand", "text"),
        ("letter_topic", "text"),
        ("has_key", "boolean"),
        ("has_value", "boolean"),
    ),
)


def _kind_of(row: NewFailure, letter: NewOutgoing) -> tuple[Any, ...]:
    verdict = row.verdict
    return (
        *(row.handler, row.version, row.incarnation, row.alone, row.attempts, row.schema_id, row.timestamp_type),
        *(row.replay_count, row.origin, row.topic, verdict.reason, verdict.exception_type, verdict.stack_digest),
        *(row.type, row.tenant, row.brand, letter.topic, _has(letter.key, row.key), _has(letter.payload, row.value)),
    )


def _has(part: bytes | None, of_row: bytes | None) -> bool:
    """Whether the letter has what the row has, or nothing."""
    if part is not None and part != of_row:
        raise NotPackableError
    return part is not None


_NUMBERS: Final[tuple[Typed, ...]] = (
    *(("kind", "bigint"), ("partition", "int"), ("record_offset", "bigint"), ("payload_hash8", "bigint")),
    *(("seq", "bigint"), ("timestamp_ms", "bigint")),
)

_REST: Final[tuple[Typed, ...]] = (
    *(("event_id", "bytea"), ("lane", "bytea"), ("letter_id", "bytea"), ("key", "bytea"), ("value", "bytea")),
    *(("headers", "bytea"), ("letter_headers", "bytea"), ("message", "text"), ("id_text", "text")),
    *(("other_correlation_id", "text"), ("other_operation_id", "text")),
    *(("earlier_failed_at", "timestamptz"), ("last_failed_at", "timestamptz")),
)


def _rest_of(row: NewFailure, letter: NewOutgoing) -> tuple[Any, ...]:
    """None where an id is the event's, and the first time the last one, as they nearly always are."""
    id_text, first, last = row.id_text, row.first_failed_at, row.last_failed_at
    return (
        *(row.event_id, row.lane, letter.id, row.key, row.value),
        *(encode_headers(row.headers), encode_headers(letter.headers), row.verdict.message, id_text),
        *(None if row.correlation_id == id_text else row.correlation_id,),
        *(None if row.operation_id == id_text else row.operation_id, None if first == last else first, last),
    )


def _columns(names: Sequence[Typed], rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, tuple[Any, ...]]]:
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return [(name, column) for (name, _), column in zip(names, columns, strict=True)]


def _array(column: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A column of nothing is NULL: beside other arrays it unfolds to the same."""
    return None if column.count(None) == len(column) else column


def _array_text(numbers: tuple[int, ...]) -> str:
    """An array as PostgreSQL reads it.

    >>> _array_text((7, -1))
    '{7, -1}'
    """
    return f"{{{repr([*numbers])[1:-1]}}}"


def _names(columns: Sequence[Typed]) -> LiteralString:
    return ", ".join([name for name, _ in columns])


_GIVEN: Final[LiteralString] = ", ".join(
    (
        *[f"CAST(CAST(:{name} AS text) AS {type_}[])" for name, type_ in _NUMBERS],
        *[f"CAST(:{name} AS {type_}[])" for name, type_ in _REST],
    )
)
_KINDS: Final[LiteralString] = ", ".join([f"CAST(:{name} AS {type_}[])" for name, type_ in _KIND])

GIVEN: Final[LiteralString] = f"""
    given AS MATERIALIZED (
      SELECT g.*, k.*, 'dead' AS state, topic AS home_topic, partition AS home_partition,
             coalesce(other_correlation_id, id_text) AS correlation_id,
             coalesce(other_operation_id, id_text) AS operation_id,
             coalesce(earlier_failed_at, last_failed_at) AS first_failed_at,
             CASE WHEN has_key THEN key END AS letter_key, CASE WHEN has_value THEN value END AS letter_payload
        FROM unnest({_GIVEN}) WITH ORDINALITY g ({_names((*_NUMBERS, *_REST))}, nth)
        JOIN unnest({_KINDS}) WITH ORDINALITY k ({_names(_KIND)}, kth) ON kth = kind)
"""  # noqa: S608 - of the source, as the types say
"""The rows and their letters, in their order (`nth`), in a longer statement."""
