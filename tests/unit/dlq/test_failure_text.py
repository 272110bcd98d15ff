"""What is told about an exception: short, clean, without secrets."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DataError, IntegrityError, StatementError

from tidegate.consumers.codecs.json import JsonCodec
from tidegate.dlq.failure_text import (
    MESSAGE_CHARS_MAX,
    TYPE_CHARS_MAX,
    clean,
    dead,
    describe,
    exception_type,
    full_message,
    printable,
    safe_message,
    stack_digest,
    without_secrets,
)
from tidegate.inbox.errors import FatalError, RecordError
from tidegate.inbox.event import Record
from tidegate.inbox.outcome import Reason


class MuteError(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class LoudError(Exception):
    """Its text has 10 MB."""

    def __str__(self) -> str:
        return "x" * 10_000_000


class DriverError(Exception):
    """Shaped like asyncpg's: the server's fields as attributes, row values in the text."""

    sqlstate = "23505"
    constraint_name = "orders_pkey"
    table_name = "orders"


class WrappedDriverError(Exception):
    """Shaped like SQLAlchemy's adaptation of it."""

    sqlstate = "23505"


class OldValidationError(ValueError):
    """Shaped like pydantic.v1's: its `errors` takes no arguments, its text holds the keys of maps."""

    __module__ = "pydantic.v1.error_wrappers"

    def errors(self) -> list[dict[str, object]]:
        return []


def integrity_error(parameter: str = "4111-test-card") -> IntegrityError:
    driver = DriverError(f"duplicate key value\nDETAIL:  Key (card)=({parameter}) already exists.")
    wrapped = WrappedDriverError(str(driver))
    wrapped.__cause__ = driver
    return IntegrityError("INSERT INTO orders VALUES (:card)", {"card": parameter}, wrapped)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_exception_whose_text_raises_still_has_a_class_and_a_note() -> None:
    text = describe(MuteError())
    assert text.type.endswith("MuteError")
    assert text.message == "<exception str() failed>"


def test_a_text_of_ten_megabytes_is_cut_in_bounded_time() -> None:
    started = time.perf_counter()
    message = safe_message(LoudError(), (b"x" * 1000,))
    assert len(message) <= MESSAGE_CHARS_MAX
    assert time.perf_counter() - started < 2.0


def test_a_class_name_without_end_is_cut() -> None:
    cls = type("E" * 5_000, (Exception,), {})
    assert len(exception_type(cls())) == TYPE_CHARS_MAX


def test_a_database_error_is_told_by_sqlstate_and_names_only() -> None:
    """An IntegrityError's text shows neither its parameters nor the row that was in the way.

    Case: B38
    Parts: real (SQLAlchemy's exception classes)
    Red when: dlq/failure_text.py leaves "sqlalchemy" out of _DATABASE_ROOTS
    """
    message = safe_message(integrity_error())
    assert message == "SQLSTATE 23505, constraint orders_pkey, table orders"


def test_a_database_error_copied_into_another_is_told_the_same_way() -> None:
    inner = integrity_error()
    outer = ValueError(f"cannot save: {inner} (card)")
    outer.__cause__ = inner
    message = safe_message(outer)
    assert "4111" not in message
    assert message.startswith("cannot save: (SQLSTATE 23505")


def test_sql_and_detail_are_cut_off_wherever_they_come_from() -> None:
    assert safe_message(ValueError("no luck\n[SQL: SELECT 1]\n[parameters: ('4111',)]")) == "no luck"
    assert safe_message(ValueError("no luck DETAIL:  Key (card)=(4111) exists")) == "no luck"


@pytest.mark.parametrize(
    "error", [DataError("S", {"p": "4111"}, Exception("bad '4111'")), StatementError("4111", "S", {"p": "4111"}, None)]
)
def test_no_database_error_tells_its_parameters(error: StatementError) -> None:
    assert "4111" not in safe_message(error)


def test_an_address_is_shown_without_its_password() -> None:
    """A DSN in an exception's text loses its password.

    Case: B38
    Parts: -
    Red when: inbox/secrets_in_text.py leaves the first pattern out of _SECRETS
    """
    message = safe_message(ConnectionError("cannot reach postgresql+asyncpg://app:pw123@db.local:5432/shop"))
    assert message == "cannot reach postgresql+asyncpg://app:***@db.local:5432/shop"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://app:s3cr3t!@ss/w0rd@db/shop",
        "host=db user=app password=s3cr3t!@ss/w0rd dbname=shop",
        "{'sasl.password': 's3cr3t!@ss/w0rd', 'x': 1}",
        'sasl.jaas.config: username="a" password="s3cr3t!@ss/w0rd";',
        "GET https://x/?api_key=s3cr3t!@ss/w0rd",
        "Authorization: Bearer s3cr3t-w0rd-abcdef",
        "PASSWORD: s3cr3t!@ss/w0rd",
        "client_secret='s3cr3t and more'",
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzM2NyM3QifQ.s3cr3tsignature",
    ],
)
def test_named_secrets_and_tokens_are_hidden(text: str) -> None:
    assert "s3cr3t" not in without_secrets(text)
    assert "w0rd" not in without_secrets(text)


def test_a_password_longer_than_what_is_scanned_does_not_leak_its_beginning() -> None:
    assert "pppp" not in safe_message(ValueError(f"postgresql://app:{'p' * 20_000}@db/shop"))


@dataclass
class Order:
    """A payload whose repr shows its values."""

    order_id: str
    card: str
    amount: int


