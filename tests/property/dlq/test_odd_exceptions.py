"""Whatever an exception does to those who look at it, it has an end and a text, and nothing else is raised."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.odd_errors import BASES, WAYS, odd
from tidegate.dlq.decisions import DeadNow, DependencyAway, Transient
from tidegate.dlq.failure_text import MESSAGE_CHARS_MAX, dead, describe, full_message
from tidegate.dlq.guard import Raised, contained_call
from tidegate.dlq.outcomes import dead_by, fatal_by
from tidegate.dlq.policy import Rule, Then
from tidegate.dlq.rules import Fatal, decide, may_be_an_outage
from tidegate.inbox.effect_faults import Sureness, sureness
from tidegate.inbox.event import Record
from tidegate.inbox.faults import classify
from tidegate.inbox.outcome import Reason
from tidegate.inbox.provider_answers import answered

RECORD = Record("t", 0, 7, b"k", b"{}", (), 0)
RULES = (Rule("shop.Refused", Then.SKIP, "it is known"), Rule(KeyError, Then.FAIL, "it is wrong"))


def made(ways: list[str], of: type[Exception]) -> Exception:
    """One that is odd in all of these ways."""
    return odd(*ways, of=of)


ERRORS = st.builds(made, st.lists(st.sampled_from(sorted(WAYS))), st.sampled_from(BASES))


def raised(errors: Sequence[Exception]) -> Exception:
    """What comes out of a handler that raised the first of these from the second, and so on."""

    def handler(place: int = 0) -> None:
        if place + 1 == len(errors):
            raise errors[place]
        try:
            handler(place + 1)
        except Exception as error:
            raise errors[place] from error

    told = contained_call(handler)
    assert isinstance(told, Raised)
    return told.error


def looked_at(error: Exception) -> None:
    """By everybody who looks at what a handler raised."""
    text = describe(error, (b"k", b"{}"))
    assert type(text.type) is type(text.message) is str
    assert text.type
    assert len(text.message) <= MESSAGE_CHARS_MAX
    text.message.encode()
    assert dead(Reason.REJECTED, error, RECORD).why
    decision = decide(error, classify, RULES)
    assert isinstance(decision, DeadNow | Transient | DependencyAway)
    assert not may_be_an_outage(error, decision, classify)
    assert dead_by(DeadNow(Reason.REJECTED), error, RECORD).why
    assert str(fatal_by(Fatal("it has to be"), error, RECORD))
    assert full_message(error) is not None
    assert sureness(error) in Sureness
    assert answered(error) in (True, False, None)


@pytest.mark.parametrize("of", BASES)
@pytest.mark.parametrize("way", WAYS)
def test_one_that_is_odd_in_one_way_has_its_end_and_a_text(way: str, of: type[Exception]) -> None:
    for errors in ([odd(way, of=of)], [ValueError("x"), odd(way, of=of)], [odd(way, of=of), ValueError("x")]):
        looked_at(raised(errors))


@given(st.lists(ERRORS, min_size=1, max_size=4))
def test_whatever_is_raised_from_whatever_has_its_end_and_a_text(errors: list[Exception]) -> None:
    looked_at(raised(errors))


@given(st.lists(ERRORS, min_size=1, max_size=4))
def test_so_has_a_group_of_such(errors: list[Exception]) -> None:
    looked_at(raised([ExceptionGroup("many", errors)]))
