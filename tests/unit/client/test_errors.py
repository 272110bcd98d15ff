"""The table of Kafka's error codes, walked."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tidegate.consumers.client.errors import FIXES, KINDS, Kind, commit_answer, fix_of, kind_of, send_answer
from tidegate.consumers.client.ports import CommitAnswer, SendAnswer

BY_KIND = {
    Kind.IGNORE: CommitAnswer.ACCEPTED,
    Kind.WARN: CommitAnswer.UNREACHABLE,
    Kind.RETRY: CommitAnswer.UNREACHABLE,
    Kind.TOPIC: CommitAnswer.UNREACHABLE,
    Kind.OUT_OF_RANGE: CommitAnswer.UNREACHABLE,
    Kind.REBALANCE: CommitAnswer.REFUSED,
    Kind.FATAL: CommitAnswer.REFUSED,
    Kind.AUTHORISATION: CommitAnswer.FORBIDDEN,
}


@pytest.mark.parametrize("code", sorted(KINDS))
def test_every_listed_code_is_known_to_the_client_and_answers_a_commit(code: int) -> None:
    error = KafkaError(code)
    assert error.name(), code
    assert kind_of(error) is KINDS[code]
    assert commit_answer(error) is BY_KIND[KINDS[code]]
    assert fix_of(error)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (KafkaError.ILLEGAL_GENERATION, CommitAnswer.REFUSED),
        (KafkaError.UNKNOWN_MEMBER_ID, CommitAnswer.REFUSED),
        (KafkaError.FENCED_MEMBER_EPOCH, CommitAnswer.REFUSED),
        (KafkaError._NO_OFFSET, CommitAnswer.REFUSED),
        (KafkaError._STATE, CommitAnswer.REFUSED),
        (KafkaError.REBALANCE_IN_PROGRESS, CommitAnswer.UNREACHABLE),
        (KafkaError.STALE_MEMBER_EPOCH, CommitAnswer.UNREACHABLE),
    ],
)
def test_a_routine_rebalance_is_never_fatal_to_a_commit(code: int, answer: CommitAnswer) -> None:
    """Who lost the membership is refused; who is only behind, and keeps its partitions, asks again.

    Case: B03
    Parts: real (confluent-kafka's KafkaError)
    Red when: errors.py maps any of these to Kind.FATAL or Kind.AUTHORISATION
    """
    assert commit_answer(KafkaError(code)) is answer
    assert kind_of(KafkaError(code)) in (Kind.REBALANCE, Kind.RETRY)


def test_the_fatal_flag_wins_over_the_table() -> None:
    assert kind_of(KafkaError(KafkaError._TRANSPORT, fatal=True)) is Kind.FATAL


def test_all_brokers_down_is_not_fatal() -> None:
    assert kind_of(KafkaError(KafkaError._ALL_BROKERS_DOWN)) is Kind.WARN


def test_a_code_that_nobody_listed_may_pass() -> None:
    assert kind_of(KafkaError(4711)) is Kind.RETRY


def test_every_code_with_a_fix_needs_a_person() -> None:
    assert {KINDS[code] for code in FIXES} <= {Kind.FATAL, Kind.AUTHORISATION}


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, SendAnswer.TOO_LARGE),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SendAnswer.FORBIDDEN),
        (KafkaError._UNKNOWN_TOPIC, SendAnswer.UNKNOWN_TOPIC),
        (KafkaError._MSG_TIMED_OUT, SendAnswer.UNREACHABLE),
        (KafkaError.INVALID_RECORD, SendAnswer.REFUSED),
    ],
)
def test_a_delivery_report_becomes_an_answer(code: int, answer: SendAnswer) -> None:
    assert send_answer(KafkaError(code)) is answer
    assert send_answer(None) is SendAnswer.SENT
