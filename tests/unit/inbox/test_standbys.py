"""What would forget a call that was made, said so that somebody can do something about it."""

from __future__ import annotations

import pytest

from tidegate.inbox.standbys import Durability, dangers_of


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Durability("on"), []),
        (Durability("on", [("a", "sync"), ("b", "quorum"), ("c", "potential")]), []),
        (Durability("remote_apply", [("a", "async")]), ["standby 'a' follows asynchronously"]),
        (
            Durability("on", [("a", "async"), ("b", "sync"), ("c", "async")]),
            ["standbys 'a', 'c' follow asynchronously"],
        ),
        (Durability("on", [("a", None)]), ["GRANT pg_read_all_stats"]),
        (Durability("off"), ["synchronous_commit is off"]),
        (Durability("local"), []),
        (Durability("local", [("a", "sync")]), ["synchronous_commit is local"]),
        (Durability("off", [("a", "async")]), ["synchronous_commit is off", "follows asynchronously"]),
    ],
)
def test_what_may_be_forgotten_is_said(found: Durability, said: list[str]) -> None:
    dangers = dangers_of(found)
    assert len(dangers) == len(said)
    assert all(words in danger for words, danger in zip(said, dangers, strict=True))
