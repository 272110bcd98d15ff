"""One handling of one event: the context that a handler function gets, and the call itself."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, Protocol, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.guard import contained, left_by
from ...inbox.effect_call import BlockingEffectCall, EffectCall
from ...inbox.effect_rules import Effect
from ...inbox.errors import EffectMisused, RecordError
from ...inbox.event import Event
from ...inbox.outcome import Reason
from ..app import App
from ..command import Command, HandlerFunction
from ..context import BlockingContext, CallNext, Context, HeaderMap, Tx
from ..injection import Wants, pick
from ..routing import class_of
from .publishing import Publication
from .session import LazySession
from .threads import Threads
from .transaction import BlockingTx

NO_SESSION_IN_THREADS: Final = (
    "an ORM session belongs to the event loop: write the handler as async def, or use ctx.tx.execute in this one"
)

NO_CALLS_IN_PROJECTIONS: Final = (
    "a projection calls nobody: its function may run several times on the same events, and what it writes is undone"
    " then. Declare a command for it"
)


class Parts(Protocol):
    """What a handler may ask for in one attempt."""

    @property
    def handler(self) -> str:
        """The projection or command."""
        ...

    @property
    def tx(self) -> Tx:
        """The transaction."""
        ...

    @property
    def publication(self) -> Publication:
        """What is published."""
        ...

    def effect(self, effect: str | Effect, operation_id: str | None, request: object) -> EffectCall:
        """A call that is about to be made. Raises EffectMisused where none may be."""
        ...


@final
class BatchParts:
    """Those of a projection: the batch's own transaction, and no calls."""

    def __init__(self, tx: Tx, publication: Publication) -> None:
        self.handler = publication.handler
        self.tx = tx
        self.publication = publication

    def effect(self, effect: str | Effect, operation_id: str | None, request: object) -> EffectCall:
        """Never."""
        raise EffectMisused(NO_CALLS_IN_PROJECTIONS)


@final
class HandlerContext:
    """`Context` for one attempt."""

    __slots__ = ("_parts", "_session", "attempt", "event", "events")

    def __init__(
        self, event: Event[Any], attempt: int, parts: Parts, events: Sequence[Event[Any]] | None = None
    ) -> None:
        self.event = event
        self.events = (event,) if events is None else events
        self.attempt = attempt
        self._parts = parts
        self._session: LazySession | None = None

    @property
    def handler(self) -> str:
        """The projection or command."""
        return self._parts.handler

    @property
    def tx(self) -> Tx:
        """The transaction."""
        return self._parts.tx

    @property
    def session(self) -> LazySession:
        """An ORM session on `tx`."""
        if self._session is None:
            self._session = LazySession(self.tx)
        return self._session

    @property
    def opened_session(self) -> LazySession | None:
        """The session, where the handler asked for one."""
        return self._session

    @property
    def operation_id(self) -> str:
        """The business operation."""
        return self.event.operation_id

    @property
    def correlation_id(self) -> str:
        """What ties everything together."""
        return self.event.correlation_id

    def effect(self, effect: str | Effect, *, operation_id: str | None = None, request: object = None) -> EffectCall:
        """A call to the outside."""
        return self._parts.effect(effect, operation_id, request)

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeaderMap | None = None,
        name: str = "",
    ) -> None:
        """Send by the outbox."""
        await self._parts.publication.publish(topic, value, key, headers, name)


@final
class BlockingHandlerContext:
    """`BlockingContext` for one attempt: the same contract from another thread."""

    def __init__(self, context: HandlerContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        self.tx = BlockingTx(context.tx, loop)
        self.event = context.event
        self.attempt = context.attempt
        self.operation_id = context.operation_id
        self.correlation_id = context.correlation_id

    @property
    def session(self) -> NoReturn:
        """Not in a thread."""
        raise RuntimeError(NO_SESSION_IN_THREADS)

    def effect(
        self, effect: str | Effect, *, operation_id: str | None = None, request: object = None
    ) -> BlockingEffectCall:
        """A call to the outside."""
        made = self._context.effect(effect, operation_id=operation_id, request=request)
        return BlockingEffectCall(made, self._loop)

    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeaderMap | None = None,
        name: str = "",
    ) -> None:
        """Send by the outbox."""
        sending = self._context.publish(topic, value, key=key, headers=headers, name=name)
        asyncio.run_coroutine_threadsafe(sending, self._loop).result()


