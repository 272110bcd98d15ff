"""The engine's numbers, each with its reason. No IO; time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...inbox.errors import ConfigurationError, Problem

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """How much is kept in memory, and how often Kafka hears where we are."""

    window_records_max: int = 25_000
    """Five batches of 5,000: no batch waits for a fetch. Twice as many were slower: events grow cold in memory."""

    window_records_low: int = 12_500
    """Half: a pause throws the client's prefetched records away, so that it must not flap."""

    window_bytes_max: int = 64 * MIB
    """25,000 events of 2.6 KB: whichever limit is met first counts; decoded events weigh a few times their bytes."""

    window_bytes_low: int = 32 * MIB
    """Half, as for the records."""

    commit_interval_s: float = 1.0
    """A crash repeats from the checkpoints, not from Kafka's commits: those feed lag figures and the restore alarm."""

    def __post_init__(self) -> None:
        problems = [
            *_problems("window_records", self.window_records_low, self.window_records_max),
            *_problems("window_bytes", self.window_bytes_low, self.window_bytes_max),
        ]
        if self.commit_interval_s < 0:
            what = f"{self.commit_interval_s} is negative"
            problems.append(Problem("commit_interval_s", what, "give seconds, 0 to commit at every change"))
        if problems:
            raise ConfigurationError(problems)


def _problems(name: str, low: int, most: int) -> list[Problem]:
    if 0 <= low < most:
        return []
    return [Problem(f"{name}_low", f"{low} is not below {name}_max = {most}", "0 <= low < max, best about half")]
