"""What a command handler may ask of the framework: its event, a transaction, and a way to publish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from ..inbox.effect_rules import Effect
from ..inbox.event import Event

HeaderMap = Mapping[str, bytes | str | None]


class Tx(Protocol):
    """The handler's transaction. It opens at its first use; `await ctx.tx` gives the SQLAlchemy connection itself.

    What is written through it commits together with the event's claim and the records published, or not at all.
    """

    def __await__(self) -> Generator[Any, None, AsyncConnection]: ...

    async def execute(self, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Run one statement (SQLAlchemy Core or `text`), with bound parameters."""
        ...

    async def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first column of the first row, None without a row."""
        ...


class EffectHandle(Protocol):
    """One call to the outside, inside its `with`. Times are seconds."""

    @property
    def key(self) -> str:
        """The idempotency key: send it with the call. The same in every attempt."""
        ...

    @property
    def is_done(self) -> bool:
        """It was done before: do not call, use `result`."""
        ...

    @property
    def result(self) -> Any:
        """What `complete` was given, now or in an earlier attempt. Raises ValueError where that was not kept."""
        ...

    @property
    def external_id(self) -> str | None:
        """By which the service knows it, None where nobody said."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first call of this operation."""
        ...

    @property
    def timeout_s(self) -> float:
        """How long the call may take from now on: give it to your client."""
        ...

    def complete(self, result: Any = None, external_id: str | None = None) -> None:
        """The service did it. `result` (JSON, bounded) is given back to every later attempt."""
        ...

    def refused(self, why: str) -> None:
        """The service surely did not do it, and will not: an error inside a 200, say. Another attempt may call."""
        ...


class BlockingTx(Protocol):
    """The same for a `def` handler: each call blocks the handler's thread, never the event loop."""

    def execute(self, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Run one statement (SQLAlchemy Core or `text`), with bound parameters."""
        ...

    def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first column of the first row, None without a row."""
        ...


@runtime_checkable
class Context(Protocol):
    """Given to `async def` handlers that have a parameter annotated with it."""

    @property
    def event(self) -> Event[Any]:
        """The event that led to this command."""
        ...

    @property
    def operation_id(self) -> str:
        """The business operation: the same in every repeat."""
        ...

    @property
    def correlation_id(self) -> str:
        """What ties together everything that one request set off."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        ...

    @property
    def tx(self) -> Tx:
        """The transaction that commits together with the claim; opened at its first use."""
        ...

    @property
    def session(self) -> Awaitable[AsyncSession]:
        """An ORM session on `tx`: `session = await ctx.session`. Opened at its first use, flushed behind the handler.

        The framework commits it, together with the claim: a commit of yours is refused.
        """
        ...

    def effect(
        self, effect: str | Effect, *, operation_id: str | None = None, request: object = None
    ) -> AbstractAsyncContextManager[EffectHandle]:
        """A call to the outside that is made once for its operation: `async with ctx.effect("charge") as effect:`.

        `operation_id` names the business operation (within the tenant); without it, it is this event's, and one
        handling makes one such call. `request` is what will be sent: another one under the same id is a contradiction.
        Entering raises EffectPending while another attempt's call may be under way, and EffectUnknown where nobody can
        know: let both go.
        """
        ...

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeaderMap | None = None,
        name: str = "",
    ) -> None:
        """Send a record by the outbox: it goes out if and only if this handling counts, under an id that stays.

        `name` tells apart several records to one (topic, key) whose order may differ between attempts.
        Raises RecordError or ValueError where the value does not fit its schema.
        """
        ...


@runtime_checkable
class BlockingContext(Protocol):
    """Given to `def` handlers: the same contract, but the calls block (the handler has a thread of its own)."""

    @property
    def event(self) -> Event[Any]:
        """The event that led to this command."""
        ...

    @property
    def operation_id(self) -> str:
        """The business operation: the same in every repeat."""
        ...

    @property
    def correlation_id(self) -> str:
        """What ties together everything that one request set off."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        ...

    @property
    def tx(self) -> BlockingTx:
        """The transaction that commits together with the claim; opened at its first use."""
        ...

    def effect(
        self, effect: str | Effect, *, operation_id: str | None = None, request: object = None
    ) -> AbstractContextManager[EffectHandle]:
        """A call to the outside, as `Context.effect`, with a plain `with`."""
        ...

    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeaderMap | None = None,
        name: str = "",
    ) -> None:
        """Send a record by the outbox, as `Context.publish` does."""
        ...


class Handling(Context, Protocol):
    """What a middleware gets: the context, and what it is that is handled."""

    @property
    def handler(self) -> str:
        """The name of the projection or command."""
        ...

    @property
    def events(self) -> Sequence[Event[Any]]:
        """All that are handled together: a projection's batch, for a command just its event."""
        ...


CallNext = Callable[[], Awaitable[object]]
"""Goes on to the next middleware and at last to the handler; gives back what that returned. Once for each handling."""

Middleware = Callable[..., Awaitable[object]]
"""`async def fn(ctx: Handling, call_next: CallNext)`, and resources behind these: what it returns is the outcome."""
