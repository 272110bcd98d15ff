"""Topics by name, id and incarnation: a topic that was made anew under its old name is told from the one before.

Keys and position-made ids carry the incarnation; the topic id only tells when to raise it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import Tables


class TopicChange(enum.Enum):
    """What the broker's answer says beside what is known."""

    NEW = "new"
    """Never seen before."""
    SAME = "same"
    ADOPTED = "adopted"
    """Its id was unknown until now."""
    KEPT = "kept"
    """Its id is known but was not answered now: keep it and warn."""
    RECREATED = "recreated"
    """Another id: the topic was deleted and made anew. What happens is declared policy."""


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic as the inbox knows it, and what changed."""

    name: str
    topic_id: str | None
    incarnation: int
    change: TopicChange


async def adopt_topic(conn: AsyncConnection, t: Tables, name: str, topic_id: str | None) -> TopicIdentity:
    """Compare what the broker answers (None where it does not tell) with what is known, and learn an id once.

    Never raises the incarnation: `raise_incarnation` does, after the policy was asked.
    """
    made = insert(t.topic).values(name=name, topic_id=topic_id).on_conflict_do_nothing().returning(t.topic.c.name)
    if await conn.scalar(made) is not None:
        return TopicIdentity(name, topic_id, 0, TopicChange.NEW)
    adopted = (
        sa.update(t.topic)
        .where(t.topic.c.name == name, t.topic.c.topic_id.is_(None), sa.literal(topic_id, sa.Text()).is_not(None))
        .values(topic_id=topic_id)
        .returning(t.topic.c.incarnation)
    )
    incarnation: int | None = await conn.scalar(adopted)
    if incarnation is not None:
        return TopicIdentity(name, topic_id, incarnation, TopicChange.ADOPTED)
    row = (await conn.execute(sa.select(t.topic).where(t.topic.c.name == name))).one()
    return TopicIdentity(name, row.topic_id, row.incarnation, _change(row.topic_id, topic_id))


def _change(known: str | None, answered: str | None) -> TopicChange:
    if known == answered:
        return TopicChange.SAME
    return TopicChange.KEPT if answered is None else TopicChange.RECREATED


async def known_topics(
    conn: AsyncConnection, t: Tables, answered: Mapping[str, str | None]
) -> dict[str, TopicIdentity]:
    """The same for several topics (name -> the id that the broker answers), and nothing is learned."""
    rows = await conn.execute(sa.select(t.topic).where(t.topic.c.name.in_(sorted(answered))))
    known = {row.name: row for row in rows}
    return {
        name: TopicIdentity(name, topic_id, 0, TopicChange.NEW)
        if (row := known.get(name)) is None
        else TopicIdentity(name, row.topic_id, row.incarnation, _known_change(row.topic_id, topic_id))
        for name, topic_id in answered.items()
    }


def _known_change(known: str | None, answered: str | None) -> TopicChange:
    return TopicChange.ADOPTED if known is None and answered is not None else _change(known, answered)


async def raise_incarnation(conn: AsyncConnection, t: Tables, name: str, new_topic_id: str | None) -> int:
    """The topic is another one under its old name: its incarnation now.

    With an id, the first of several owners who notice raises it, the others find it raised. Without one (`tidegate
    topic reset`, where the broker gives no ids) every call raises it.
    """
    raised = (
        sa.update(t.topic)
        .where(
            t.topic.c.name == name,
            sa.or_(
                sa.literal(new_topic_id, sa.Text()).is_(None),
                t.topic.c.topic_id.is_distinct_from(sa.literal(new_topic_id, sa.Text())),
            ),
        )
        .values(incarnation=t.topic.c.incarnation + 1, topic_id=new_topic_id)
        .returning(t.topic.c.incarnation)
    )
    incarnation: int | None = await conn.scalar(raised)
    if incarnation is not None:
        return incarnation
    known = await conn.execute(sa.select(t.topic.c.incarnation).where(t.topic.c.name == name))
    already: int = known.scalar_one()
    return already
