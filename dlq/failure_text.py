"""What may be told about an exception: short, clean and without secrets. No IO.

An exception's text is written by strangers and travels far: into rows, headers, logs, terminals. So it is

* never allowed to fail or to be long (`str()` may raise or return 10 MB),
* free of what a database cannot hold or a terminal would obey (NUL, lone surrogates, control characters),
* free of passwords, of SQL parameters and of DETAIL lines; a database error is told by SQLSTATE and names only,
* free of long numbers, whatever the record is: those of cards, accounts, persons and phones. Errors that we raised
  ourselves keep theirs, which are offsets, lengths and ids,
* free of the record's own values where they can be told apart: quoted text, and words with a digit, an `@` or a capital
  in them, that stand in the record's key or value. Plain small words that a handler puts into its message stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from pydantic import ValidationError

from ..inbox.errors import TidegateError
from ..inbox.event import Record
from ..inbox.exception_slots import (
    CHAIN_MAX,
    attribute_of,
    cause_of,
    context_of,
    exactly,
    full_name_of,
    known_as,
    members_of,
    traceback_of,
)
from ..inbox.outcome import Dead, Reason
from ..inbox.secrets_in_text import scanned, without_secrets
from .deadline import DeadlineError
from .guard import Raised, contained_call
from .validation_text import told_errors

TYPE_CHARS_MAX = 200
"""A full class name; longer ones are generated and say nothing at their end."""

MESSAGE_CHARS_MAX = 500
"""A few sentences: enough to know what happened, short enough for a header and a table's cell."""

FRAMES_MAX = 50
"""The outermost frames tell failures apart; endless recursion adds only repeats."""

_DIGEST_BYTES = 8
_REDACTED = "***"
_SHORTENED = "…"


@final
@dataclass(slots=True)
class FailureText:
    """What may be told about one exception: its class with module, a safe message, a hash of where it was raised.

    Nobody changes one; it is not frozen, because that makes it five times as slow to make.
    """

    type: str
    message: str
    stack_digest: str


def describe(exc: BaseException, payload: Sequence[bytes | None] = ()) -> FailureText:
    """Everything that may be told about `exc`; values that stand in `payload` (key and value, say) are left out."""
    return FailureText(exception_type(exc), safe_message(exc, payload), stack_digest(exc))


def dead(reason: Reason, exc: BaseException, record: Record, because: str = "") -> Dead:
    """The outcome of `record`, whose handling ended with `exc`; `because`: what the rule says that decided so."""
    text = describe(alone(exc), (record.key, record.value))
    why = ": ".join(part for part in (clean(because), text.message or text.type) if part)
    return Dead(reason, shortened(why, MESSAGE_CHARS_MAX), text.type, text.stack_digest)


def alone(exc: BaseException) -> BaseException:
    """The one exception in a group of one (what a task group raises), else `exc` itself."""
    for _ in range(CHAIN_MAX):
        members = members_of(exc)
        if len(members) != 1:
            break
        exc = members[0]
    return exc


def exception_type(exc: BaseException) -> str:
    """The class's full name, `module.Class`; a builtin has no module.

    >>> exception_type(ValueError("x"))
    'ValueError'
    """
    return name_of(type(exc))


CLASSES_MAX = 1_000
"""Exception classes, ways to where one was raised, and texts of theirs (at most `SCAN_CHARS_MAX` long), of which is
remembered what never changes: more than an application has."""


@lru_cache(CLASSES_MAX)
def name_of(cls: type[BaseException]) -> str:
    """`exception_type` of its instances."""
    return shortened(clean(full_name_of(cls).removeprefix("builtins.")), TYPE_CHARS_MAX)


def safe_message(exc: BaseException, payload: Sequence[bytes | None] = ()) -> str:
    """The message, at most `MESSAGE_CHARS_MAX` characters of it, with nothing in it that should not travel."""
    known = _told_by_names(exc)
    if known is not None:
        return shortened(clean(known), MESSAGE_CHARS_MAX)
    return safe_text(_without_database_text(scanned(_text_of(exc)), exc), payload, exc)


def full_message(exc: BaseException) -> str:
    """The message at its full length and with its lines, for a terminal; without secrets and a stranger's numbers."""
    return _without_numbers(without_secrets(_text_of(exc)), exc)


def safe_text(text: str, payload: Sequence[bytes | None] = (), exc: BaseException | None = None) -> str:
    """Words of a stranger, as rows, headers and terminals can hold them: short, clean, no secret, no value.

    `exc`: whose words they are; those of an error that we raised ourselves keep their numbers.

    >>> safe_text("card '4111' refused, password=pw123, account 12345678", (b"4111",))
    "card '***' refused, password=***, account ***"
    """
    told, may_hold_values = _cleaned(scanned(text))
    if may_hold_values:
        told = _without_numbers(without_values(told, payload), exc)
    return shortened(told, MESSAGE_CHARS_MAX)