def test_values_of_the_record_are_left_out_and_names_stay() -> None:
    order = Order("o-17", "4111-test-card", 5)
    payload = (b"o-17", b'{"order_id": "o-17", "card": "4111-test-card", "amount": 5}')
    message = safe_message(ValueError(f"cannot bill {order} for order_id, card 4111-test-card"), payload)
    assert "4111" not in message
    assert "o-17" not in message
    assert "order_id" in message


def test_a_validation_error_tells_where_and_how_but_not_the_input() -> None:
    class Payment(pydantic.BaseModel):
        amount: int

    with pytest.raises(pydantic.ValidationError) as failed:
        Payment.model_validate({"amount": "4111-test-card"})
    assert safe_message(failed.value) == "1 validation errors: amount: int_parsing"


def test_a_validation_error_of_the_old_pydantic_is_told_without_its_paths() -> None:
    assert safe_message(OldValidationError("balances -> 4111-test-card")) == "validation errors"


def test_a_value_in_a_path_or_between_two_apostrophes_is_found() -> None:
    payload = (b'{"card": "4111-test-card", "mail": "anna.smith@example.com"}',)
    assert safe_message(ValueError("balances.4111-test-card: no int"), payload) == "***: no int"
    assert safe_message(ValueError("can't bill 4111-test-card, won't"), payload) == "can't bill ***, won't"
    assert safe_message(KeyError("no anna.smith@example.com here"), payload) == "'no *** here'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("card 4111111111111111 refused", "card *** refused"),
        ("card 4111 1111 1111 1111 refused", "card *** refused"),
        ("card 4111-1111-1111-1111 refused", "card *** refused"),
        ("account DE89 3704 0044 0532 0130 00", "account DE***"),
        ("account DE89370400440532013000", "account DE***"),
        ("social security 123-45-6789", "social security ***"),
        ("call 0170 1234567", "call ***"),
        ("Customer(id=1234567, age=42)", "Customer(id=***, age=42)"),
        ("status 503 after 10000 ms at 2024-01-15 10:00:00", "status 503 after 10000 ms at 2024-01-15 10:00:00"),
        ("db:5432 and 123456 rows", "db:5432 and 123456 rows"),
    ],
)
def test_long_numbers_are_hidden_whatever_the_payload_is(text: str, told: str) -> None:
    """A record's number in an exception's text is not told, though the bytes of the record (Avro) do not show it.

    Case: B38
    Parts: -
    Red when: dlq/failure_text.py's _without_numbers returns its text
    """
    assert safe_message(ValueError(text)) == told
    assert safe_message(ValueError(text), (b"\x80\xe2\x0c",)) == told
    assert safe_message(raised(RecordError(Reason.REJECTED, text))) == told
    assert full_message(raised(FatalError(text, fix="look"))) == f"{told}. Fix: look"


def test_an_error_that_we_raised_ourselves_keeps_its_numbers() -> None:
    record = Record("t", 0, 0, None, b" " * 1_234_567)
    with pytest.raises(RecordError) as failed:
        JsonCodec("T", allow_nul=False).decode(record)
    assert safe_message(failed.value).endswith("at character 1234567 of 1234567 bytes")
    assert full_message(failed.value).endswith("of 1234567 bytes")


def test_text_of_an_exception_can_always_be_written() -> None:
    """NUL, control characters and lone surrogates are replaced; pairs are joined; escapes that are mere text stay.

    Case: B43
    Parts: -
    Red when: dlq/failure_text.py's _paired returns its argument
    """
    message = safe_message(ValueError("a\0b \ud800 \ud83d\ude00 \\u0000 \x1b[31mred"))
    assert message == "a b \ufffd \U0001f600 \\u0000 [31mred"


@given(st.text(st.characters(exclude_categories=())), st.binary())
def test_any_text_becomes_one_that_every_sink_can_hold(text: str, payload: bytes) -> None:
    message = safe_message(ValueError(text), (payload,))
    assert len(message) <= MESSAGE_CHARS_MAX
    for sink in (message, clean(text), printable(text)):
        assert "\0" not in sink
        assert sink.encode("utf-8").decode("utf-8") == sink


def fails_in_one_place() -> None:
    raise ValueError


def fails_in_another() -> None:
    raise ValueError


def digest_of(function: object) -> str:
    assert callable(function)
    with pytest.raises(ValueError, match=r"^$") as failed:
        function()
    return stack_digest(failed.value)


def test_the_digest_is_equal_along_the_same_frames_only() -> None:
    digests = [digest_of(fails) for fails in (fails_in_one_place, fails_in_one_place, fails_in_another)]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 16
    assert stack_digest(ValueError("never raised")) == ""


def test_endless_recursion_has_a_digest() -> None:
    def again() -> None:
        again()

    with pytest.raises(RecursionError) as failed:
        again()
    assert len(stack_digest(failed.value)) == 16


def test_a_task_group_with_one_failure_is_told_by_that_failure() -> None:
    outcome = dead(
        Reason.REJECTED, raised(ExceptionGroup("unhandled", [KeyError("amount")])), Record("t", 0, 0, None, b"")
    )
    assert (outcome.exception_type, outcome.why) == ("KeyError", "'amount'")


def test_an_exception_without_text_is_told_by_its_class() -> None:
    assert dead(Reason.REJECTED, ValueError(), Record("t", 0, 0, None, None)).why == "ValueError"


def test_one_long_word_is_no_work() -> None:
    """Ten messages of one word of 3,990 letters: before it began at the telling word, a pattern took 3.6 s for them."""
    began = time.process_time()
    for _ in range(10):
        safe_message(ValueError("x" * 3_990))
    assert time.process_time() - began < 1.0
