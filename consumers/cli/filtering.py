"""Which letters a verb means, on the command line: names, a group, or a filter; the same words for every verb.

A verb takes `letters: Chosen`; `choosing` gives its command line one option for each field of a filter in place of it.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, final

import typer
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq import grouping
from ...dlq.reach import Reach
from ...dlq.selection import Filter
from ...inbox.errors import ConfigurationError
from ...inbox.outcome import FailureState, Reason
from ...inbox.tables import Tables

OPTIONS: Final[dict[str, Any]] = {
    "consumer": Annotated[str | None, typer.Option("--consumer", help="Of this consumer.")],
    "handler": Annotated[str | None, typer.Option("--handler", help="Of this projection or command.")],
    "dead_reason": Annotated[Reason | None, typer.Option("--dead-reason", help="That died for this reason.")],
    "exception": Annotated[str | None, typer.Option("--exception", help="That died of this exception type.")],
    "topic": Annotated[str | None, typer.Option("--topic", help="That were read from this topic.")],
    "tenant": Annotated[str | None, typer.Option("--tenant", help="Of this tenant.")],
    "brand": Annotated[str | None, typer.Option("--brand", help="Of this brand.")],
    "key": Annotated[str | None, typer.Option("--key", help="Of this key, as text.")],
    "header": Annotated[str | None, typer.Option("--header", metavar="NAME=VALUE", help="That came with this header.")],
    "event_id": Annotated[str | None, typer.Option("--event-id", help="Of this event.")],
    "correlation_id": Annotated[str | None, typer.Option("--correlation-id", help="Of this correlation id.")],
    "operation_id": Annotated[str | None, typer.Option("--operation-id", help="Of this operation.")],
    "since": Annotated[datetime.datetime | None, typer.Option("--since", help="That last failed at or after (UTC).")],
    "until": Annotated[datetime.datetime | None, typer.Option("--until", help="That last failed before (UTC).")],
}
"""One option for each field of a filter."""

References = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LETTER]...", help="A letter's number, its 32-digit id, or topic/partition@offset."),
]
ByGroup = Annotated[str | None, typer.Option("--group", help="Of this group, as `groups` names it.")]
Everything = Annotated[bool, typer.Option("--all", help="All letters that the options leave.")]


@final
@dataclass(frozen=True, slots=True)
class Chosen:
    """What was said about which letters."""

    references: tuple[str, ...]
    filter: Filter
    group: str | None

    async def resolved(self, conn: AsyncConnection, t: Tables, within: Reach) -> Filter | None:
        """The filter with what its group, `within` a reach, has in common; None where letters are named."""
        if self.references:
            return None
        if self.group is None:
            return self.filter
        common = (await grouping.named(conn, t, self.group, self.filter, within=within)).filter
        given = {name: getattr(common, name) for name in _OF_GROUPS if getattr(common, name) is not None}
        return replace(self.filter, **given)


_OF_GROUPS: Final = ("consumer", "handler", "reason", "exception_type", "tenant", "since", "until")


def filter_of(given: dict[str, Any], state: FailureState | None = FailureState.DEAD) -> Filter:
    """The filter of what stands on the command line; the names are those of OPTIONS."""
    key, header = given["key"], given["header"]
    return Filter(
        consumer=given["consumer"], handler=given["handler"], state=state, reason=given["dead_reason"],
        exception_type=given["exception"], tenant=given["tenant"], brand=given["brand"], topic=given["topic"],
        key=None if key is None else key.encode("utf-8", "surrogateescape"), event_id=given["event_id"],
        correlation_id=given["correlation_id"], operation_id=given["operation_id"],
        since=_utc(given["since"]), until=_utc(given["until"]), header=None if header is None else _header(header),
    )  # fmt: skip


def _utc(at: datetime.datetime | None) -> datetime.datetime | None:
    return None if at is None else at.replace(tzinfo=at.tzinfo or datetime.UTC)


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigurationError.of("--header", f"{text!r} is no header", "write NAME=VALUE")
    return name, value.encode("utf-8", "surrogateescape")


def choosing(
    state: FailureState | None = FailureState.DEAD, *, named_tenant: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Names, a group, or a filter on the command line become `letters`; an empty filter needs `--all`.

    Args:
        state: that of the letters which a filter meets; None: any.
        named_tenant: with letters that are named, `--tenant` says whose they must be.
    """

    def dress(verb: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            options = {name: given.pop(name) for name in OPTIONS}
            names, group, everything = (
                tuple(given.pop("references") or ()),
                given.pop("group"),
                given.pop("all_letters"),
            )
            chosen = Chosen(names, filter_of(options, state), group)
            filtered = chosen.filter != Filter(state=state) or group is not None or given.get("subject") is not None
            if not (names or filtered or everything):
                raise ConfigurationError.of("LETTER", "it is not said which letters", "name them, filter, or say --all")
            rest = replace(chosen.filter, tenant=None) if named_tenant else chosen.filter
            if names and (rest != Filter(state=state) or group is not None or everything):
                raise ConfigurationError.of("LETTER", "letters are named, and filtered too", "do one of the two")
            verb(letters=chosen, **given)

        named: dict[str, Any] = {"references": References, **OPTIONS, "group": ByGroup, "all_letters": Everything}
        more = {name: False if name == "all_letters" else None for name in named}
        return _dressed(run, verb, named, more)

    return dress


def filtering(verb: Callable[..., None]) -> Callable[..., None]:
    """The same for verbs that only look: `wanted: Filter`, of any letters where nothing is said."""

    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in OPTIONS}
        state = None if given.pop("every_state") else given.pop("state", FailureState.DEAD)
        given.pop("state", None)
        verb(wanted=filter_of(options, state), **given)

    states: dict[str, Any] = {
        "state": Annotated[FailureState, typer.Option("--state", help="In this state.")],
        "every_state": Annotated[bool, typer.Option("--all", help="In any state.")],
    }
    more = {**dict.fromkeys(OPTIONS), "state": FailureState.DEAD, "every_state": False}
    return _dressed(run, verb, {**OPTIONS, **states}, more)


def _dressed(
    run: Callable[..., None], verb: Callable[..., None], options: dict[str, Any], defaults: dict[str, Any]
) -> Callable[..., None]:
    """`run` under the verb's name, with the verb's own options and these."""
    own = inspect.signature(verb, eval_str=True).parameters.values()
    kept = [parameter for parameter in own if parameter.name not in ("letters", "wanted")]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in options.items()
    ]
    mine = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
    dressed: Any = run
    dressed.__signature__ = inspect.Signature([*added, *mine])
    dressed.__annotations__ = {parameter.name: parameter.annotation for parameter in (*added, *mine)}
    dressed.__name__, dressed.__doc__ = verb.__name__, verb.__doc__
    return dressed