@lru_cache(CLASSES_MAX)
def _cleaned(text: str) -> tuple[str, bool]:
    """The text without what may not be told whatever the payload is, and whether there are words in it to be looked for
    there: what fails a thousand times says the same few things.
    """
    told = without_secrets(clean(text))
    return told, (_WORDS.search(told) or _QUOTED.search(told) or _NUMBERS.search(told)) is not None


def stack_digest(exc: BaseException) -> str:
    """Sixteen hex digits, equal for failures raised (or cut off) along the same frames; "" without any."""
    if isinstance(exc, DeadlineError):
        return _digest_of(exc.stood_at)
    frames: list[tuple[str, str, int]] = []
    link = traceback_of(exc)
    while link is not None and len(frames) < FRAMES_MAX:
        frame = link.tb_frame
        frames.append((str(frame.f_globals.get("__name__", "?")), frame.f_code.co_qualname, link.tb_lineno))
        link = link.tb_next
    return _digest_of(tuple(frames))


@lru_cache(CLASSES_MAX)
def _digest_of(frames: tuple[tuple[str, str, int], ...]) -> str:
    """Of modules, functions and lines: what fails a thousand times fails along the same few ways."""
    if not frames:
        return ""
    told = "\n".join([f"{module}:{function}:{line}" for module, function, line in frames])
    return hashlib.blake2b(told.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).hexdigest()


# -------------------------------------------------------------------------------------------------------------- text


def clean(text: str) -> str:
    r"""`text` as UTF-8, a database and a terminal can hold it: surrogates paired or replaced, no controls, one line.

    >>> clean("a\x00b\nc") == "a b c", clean("\ud83d\ude00") == "\U0001f600", clean("\ud800") == "\ufffd"
    (True, True, True)
    """
    return " ".join((text if _is_plain(text) else _CONTROL.sub(" ", _paired(text))).split())


def printable(text: str) -> str:
    r"""The same for an id, whose every character counts: what cannot be kept is marked, nothing is joined.

    >>> printable("a  b\x00") == "a  b\ufffd"
    True
    """
    return text if _is_plain(text) else _CONTROL.sub("\ufffd", _paired(text))


def _is_plain(text: str) -> bool:
    """Nothing in it but letters, digits, marks and spaces of ASCII, as in nearly every text: nothing to look for."""
    return text.isascii() and text.isprintable()


