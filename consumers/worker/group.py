"""One transaction's worth of completions, what came of each, and who is told. No IO."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...inbox import checkpoint
from ...inbox.event import Partition
from ...inbox.holding import Holding
from ...inbox.outbox import NewOutgoing
from ...inbox.outcome import Dead
from ..engine.signals import Finished
from .completion import COMMAND_VERSION, Completion


class Progress(Protocol):
    """What the completer asks of the engine and tells it."""

    def prospect(self, track: str, partition: Partition, epoch: int, offsets: Sequence[int]) -> int | None:
        """The commit point of the track if these offsets were finished; None for a stale epoch."""
        ...

    def running(self) -> int:
        """Handlers that are under way: what comes of them will be written too."""
        ...

    def finished(self, signals: Sequence[Finished]) -> None:
        """These are durable."""
        ...

    def wrote_outbox(self, new: Sequence[NewOutgoing]) -> None:
        """There may be something to relay; or these letters alone, which stand there as they are here."""
        ...

    def queued(self) -> None:
        """Rows were put that the slow way may take up."""
        ...

    def lost(self, partition: Partition, epoch: int) -> None:
        """The fence did not come back."""
        ...


class Share(NamedTuple):
    """Where in the engine a completion belongs."""

    track: str
    handler_id: int
    partition: Partition
    epoch: int


@dataclass(slots=True)
class Group:
    """One transaction's worth of completions."""

    members: list[Completion]
    holdings: dict[Partition, Holding] = field(default_factory=dict)
    durable: list[Completion] = field(default_factory=list)
    again: dict[Completion, Dead] = field(default_factory=dict)
    """Turned out to be conflicts, or repeats of what stands in the failure table: they go by the way of the failed."""
    handled: list[Completion] = field(default_factory=list)
    put: list[Completion] = field(default_factory=list)
    """Those that got a failure row now."""
    held: list[Completion] = field(default_factory=list)
    """Those beyond a limit: not written, and not done."""
    over: list[Completion] = field(default_factory=list)
    """The same, where their handler declares that they are dead then."""
    done: defaultdict[Share, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The offsets of what is durable, for each track and partition."""
    moves: list[checkpoint.Move] = field(default_factory=list)
    duplicates: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrote_outbox: bool = False
    new_letters: Sequence[NewOutgoing] = ()
    """Of what was written there, as far as it is known to be as it was given."""

    def ours(self) -> list[Completion]:
        """The members whose partitions are held, under the epochs that they came in."""
        held = {(partition, holding.epoch) for partition, holding in self.holdings.items()}
        return [member for member in self.members if member.item[:2] in held]

    def incarnation(self, member: Completion) -> int:
        """That of the member's topic."""
        return self.holdings[member.item.partition].incarnation

    def settle(self) -> None:
        """All that becomes durable is known."""
        for member in self.durable:
            partition, epoch, offset, _ = member.item
            self.done[Share(member.track, member.handler_id, partition, epoch)].append(offset)

    def plan_moves(self, progress: Progress) -> None:
        """Where the checkpoints of the lane tracks go: below the lowest incomplete event."""
        for (track, handler_id, partition, epoch), offsets in self.done.items():
            old = self.holdings[partition].checkpoints[(handler_id, COMMAND_VERSION)]
            new = progress.prospect(track, partition, epoch, offsets)
            if new is not None and new > old:
                self.moves.append(
                    checkpoint.Move(handler_id, COMMAND_VERSION, partition.topic, partition.number, old, new)
                )

    def finished(self) -> list[Finished]:
        """What the engine is told of it."""
        return [
            Finished(track, partition, epoch, tuple(done)) for (track, _, partition, epoch), done in self.done.items()
        ]

    def moved(self) -> None:
        """Remember the checkpoints: their commit was answered."""
        for move in self.moves:
            holding = self.holdings[Partition(move.topic, move.partition)]
            holding.checkpoints[(move.handler_id, move.version)] = move.new