@final
class Once:
    """What a middleware gets as `call_next`. A second handling in the same transaction would be half a repeat."""

    def __init__(self, following: CallNext) -> None:
        self._following = following
        self._called = False

    async def __call__(self) -> object:
        if self._called:
            raise RuntimeError("call_next is called once: for another attempt raise, or return Retry")
        self._called = True
        return await self._following()


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The trigger returned None."""


@final
class Mediator:
    """Makes a command out of an event and hands it to its one handler, with the resources that it wants."""

    def __init__(self, app: App, resources: tuple[object, ...], threads: Threads) -> None:
        self._handlers: Mapping[type, HandlerFunction] = app.handlers
        self._resources = resources
        self._overrides = app.overrides
        self._middlewares = app.middlewares
        self._threads = threads
        self._arguments: dict[Callable[..., Any], dict[str, object]] = {}
        self._async: dict[Callable[..., Any], bool] = {}

    async def carry_out(self, command: Command, context: HandlerContext, made: object | None = None) -> object:
        """Run the trigger (unless what it `made` is there), then the handler; what it returned, or NothingToDo.

        What they raise goes out as it is.
        """
        if made is None:
            made = command.trigger(context.event)
        if made is None:
            return NothingToDo()
        handler = self._handlers.get(class_of(made))
        if handler is None:
            raise RecordError(Reason.REJECTED, f"{command.name!r} made a {type(made).__name__}, which no handler takes")
        return await self.handle(handler.function, handler.wants, (made,), context)

    def first_attempt(self, command: Command, context: HandlerContext, made: object) -> Coroutine[Any, Any, object]:
        """`carry_out` of what the trigger made, contained; a handler that nothing stands around is called directly."""
        handler = self._handlers.get(class_of(made))
        if handler is None or self._middlewares or not self._is_async(handler.function):
            return contained(self.carry_out(command, context, made))
        return self._directly(handler.function, handler.wants, made, context)

    async def _directly(
        self, function: Callable[..., Any], wants: Wants, made: object, context: HandlerContext
    ) -> object:
        """As `contained`, `carry_out` and `handle` do, one in the other; most handlings can do without them."""
        try:
            returned = await function(made, **self._with_context(function, wants, 1, context))
            if (session := context.opened_session) is not None:
                await session.finish()
            return returned
        except BaseException as error:
            if (left := left_by(error)) is not None:
                raise left from error
            raise
        finally:
            if (session := context.opened_session) is not None:
                await session.close()

    async def handle(
        self, function: Callable[..., Any], wants: Wants, subjects: tuple[object, ...], context: HandlerContext
    ) -> object:
        """Call a handler function through the middleware; what its session holds is flushed behind both."""
        try:
            if self._middlewares:
                handler = partial(self.call, function, wants, subjects, context)
                returned = await self._through(self._middlewares, context, handler)
            else:
                returned = await self.call(function, wants, subjects, context)
            if (session := context.opened_session) is not None:
                await session.finish()
        finally:
            if (session := context.opened_session) is not None:
                await session.close()
        return returned

    async def _through(
        self, middlewares: Sequence[HandlerFunction], context: HandlerContext, handler: CallNext
    ) -> object:
        """Outermost first."""
        if not middlewares:
            return await handler()
        first, following = middlewares[0], Once(partial(self._through, middlewares[1:], context, handler))
        return await self.call(first.function, first.wants, (context, following), context)

    async def call(
        self, function: Callable[..., Any], wants: Wants, subjects: tuple[object, ...], context: HandlerContext | None
    ) -> Any:
        """Call a user's function: `async def` on the loop, `def` in a thread of its own."""
        if self._is_async(function):
            return await function(*subjects, **self._with_context(function, wants, len(subjects), context))
        loop = asyncio.get_running_loop()
        blocking = BlockingHandlerContext(context, loop) if context is not None else None
        arguments = self._with_context(function, wants, len(subjects), blocking)
        tx = BlockingTx(context.tx, loop) if context is not None else None
        given = [tx if isinstance(subject, AsyncConnection) else subject for subject in subjects]
        here = contextvars.copy_context()  # what a middleware bound for the log is bound in the thread too
        carried_out = partial(_in_thread, lambda: function(*given, **arguments))
        return await self._threads.run(_name_of(function), lambda: here.run(carried_out))

    def _is_async(self, function: Callable[..., Any]) -> bool:
        """Whether it is `async def`; looked at once for each function."""
        known = self._async.get(function)
        if known is None:
            known = self._async[function] = inspect.iscoroutinefunction(function)
        return known

    def _with_context(
        self, function: Callable[..., Any], wants: Wants, taken: int, context: object | None
    ) -> dict[str, object]:
        arguments = self._arguments.get(function)
        if arguments is None:
            arguments = self._arguments[function] = self._resolve(wants, taken)
        return {name: context if value is _CONTEXT else value for name, value in arguments.items()}

    def _resolve(self, wants: Wants, taken: int) -> dict[str, object]:
        """Find every argument behind the first `taken` ones."""
        found: dict[str, object] = {}
        for name, annotation in list(wants.parameters.items())[taken - 1 :]:
            found[name] = self._find(name, annotation)
        return found

    def _find(self, name: str, annotation: Any) -> object:
        if annotation in (Context, BlockingContext) or (annotation is None and name == "ctx"):
            return _CONTEXT
        if isinstance(annotation, type) and annotation in self._overrides:
            return self._overrides[annotation]
        resource = pick(self._resources, annotation)
        if resource is None:
            raise TypeError(f"no resource for the parameter {name!r}: let an @app.lifespan yield a {annotation!r}")
        return resource

    def missing(self, wants: Wants, taken: int) -> list[str]:
        """The parameters that nothing can fill, for the check at start."""
        problems: list[str] = []
        for name, annotation in list(wants.parameters.items())[taken - 1 :]:
            try:
                self._find(name, annotation)
            except TypeError as error:
                problems.append(str(error))
        return problems


def _name_of(function: Callable[..., Any]) -> str:
    """As a log shows it; a partial or an instance has no name of its own."""
    return getattr(function, "__qualname__", type(function).__name__)


def _in_thread(call: Callable[[], Any]) -> Any:
    """A future does not carry a StopIteration: whoever waits for it would wait for ever."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error


_CONTEXT = object()
"""Stands for the context in remembered arguments: it is another one for each attempt."""