def _paired(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def shortened(text: str, chars_max: int) -> str:
    """The beginning of `text`, and a mark that something is missing.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= chars_max else text[: chars_max - 1] + _SHORTENED


def without_values(text: str, payload: Sequence[bytes | None]) -> str:
    """`text` without quoted literals and telling words that also stand in the `payload`.

    >>> without_values("card '4111-test-card' refused", (b'{"card": "4111-test-card"}',))
    "card '***' refused"
    """
    parts = [part for part in payload if part]
    if not parts:
        return text

    def stands_there(literal: str) -> bool:
        forms = [literal.encode()]
        if not literal.isascii() or "\\" in literal:  # else JSON writes it the same way
            forms.append(json.dumps(literal)[1:-1].encode())
        return any(form in part for part in parts for form in forms)

    def hide_quoted(match: re.Match[str]) -> str:
        quote = match["quote"]
        return f"{quote}{_REDACTED}{quote}" if stands_there(match["quoted"]) else match[0]

    def hide_word(match: re.Match[str]) -> str:
        word = match[0]
        told = stands_there(word)
        if not told and "." in word:  # a path with keys in it
            told = any(stands_there(piece) for piece in word.split(".") if _WORDS.fullmatch(piece))
        return _REDACTED if told else word

    return _WORDS.sub(hide_word, _QUOTED.sub(hide_quoted, text))


def _without_numbers(text: str, exc: BaseException | None) -> str:
    """`text` without long numbers: that they stand in the record cannot be seen in a binary encoding of it."""
    if _NUMBERS.search(text) is None or (exc is not None and _is_ours(exc)):
        return text
    return _NUMBERS.sub(_REDACTED, text)


def _is_ours(exc: BaseException) -> bool:
    """Whether our own code wrote the message: a handler raises our errors too, with its own words."""
    link, raised_by = traceback_of(exc), __name__
    while link is not None:
        link, raised_by = link.tb_next, str(link.tb_frame.f_globals.get("__name__"))
    return isinstance(exc, TidegateError) and raised_by.partition(".")[0] == __name__.partition(".")[0]


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Controls of C0 and C1, line separators, and the marks that turn the direction of a terminal's text."""

_QUOTED = re.compile(r"(?P<quote>[\"'])(?P<quoted>[^\"']{2,})(?P=quote)")
"""Two quoted characters already are a value."""

_WORDS = re.compile(
    r"(?<![\w@.+-])(?=[\w@.+-]*[\d@])[\w@.+-]{5,}(?<![.])"  # with a digit or an @
    r"|(?<![\w-])(?=[\w-]*[^\W\d_a-z])[\w-]{4,}"  # with a letter that is no plain small one
)
"""A bare word needs five characters and a digit or an @ not to be just a word, or four and a letter that is not a plain
small one: names of people and places are written so."""

_NUMBERS = re.compile(r"\d(?: ?\d){8,}|\d(?:-?\d){8,}|\d{7,}")
"""Seven digits in a row are more than a status, a port or a duration has. With blanks or dashes between them it takes
nine, as cards, accounts and persons have: a date has eight."""


def _text_of(exc: BaseException) -> str:
    """`str(exc)`, or a note that it raised, as the standard library would write it."""
    told = contained_call(str, exc)
    return "<exception str() failed>" if isinstance(told, Raised) else exactly(told.value)


def _told_by_names(exc: BaseException) -> str | None:
    """The message of an error whose own text holds row values, parameters or input; None for all others."""
    roots = _roots_of(type(exc))
    if roots & _DATABASE_ROOTS:
        return _database_message(exc)
    if roots & _PYDANTIC_ROOTS and hasattr(type(exc), "errors"):
        return _validation_message(exc)
    return None


@lru_cache(CLASSES_MAX)
def _roots_of(cls: type[BaseException]) -> frozenset[str]:
    """The packages that a class and those that it is made from come out of."""
    return frozenset(known_as(base)[0] for base in cls.__mro__)


_DATABASE_ROOTS = frozenset({"sqlalchemy", "asyncpg", "psycopg", "psycopg2"})
_PYDANTIC_ROOTS = frozenset({"pydantic", "pydantic_core"})

_NAMES_TOLD = (("constraint_name", "constraint"), ("table_name", "table"), ("column_name", "column"))


def _database_message(exc: BaseException) -> str:
    """SQLSTATE and the names that the server sends; neither statement, parameters nor DETAIL."""
    links = list(_driver_links(exc))
    state = _first_text(links, "sqlstate") or _first_text(links, "pgcode")
    told = [f"SQLSTATE {state}" if state else "no SQLSTATE"]
    told += [f"{label} {name}" for attribute, label in _NAMES_TOLD if (name := _first_text(links, attribute))]
    if any(issubclass(type(link), OverflowError) for link in links):
        told.append("value out of range")
    return ", ".join(told)


def _driver_links(exc: BaseException) -> Iterator[object]:
    """SQLAlchemy's error, the driver's behind it, and what libpq's drivers keep beside theirs."""
    link: BaseException | None = exc
    for _ in range(CHAIN_MAX):
        if link is None:
            return
        yield link
        if (diagnostics := attribute_of(link, "diag")) is not None:
            yield diagnostics
        driver = attribute_of(link, "orig")
        link = driver if issubclass(type(driver), BaseException) else cause_of(link)


def _first_text(links: Sequence[object], attribute: str) -> str | None:
    for link in links:
        value = attribute_of(link, attribute)
        if issubclass(type(value), str) and (text := exactly(value)):
            return text
    return None


def _validation_message(exc: BaseException) -> str:
    """Where the input was wrong and how, as pydantic names it; not the input, and no keys of it."""
    if not isinstance(exc, ValidationError):
        return "validation errors"  # of pydantic.v1, whose paths nothing is known of
    listed = contained_call(told_errors, exc)
    if isinstance(listed, Raised):
        return "validation errors"
    told = "; ".join([f"{path}: {kind}" for path, kind in listed.value])
    return f"{exc.error_count()} validation errors: {told}"


def _without_database_text(text: str, exc: BaseException) -> str:
    """`text` without what a handler copied into it from a database error in its chain (`raise X(str(error))`)."""
    text = _SQL_TAIL.split(text, maxsplit=1)[0]
    for link in _chain(exc):
        told = _told_by_names(link)
        if told is None:
            continue
        for line in scanned(_text_of(link)).splitlines():
            if len(line) >= _LINE_CHARS_MIN:
                text = text.replace(line, f"({told})")
    return text


_SQL_TAIL = re.compile(r"\[SQL:|\[parameters:|\bDETAIL:|\bFailing row contains")
_LINE_CHARS_MIN = 8
"""Shorter lines of a database's text hold no value worth hiding, but would match anywhere."""


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what it came from, outermost first."""
    link: BaseException | None = exc
    for _ in range(CHAIN_MAX):
        if link is None:
            return
        yield link
        cause = cause_of(link)
        link = context_of(link) if cause is None else cause
