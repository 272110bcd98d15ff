"""Whatever comes in which order: the breaker on dead letters keeps its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.breaker import BreakerState, runs_of
from tidegate.dlq.policy import BreakerPolicy
from tidegate.inbox.breaker_phase import Phase

policies = st.builds(
    BreakerPolicy,
    row_max=st.integers(1, 6),
    share_max=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    window=st.integers(1, 12),
    seen_min=st.integers(1, 12),
    retry_after_s=st.just(60.0),
)
outcomes = st.lists(st.booleans(), max_size=60)


def too_much(policy: BreakerPolicy, seen: list[bool]) -> bool:
    """The rule, in the plainest words: `seen` are all outcomes so far, the last one dead."""
    row = next((n for n, dead in enumerate(reversed(seen)) if not dead), len(seen))
    last = seen[-policy.window :]
    return row > policy.row_max or (len(last) >= policy.seen_min and sum(last) > policy.share_max * len(last))


@given(policies, outcomes)
def test_it_opens_exactly_where_the_plain_rule_says(policy: BreakerPolicy, ends: list[bool]) -> None:
    state, seen = BreakerState(policy), list[bool]()
    for dead in ends:
        if not dead:
            state.fine(1)
        elif state.admit(runs_of([True]), 0.0) is too_much(policy, [*seen, True]):
            raise AssertionError(f"after {seen}")
        elif state.phase is Phase.OPEN:
            return
        seen.append(dead)


@given(policies, st.lists(outcomes, max_size=8))
def test_of_a_batch_it_admits_what_it_would_admit_one_by_one(policy: BreakerPolicy, batches: list[list[bool]]) -> None:
    batched, single = BreakerState(policy), BreakerState(policy)
    for batch in batches:
        admitted = [single.admit(runs_of([True]), 0.0) if dead else single.fine(1) is None for dead in batch]
        assert batched.admit(runs_of(batch), 0.0) is all(admitted)
        if not all(admitted):
            assert batched.phase is single.phase is Phase.OPEN
            return


@given(
    policies,
    st.lists(st.tuples(st.sampled_from(["fine", "dead", "try", "wait"]), st.floats(-30.0, 90.0)), max_size=80),
)
def test_between_two_good_ends_no_more_letters_than_the_row_and_open_none(
    policy: BreakerPolicy, steps: list[tuple[str, float]]
) -> None:
    state, now_s, letters = BreakerState(policy), 1_000.0, 0
    for step, passed_s in steps:
        before = state.phase
        if step == "fine":
            state.fine(1)
            letters = 0
        elif step == "dead":
            admitted = state.admit(runs_of([True]), now_s)
            letters += admitted
            assert not admitted or before is Phase.CLOSED, (
                "a single dead event never goes through while it is not closed"
            )
        elif step == "try":
            assert not state.may_try(now_s) or before is not Phase.CLOSED
        else:
            now_s += passed_s
        assert letters <= policy.row_max
        assert 0.0 <= state.wait_s(now_s) <= policy.retry_after_s
        assert (state.phase is Phase.CLOSED) == (state.why == "")


@given(policies, st.lists(st.floats(0.0, 200.0), min_size=1, max_size=30))
def test_at_most_one_is_tried_at_a_time(policy: BreakerPolicy, passed_s: list[float]) -> None:
    state, now_s = BreakerState(policy), 0.0
    assert not state.admit(runs_of([True] * (policy.row_max + 1)), now_s)
    tried_s = now_s
    for seconds in passed_s:
        now_s += seconds
        if state.may_try(now_s):
            assert now_s - tried_s >= policy.retry_after_s
            tried_s = now_s
