"""Where rows are at home: a partition whose owner works them, and sends what they have to send.

A home is written down with its row and stays what it was, while topics come and go. Whose it is now is decided by
`Homes`: no IO, owned by the event loop.

* A topic that was made anew with fewer partitions: the home's partition modulo their present count.
* A topic that the consumer does not read, any more or at all (what came back as a letter may have been anywhere): who
  holds the first partition of its first topic, the *keeper*.

So each row has an owner as long as every partition has. What if two members do not agree, while a release is rolled out
that reads other topics? Both may run a row: the claim decides, as it does between any two. Both may send one: with one
id, as after any kill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .holding import Holding, Holdings
from .tables import Tables


class Places(NamedTuple):
    """What a look for rows asks with: homes, and by how many partitions theirs are counted round (`counts`)."""

    homes: tuple[Partition, ...]
    counts: Mapping[str, int]


@final
class Homes:
    """Whose rows are those of a home. Until `learn` was called each partition has its own rows only."""

    def __init__(self, holdings: Holdings, topics: Iterable[str]) -> None:
        self._holdings = holdings
        self.topics = tuple(sorted(topics))
        self._counts: Mapping[str, int] = {}
        self._strays: frozenset[str] = frozenset()
        self._keeper = Partition(self.topics[0], 0)

    def learn(self, counts: Mapping[str, int], with_rows: Collection[str]) -> list[str]:
        """How many partitions the topics have, and which topics rows are at home in; gives back new strays."""
        read = [topic for topic in self.topics if counts.get(topic)]
        self._keeper = Partition(read[0] if read else self.topics[0], 0)
        before, self._strays = self._strays, frozenset(with_rows) - {*self.topics}
        self._counts = {**{topic: counts[topic] for topic in read}, **dict.fromkeys(self._strays, 1)}
        return sorted(self._strays - before)

    def places(self) -> Places:
        """The homes whose rows are this process's."""
        held = tuple(holding.partition for holding in self._holdings)
        if self._strays and self._keeper in held:
            held += tuple(Partition(topic, 0) for topic in sorted(self._strays))
        return Places(held, self._counts)

    def owner(self, home: Partition) -> Partition:
        """The partition whose owner works the rows of this home."""
        if home.topic in self._strays:
            return self._keeper
        count = self._counts.get(home.topic)
        return home if count is None or home.number < count else Partition(home.topic, home.number % count)

    def holding(self, home: Partition) -> Holding | None:
        """Under what this process works the rows of this home; None where they are somebody else's."""
        return self._holdings.current(self.owner(home))


async def topics_with_rows(conn: AsyncConnection, t: Tables, consumer: str, handlers: Collection[int]) -> set[str]:
    """The topics in which something is at home that waits to be worked, or to be sent. No lock.

    One step along an index for each handler and topic, however many rows there are.
    """
    rows = await conn.execute(t.sql(_TOPICS), {"consumer": consumer, "handlers": sorted(set(handlers))})
    return {row.topic for row in rows}


_TOPICS = """
    WITH RECURSIVE
         sent AS (
           SELECT (SELECT min(o.home_topic) FROM {outbox} o
                    WHERE o.published_at IS NULL AND o.consumer = :consumer) AS topic
           UNION ALL
           SELECT (SELECT min(o.home_topic) FROM {outbox} o
                    WHERE o.published_at IS NULL AND o.consumer = :consumer AND o.home_topic > sent.topic)
             FROM sent WHERE sent.topic IS NOT NULL),
         alone AS (
           SELECT h.handler, (SELECT min(f.home_topic) FROM {failure} f
                               WHERE f.handler = h.handler AND f.state = 'queued' AND f.alone) AS topic
             FROM unnest(CAST(:handlers AS bigint[])) h (handler)
           UNION ALL
           SELECT a.handler, (SELECT min(f.home_topic) FROM {failure} f
                               WHERE f.handler = a.handler AND f.state = 'queued' AND f.alone
                                 AND f.home_topic > a.topic)
             FROM alone a WHERE a.topic IS NOT NULL),
         lanes AS (
           SELECT h.handler, (SELECT min(p.head_home_topic) FROM {parked_key} p
                               WHERE p.handler = h.handler AND p.head_due IS NOT NULL) AS topic
             FROM unnest(CAST(:handlers AS bigint[])) h (handler)
           UNION ALL
           SELECT l.handler, (SELECT min(p.head_home_topic) FROM {parked_key} p
                               WHERE p.handler = l.handler AND p.head_due IS NOT NULL
                                 AND p.head_home_topic > l.topic)
             FROM lanes l WHERE l.topic IS NOT NULL)
    SELECT topic FROM sent WHERE topic IS NOT NULL
    UNION SELECT topic FROM alone WHERE topic IS NOT NULL
    UNION SELECT topic FROM lanes WHERE topic IS NOT NULL
"""
