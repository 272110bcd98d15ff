"""A reach answers the same for one place and for rows in SQL, whatever grants it is made of."""

from __future__ import annotations

import itertools
import random

import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tidegate.dlq.reach import Columns, Grant, Place, Reach
from tidegate.dlq.verbs import Role

NAMES = ("a", "b", "", None)


async def test_rows_are_those_whose_place_is_covered(graveyard: Graveyard) -> None:
    """Three hundred reaches of up to three grants, each asked of every combination of tenant, brand and handler."""
    chance = random.Random(7)
    places = [Place(*each) for each in itertools.product(("c", "d"), ("h", "i", ""), NAMES, NAMES)]
    values = sa.values(
        sa.column("n", sa.Integer), *(sa.column(name, sa.Text) for name in ("consumer", "handler", "tenant", "brand")),
        name="p",
    ).data([(n, p.consumer, p.handler, p.tenant, p.brand) for n, p in enumerate(places)])  # fmt: skip
    columns = Columns(values.c.consumer, values.c.handler, values.c.tenant, values.c.brand)
    async with graveyard.db.transaction() as conn:
        for _ in range(300):
            reach = Reach(tuple(_grant(chance) for _ in range(chance.randrange(4))))
            rows = await conn.scalars(sa.select(values.c.n).where(reach.rows(columns)).order_by(values.c.n))
            assert rows.all() == [n for n, place in enumerate(places) if reach.covers(place)], reach


def _grant(chance: random.Random) -> Grant:
    def some(*names: str) -> frozenset[str] | None:
        return chance.choice([None, frozenset(chance.sample(names, chance.randint(1, len(names))))])

    return Grant(
        role=Role.VIEWER, tenants=some("a", "b", ""), brands=some("a", "b", ""), consumers=some("c", "d"),
        handlers=some("h", "i", ""),
    )  # fmt: skip
