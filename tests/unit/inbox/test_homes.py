"""Whose rows are those of a home."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.inbox.event import Partition
from tidegate.inbox.holding import Holding, Holdings
from tidegate.inbox.homes import Homes

READ = ("orders", "bills")


def member(*held: Partition) -> Homes:
    holdings = Holdings()
    for partition in held:
        holdings.put(Holding(partition, 1, 1, 1))
    return Homes(holdings, READ)


def test_until_something_is_known_each_partition_has_its_own_rows() -> None:
    homes = member(Partition("orders", 1))
    assert homes.places() == ((Partition("orders", 1),), {})
    assert homes.owner(Partition("orders", 7)) == Partition("orders", 7)
    assert homes.holding(Partition("elsewhere", 0)) is None


def test_a_new_stray_is_told_once() -> None:
    homes = member()
    assert homes.learn({"orders": 2, "bills": 1}, {"orders", "old", "older"}) == ["old", "older"]
    assert homes.learn({"orders": 2, "bills": 1}, {"old"}) == []


def test_where_the_first_topic_is_not_there_the_next_ones_owner_keeps_the_strays() -> None:
    homes = member(Partition("orders", 0))
    homes.learn({"orders": 3}, {"old"})
    assert homes.owner(Partition("old", 4)) == Partition("orders", 0)
    assert homes.places().homes == (Partition("orders", 0), Partition("old", 0))


@given(
    counts=st.fixed_dictionaries({topic: st.integers(1, 5) for topic in READ}),
    home=st.builds(Partition, st.sampled_from([*READ, "old"]), st.integers(0, 9)),
    split=st.integers(0, 2**10 - 1),
)
def test_each_row_is_one_members(counts: dict[str, int], home: Partition, split: int) -> None:
    """Whatever is where, one of two members has it, as the look's SQL reads `places` and as `holding` says."""
    every = [Partition(topic, number) for topic in READ for number in range(counts[topic])]
    shares = [[p for n, p in enumerate(every) if split >> n & 1 == side] for side in (0, 1)]
    members = [member(*share) for share in shares]
    for one in members:
        one.learn(counts, {"old"})
    looking = [one for one in members if _is_found(one, home)]
    assert len(looking) == 1
    assert [one for one in members if one.holding(home) is not None] == looking


def _is_found(one: Homes, home: Partition) -> bool:
    homes, counts = one.places()
    return Partition(home.topic, home.number % counts.get(home.topic, 2**31)) in homes
