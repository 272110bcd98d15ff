"""What a user declares: an app, its consumers, their projections and commands, the handlers and resources. No IO."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ..dlq.policy import (
    KEY_PARKED_MAX,
    PARKED_MAX,
    AfterDead,
    AtLimit,
    BreakerPolicy,
    FailurePolicy,
    OnConflict,
    OnFailure,
    Rule,
)
from ..dlq.retry import RetryPolicy
from ..dlq.rule_checks import policy_problems, rule_problems, rule_warnings
from ..inbox.effect_rules import MARGIN_S, RESULT_BYTES_MAX, DoneNeed, Effect, EffectRule
from ..inbox.effect_rules import problems_of as effect_problems
from ..inbox.errors import Problem
from ..inbox.handlers import Kind
from ..inbox.scope import EventIdRule, FromPosition, Scope
from ..inbox.versions import RUNS_FROM
from ..projections.projection import (
    BATCH_MAX,
    BATCH_WAIT_MS,
    PROJECTION_DEADLINE_S,
    Projection,
)
from .codecs.codec import CodecSpec
from .command import COMMAND_DEADLINE_S, Command, HandlerFunction
from .context import Middleware
from .declarations import Types, name_problems, read_made, type_set, unreadable
from .injection import Wants, payload_types, read_wants

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)

Unmatched = Literal["ignore", "dead"]
StartPolicy = Literal["earliest", "latest"]
GapPolicy = Literal["stop", "earliest"]
RecreatedPolicy = Literal["stop", "earliest"]
Lifespan = Callable[[], AsyncIterator[object]]


class Consumer:
    """A consumer group, the topics it reads, and the handlers of their events. Made by `App.consumer`."""

    def __init__(
        self,
        name: str,
        *,
        topics: Sequence[str],
        codec: CodecSpec,
        event_id: EventIdRule,
        scope: Scope,
        unmatched: Unmatched,
        require_key: bool,
        start: StartPolicy,
        on_gap: GapPolicy,
        on_recreated: RecreatedPolicy,
        defaults: Sequence[Rule] = (),
        effects: Mapping[str, Effect] | None = None,
        mask: Mapping[str, bool] | None = None,
    ) -> None:
        self.effects: Mapping[str, Effect] = effects if effects is not None else {}
        self.name = name
        self.topics = tuple(topics)
        self.codec = codec
        self.event_id = event_id
        self.scope = scope
        self.unmatched = unmatched
        self.require_key = require_key
        self.start = start
        self.on_gap = on_gap
        self.on_recreated = on_recreated
        self.defaults = tuple(defaults)
        self.mask: Mapping[str, bool] = dict(mask or {})
        self.projections: dict[str, Projection] = {}
        self.commands: dict[str, Command] = {}
        self._problems: list[Problem] = []

    def projection(
        self,
        name: str,
        *,
        version: int = 1,
        on: Types = None,
        freshness_s: float | None = None,
        batch_max: int = BATCH_MAX,
        batch_wait_ms: int = BATCH_WAIT_MS,
        deadline_s: float = PROJECTION_DEADLINE_S,
        only_if_newer: bool = False,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] = (),
        on_failure: OnFailure = "continue",
        after_dead: AfterDead = "release",
        key_parked_max: int = KEY_PARKED_MAX,
        parked_max: int = PARKED_MAX,
        at_limit: AtLimit = "pause",
        on_conflict: OnConflict = "dead",
        breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 - frozen, so sharing the default is safe
        renamed_from: str | None = None,
    ) -> Callable[[F], F]:
        """Declare a projection: `fn(events: Sequence[Event[T]], tx: AsyncConnection)` writes a whole batch.

        Which types it takes is read from the annotation (`Event[A | B]`), or given by `on`; without either it is all.
        `only_if_newer` says that its writes are guarded (`write_newer`): a backfill may then apply old events again.
        """

        def declare(function: F) -> F:
            wants = read_wants(function)
            takes = type_set(on) or frozenset[type | str](payload_types(wants.subject))
            policy = FailurePolicy(
                on_failure, retry or RetryPolicy(), (*rules, *self.defaults), after_dead, key_parked_max, parked_max,
                at_limit, on_conflict, breaker, defaults=len(self.defaults),
            )  # fmt: skip
            self._add(self.projections, name, Projection(
                name, version, function, takes, freshness_s, batch_max, batch_wait_ms, deadline_s, policy,
                renamed_from, only_if_newer))  # fmt: skip
            self._check(name, "version", 1 <= version < RUNS_FROM, "a version from 1 to a billion")
            self._check(name, "batch_max", batch_max >= 1, "1 or more")
            self._check(name, "batch_wait_ms", batch_wait_ms >= 0, "0 or more")
            self._check(name, "deadline_s", deadline_s > 0, "more than 0")
            self._check_readable(name, wants, on)
            return function

        return declare

    def command(
        self,
        name: str,
        *,
        on: Types = None,
        concurrency: int | None = None,
        effects: Sequence[Effect | str] | None = None,
        deadline_s: float = COMMAND_DEADLINE_S,
        rate_per_s: float | None = None,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] = (),
        on_failure: OnFailure = "block",
        after_dead: AfterDead = "release",
        key_parked_max: int = KEY_PARKED_MAX,
        parked_max: int = PARKED_MAX,
        at_limit: AtLimit = "pause",
        on_conflict: OnConflict = "dead",
        breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 - frozen, so sharing the default is safe
        renamed_from: str | None = None,
    ) -> Callable[[F], F]:
        """Declare a command: `fn(event: Event[T]) -> SomeCommand | None` makes it, the app's handler carries it out.

        None means that there is nothing to do: the event is claimed as skipped. `effects` are the calls to the outside
        that it makes (else any of the app's); one that goes by `review()` makes the default of `concurrency` 1.
        """
        calls = None if effects is None else tuple(e if isinstance(e, str) else e.name for e in effects)

        def declare(function: F) -> F:
            wants = read_wants(function)
            takes = type_set(on) or frozenset[type | str](payload_types(wants.subject))
            policy = FailurePolicy(
                on_failure, retry or RetryPolicy(), (*rules, *self.defaults), after_dead, key_parked_max, parked_max,
                at_limit, on_conflict, breaker, defaults=len(self.defaults),
            )  # fmt: skip
            self._add(self.commands, name, Command(
                name, function, takes, concurrency, deadline_s, policy, rate_per_s, renamed_from, calls,
                self.effects))  # fmt: skip
            self._check(name, "its trigger", not inspect.iscoroutinefunction(function),
                        "a def: it only makes the command, without any IO; its handler may be async")  # fmt: skip
            self._check(name, "on", bool(takes), "a payload type: on=OrderPlaced, or an annotation Event[OrderPlaced]")
            self._check(name, "concurrency", concurrency is None or concurrency >= 1, "1 or more")
            self._check(name, "deadline_s", deadline_s > 0, "more than 0")
            self._check(name, "rate_per_s", rate_per_s is None or rate_per_s > 0, "more than 0, or leave it out")
            self._check_readable(name, wants, on)
            return function

        return declare

    @property
    def handler_names(self) -> tuple[str, ...]:
        """All handlers, projections and commands."""
        return (*self.projections, *self.commands)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each handler is."""
        return {name: "projection" if name in self.projections else "command" for name in self.handler_names}

    @property
    def renamed(self) -> dict[str, str]:
        """The names that handlers had before: new -> old."""
        handlers = (*self.projections.values(), *self.commands.values())
        return {handler.name: handler.renamed_from for handler in handlers if handler.renamed_from is not None}

    def payload_types(self) -> frozenset[type]:
        """Every payload class that a handler takes."""
        handlers = (*self.projections.values(), *self.commands.values())
        return frozenset(taken for handler in handlers for taken in handler.takes if isinstance(taken, type))

    def problems(self) -> list[Problem]:
        """What is wrong with the declarations."""
        found = list(self._problems)
        found += name_problems(f"consumer {self.name!r}", self.name)
        if not self.topics:
            found.append(
                Problem(f"consumer {self.name!r}", "it reads no topic", 'name at least one: topics=["shop.orders"]')
            )
        if not self.handler_names:
            found.append(Problem(f"consumer {self.name!r}", "it has no handler", "declare a projection or a command"))
        for command in self.commands.values():
            found += command.problems(self.name)
        for name, policy in self.policies().items():
            found += policy_problems(f"handler {name!r} of {self.name!r}", policy)
        return found + self._renaming_problems()

    def warnings(self) -> list[str]:
        """What is allowed, but should be known."""
        warnings = rule_warnings("the app's rules", self.defaults)
        for name, policy in self.policies().items():
            warnings += rule_warnings(f"handler {name!r} of {self.name!r}", policy.own_rules)
        if isinstance(self.event_id, FromPosition):
            warnings.append(
                f"consumer {self.name!r}: events are known by their position, so a producer's duplicates are not caught"
            )
        return warnings + [warning for command in self.commands.values() for warning in command.warnings()]

    def policies(self) -> dict[str, FailurePolicy]:
        """Each handler's failure policy."""
        return {name: handler.policy for name, handler in (*self.projections.items(), *self.commands.items())}

    def _renaming_problems(self) -> list[Problem]:
        """A name that is still in use, or that two handlers claim, says nothing about whose rows these are."""
        olds = list(self.renamed.values())
        taken = {new: old for new, old in self.renamed.items() if old in self.handler_names or olds.count(old) > 1}
        return [
            Problem(f"handler {new!r} of {self.name!r}", f"renamed_from={old!r} is the name of another handler too",
                    "name the one handler that this one was before, and that the app no longer has")
            for new, old in taken.items()
        ]  # fmt: skip

    def _add(self, handlers: dict[str, Any], name: str, handler: Any) -> None:
        key = f"handler {name!r} of {self.name!r}"
        self._problems += name_problems(key, name)
        if name in self.handler_names:
            self._problems.append(Problem(key, "the name is declared twice", "give each handler a name of its own"))
        handlers[name] = handler

    def _check(self, name: str, option: str, fine: bool, fix: str) -> None:
        if not fine:
            self._problems.append(
                Problem(f"handler {name!r} of {self.name!r}", f"{option} is not usable", f"give {fix}")
            )

    def _check_readable(self, name: str, wants: Wants, on: Types) -> None:
        if wants.unresolved is not None and on is None:
            self._problems.append(unreadable(f"handler {name!r} of {self.name!r}", wants.unresolved))


class App:
    """A service's event handling, declared. The object that `tidegate run --app package.module:app` names.

    `rules` say what exceptions mean to all its handlers; a handler's own are asked first.
    """

    def __init__(
        self, name: str, *, owner: str, settings: Mapping[str, Any] | None = None, rules: Sequence[Rule] = ()
    ) -> None:
        self.name = name
        self.owner = owner
        self.settings: Mapping[str, Any] = dict(settings or {})
        self.rules = tuple(rules)
        self.consumers: dict[str, Consumer] = {}
        self.handlers: dict[type, HandlerFunction] = {}
        self.effects: dict[str, Effect] = {}
        self._middlewares: list[HandlerFunction] = []
        self._lifespans: list[Lifespan] = []
        self._overrides: dict[type, object] = {}
        self._problems: list[Problem] = name_problems(f"app {name!r}", name)

    def consumer(
        self,
        name: str,
        *,
        topics: Sequence[str],
        codec: CodecSpec,
        event_id: EventIdRule,
        scope: Scope = Scope(),  # noqa: B008 - frozen, so sharing the default is safe
        unmatched: Unmatched = "ignore",
        require_key: bool = False,
        start: StartPolicy = "earliest",
        on_gap: GapPolicy = "stop",
        on_recreated: RecreatedPolicy = "stop",
        mask: Mapping[str, bool] | None = None,
    ) -> Consumer:
        """Declare a consumer. `name` is its Kafka group; `event_id` has no default, because a wrong guess loses events.

        `unmatched`: what becomes of an event that no handler takes. `require_key`: a record without a key is dead
        (a tombstone always needs one). `start`: where a consumer that never ran begins.
        `on_gap`: when retention removed unread records. `on_recreated`: when a topic was deleted and made anew.
        `mask`: which fields operators may see in dead letters, `{"order_id": False}`; all others are masked.
        """
        consumer = Consumer(
            name, topics=topics, codec=codec, event_id=event_id, scope=scope, unmatched=unmatched,
            require_key=require_key, start=start, on_gap=on_gap, on_recreated=on_recreated, defaults=self.rules,
            effects=self.effects, mask=mask,
        )  # fmt: skip
        if name in self.consumers:
            self._problems.append(
                Problem(f"consumer {name!r}", "it is declared twice", "give each consumer its own name")
            )
        self.consumers[name] = consumer
        return consumer

    def handler(self, command_type: type) -> Callable[[F], F]:
        """Declare the one function that carries out a class of commands: `fn(command, ctx: Context, client: C)`.

        What it raises ends its event, never the process: `sys.exit` and KeyboardInterrupt too, which are for programs.
        What it returns is its outcome: None (done), Skipped, Retry, Dead or Unknown; anything else is a dead letter.
        """

        def declare(function: F) -> F:
            if command_type in self.handlers:
                key = f"command {command_type.__name__}"
                self._problems.append(Problem(key, "it has two handlers", "keep exactly one @app.handler for it"))
            self.handlers[command_type] = HandlerFunction(function)
            return function

        return declare

    def effect(
        self,
        name: str,
        *,
        rule: EffectRule,
        deadline_s: float,
        provider: str = "",
        result_bytes_max: int = RESULT_BYTES_MAX,
        margin_s: float = MARGIN_S,
        not_done: Callable[[BaseException], bool] | None = None,
        done_needs: tuple[DoneNeed, ...] = (),
    ) -> Effect:
        """Declare a kind of call to the outside; handlers make it with `ctx.effect(name)`.

        `rule` says how it is repeated when nobody knows whether it was made: `idempotent_key(...)`, `probe(...)` or
        `review()`. `deadline_s` is how long one call may take, `margin_s` how long after it the service may still be at
        work. Effects with one `provider` share what is known about its health. `done_needs` (`"result"`,
        `"external_id"`) is what a person must give who says that a call was done.
        """
        declared = Effect(name, rule, deadline_s, provider, result_bytes_max, margin_s, not_done, done_needs)
        self._problems += name_problems(f"effect {name!r}", name) + effect_problems(declared)
        if name in self.effects:
            self._problems.append(
                Problem(f"effect {name!r}", "it is declared twice", "give each effect a name of its own")
            )
        self.effects[name] = declared
        return declared

    def middleware(self, function: M) -> M:
        """Declare what wraps every handling, inside its claim and its deadline: the first one declared is outermost.

        `async def fn(ctx: Handling, call_next: CallNext)`, and resources behind these. It runs for each attempt of a
        command and for each batch of a projection, `async def` and `def` alike, never for what a trigger left out. What
        it returns is the outcome (`return await call_next()`), what it raises the event's failure.
        """
        if not inspect.iscoroutinefunction(function):
            fix = "make it async def fn(ctx, call_next)"
            self._problems.append(Problem(f"middleware {function.__name__!r}", "it is no async def", fix))
        self._middlewares.append(HandlerFunction(function))
        return function

    @property
    def middlewares(self) -> tuple[HandlerFunction, ...]:
        """Outermost first."""
        return tuple(self._middlewares)

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Declare resources: an async generator that yields one (or a tuple of them) and cleans up behind its yield."""
        self._lifespans.append(function)
        return function

    @contextlib.contextmanager
    def override(self, wanted: type, resource: object) -> Generator[None]:
        """In a test: handlers that want `wanted` get `resource`; lifespans run all the same."""
        before = dict(self._overrides)
        self._overrides[wanted] = resource
        try:
            yield
        finally:
            self._overrides = before

    @property
    def overrides(self) -> Mapping[type, object]:
        """The resources that a test put in place of the real ones."""
        return self._overrides

    @contextlib.asynccontextmanager
    async def open_resources(self) -> AsyncGenerator[tuple[object, ...]]:
        """Run every lifespan; what they yielded is open until the end."""
        async with contextlib.AsyncExitStack() as stack:
            opened: list[object] = []
            for function in self._lifespans:
                generator = function()
                yielded = await anext(generator)
                stack.push_async_callback(_clean_up, generator)
                opened += yielded if isinstance(yielded, tuple) else (yielded,)
            yield tuple(opened)

    def problems(self) -> list[Problem]:
        """Everything that is wrong with the declarations, of all consumers."""
        found = [*self._problems, *rule_problems(f"app {self.name!r}", self.rules)]
        if not self.owner:
            found.append(
                Problem(f"app {self.name!r}", "it has no owner", 'name the team: App("billing", owner="payments")')
            )
        for cls, handler in self.handlers.items():
            if handler.wants.unresolved is not None:
                found.append(unreadable(f"handler of {cls.__name__}", handler.wants.unresolved))
        found += [
            unreadable(f"middleware {wrapper.function.__name__!r}", wrapper.wants.unresolved)
            for wrapper in self._middlewares
            if wrapper.wants.unresolved is not None
        ]
        for consumer in self.consumers.values():
            found += consumer.problems()
            for command in consumer.commands.values():
                found += self._trigger_problems(consumer, command)
        return found

    def _trigger_problems(self, consumer: Consumer, command: Command) -> list[Problem]:
        made = read_made(command.trigger)
        missing = sorted(cls.__name__ for cls in made if cls not in self.handlers)
        key = f"handler {command.name!r} of {consumer.name!r}"
        return [
            Problem(key, f"it makes {name}, which has no handler", f"declare one with @app.handler({name})")
            for name in missing
        ]


async def _clean_up(generator: AsyncIterator[object]) -> None:
    """What stands behind the yield runs however the worker ends: a lifespan needs no `finally`."""
    async for _ in generator:
        raise RuntimeError("a lifespan yields once: a tuple for several resources")
