"""Binds a projection to what runs its function: mediator, publications, and the batch's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox.event import Event
from ...projections.batch import BoundProjection, Ran
from ...projections.projection import Projection
from ..injection import read_wants
from .handling import BatchParts, HandlerContext, Mediator
from .publishing import Encoder, Publication
from .transaction import OpenTx
from .watching import Running


def bind(
    projection: Projection, handler_id: int, mediator: Mediator, encoder: Encoder, running: Running
) -> BoundProjection:
    """The projection, ready to be called on a batch."""
    wants, name = read_wants(projection.function), projection.name

    async def project(events: Sequence[Event[Any]], tx: AsyncConnection) -> Ran:
        publication, open_tx = Publication(encoder, name, events[-1]), OpenTx(tx)
        context = HandlerContext(events[-1], 1, BatchParts(open_tx, publication), events)
        try:
            with running.handling(name, events[0]):
                returned = await mediator.handle(projection.function, wants, (events, tx), context)
        finally:  # a thread that runs on past its deadline must not write into what the others commit
            await open_tx.seal()
        return Ran(publication.outgoing, returned)

    return BoundProjection(projection, handler_id, project)
