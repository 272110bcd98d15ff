"""What is said of a dead-letter topic by its rules alone."""

from __future__ import annotations

from tidegate.consumers.client.admin import TopicRules
from tidegate.consumers.letter_topics import LetterTopic, letter_bytes_max, problems, warnings
from tidegate.dlq.letter import LETTER_BYTES_MIN

DAY_S = 86_400.0
DELETE = frozenset({"delete"})
GOOD = TopicRules(DELETE, 2_000_000, int(DAY_S * 1000), may_write=True)


def letter_topic(rules: TopicRules | None, name: str = "t.dlq", error: str | None = None) -> LetterTopic:
    return LetterTopic(name, 3, error, rules, TopicRules(DELETE, 1_000_000, -1))


def test_a_topic_that_takes_every_letter_is_fine() -> None:
    assert problems(letter_topic(GOOD), DAY_S) == []
    assert warnings(letter_topic(GOOD)) == []


def test_a_principal_that_may_not_write_is_told_so_where_the_broker_tells() -> None:
    """Without Write every letter would wait: refused. A broker that does not say what is allowed proves nothing.

    Case: B31
    Parts: -
    Red when: letter_topics.py's problems asks `if not rules.may_write`
    """
    (problem,) = problems(letter_topic(TopicRules(DELETE, 2_000_000, 1, may_write=False)), DAY_S)
    assert (problem.key, problem.fix) == ("topic t.dlq", "grant it Write on the topic")
    assert problems(letter_topic(TopicRules(DELETE, 2_000_000, 1, may_write=None)), DAY_S) == []


def test_a_topic_that_may_not_be_seen_is_not_called_missing() -> None:
    hidden = letter_topic(None, error="TOPIC_AUTHORIZATION_FAILED: Broker: Topic authorization failed")
    assert not hidden.is_missing
    (problem,) = problems(hidden, DAY_S)
    assert "TOPIC_AUTHORIZATION_FAILED" in problem.what
    assert "grant" in problem.fix
    assert warnings(hidden) == []
    assert letter_topic(None, error="UNKNOWN_TOPIC_OR_PART: no such topic").is_missing


def test_every_problem_of_a_topic_is_said_at_once() -> None:
    assert len(problems(letter_topic(TopicRules(frozenset({"compact"}), 1, -1, may_write=False)), DAY_S)) == 4


def test_what_may_not_be_read_is_a_warning() -> None:
    assert problems(letter_topic(None), DAY_S) == []
    assert "DescribeConfigs" in warnings(letter_topic(None))[0]


def test_a_letter_is_no_larger_than_topic_and_producer_take() -> None:
    topics = [
        letter_topic(GOOD, "a"),
        letter_topic(TopicRules(DELETE, 100, -1), "small"),
        letter_topic(None, "unknown"),
    ]
    assert letter_bytes_max(topics, None) == {"a": 2_000_000, "small": LETTER_BYTES_MIN}
    assert letter_bytes_max(topics, 500_000) == {"a": 500_000, "small": LETTER_BYTES_MIN}
