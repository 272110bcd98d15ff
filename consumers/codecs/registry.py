"""The schema registry over HTTP: an id that is unknown, and a registry that is away, are never taken for one another.

Only the registry's own answer "not found" (status 404 with an error code of its vocabulary) speaks of an id, and only
when it was given several times over a grace period: registries lag behind producers. All else is the registry being
away, whatever it looks like: no connection, a timeout, 5xx, 429, 401, a proxy's 404 page, HTML where JSON should be.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import OAuthTokenError

from ...inbox.errors import ConfigurationError, DependencyError, RecordError
from ...inbox.outcome import Reason
from .codec import REGISTRY, CodecSettings
from .source import SchemaKey, SchemaText

T = TypeVar("T")

_NOT_FOUND_CODES: Final = range(40_400, 40_500)
"""40401 subject, 40402 version, 40403 schema. Source: Confluent's Schema Registry API reference, "Errors"."""

_AWAY: Final = (httpx.HTTPError, OAuthTokenError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""No answer, or one that is not the registry's: the last four come from taking HTML or other JSON for a schema."""


class _NotFoundError(Exception):
    """The registry itself says that it does not have this."""


class _NoRouteError(Exception):
    """Whoever answered knows no such request: an older registry, or a proxy in front of it."""


_NO_ROUTE: Final = frozenset({404, 405, 501})

_NOBODY: Final = 2**31 - 1
"""The highest schema id: whoever says in the registry's own words that it is not there is a registry."""


@dataclass(frozen=True, slots=True)
class _Missing:
    """An id that the registry did not have: how often it said so, since when, and when it may be asked again."""

    tries: int
    since_s: float
    ask_at_s: float
    is_unknown: bool


@final
class SchemaRegistry:
    """The `SchemaSource` over one registry behind one or several URLs.

    Requests are serial and block their caller for at most `timeout_s` for each URL; after one that failed for want of
    the registry none is made for `ask_again_s`.
    """

    def __init__(self, urls: Sequence[str], settings: CodecSettings) -> None:
        self._settings = settings
        self._clients = [_client(url, settings) for url in urls]
        for client in self._clients:
            # A codec lives as long as its consumer and has no end of its own: the connections end with it.
            weakref.finalize(self, client.close)
        self._lock = threading.Lock()
        self._missing: dict[SchemaKey, _Missing] = {}
        self._no_guids_until_s = -math.inf
        self._away: tuple[float, DependencyError] | None = None

    def by_id(self, schema_id: int) -> SchemaText:
        """See `SchemaSource.by_id`."""
        with self._lock:
            self._check_missing(schema_id)
            try:
                found = self._ask(lambda client: _checked(client.get_schema(schema_id)))
            except _NotFoundError:
                raise self._not_found(schema_id) from None
            self._missing.pop(schema_id, None)
            return self._with_references(found)

    def by_guid(self, guid: str) -> SchemaText:
        """See `SchemaSource.by_guid`. A registry without GUIDs is asked again after `missing_ttl_s`."""
        with self._lock:
            self._check_missing(guid)
            if self._settings.clock.monotonic_s() < self._no_guids_until_s:
                raise _no_guids(guid)
            try:
                found = self._ask(lambda client: _checked(client.get_schema_by_guid(guid)), may_lack=True)
            except _NotFoundError:
                raise self._not_found(guid) from None
            except _NoRouteError:
                self._check_alive()
                self._no_guids_until_s = self._settings.clock.monotonic_s() + self._settings.missing_ttl_s
                raise _no_guids(guid) from None
            self._missing.pop(guid, None)
            return self._with_references(found)

    def _check_alive(self) -> None:
        """Tell a registry that lacks a request from a proxy that has none. Raises DependencyError for the latter."""
        with suppress(_NotFoundError):
            self._ask(lambda client: client.get_schema(_NOBODY))

    def for_writing(self, topic: str, full_name: str, declared: str | None) -> tuple[int, SchemaText]:
        """See `SchemaSource.for_writing`. Under the subject `<topic>-value`: the declared schema, else the latest."""
        subject = f"{topic}-value"
        with self._lock:
            try:
                if declared is None:
                    registered = self._ask(lambda client: client.get_version(subject, "latest"))
                else:
                    schema = ClientSchema(declared, "AVRO")
                    registered = self._ask(lambda client: client.lookup_schema(subject, schema))
            except _NotFoundError:
                what = "no schema" if declared is None else f"not the declared schema of {full_name}"
                raise ValueError(f"the registry has {what} under the subject {subject}: register it first") from None
            if registered.schema_id is None:
                raise self._is_away("it answered without a schema id")
            return registered.schema_id, self._with_references(_checked(registered.schema))

    def _check_missing(self, schema_id: SchemaKey) -> None:
        """Answer from memory where asking again is too early."""
        missing = self._missing.get(schema_id)
        if missing is not None and self._settings.clock.monotonic_s() < missing.ask_at_s:
            raise _unknown(schema_id) if missing.is_unknown else _perhaps_later(schema_id, missing)

    def _not_found(self, schema_id: SchemaKey) -> RecordError | DependencyError:
        """Count an answer "not found"; it makes the id unknown once it was given often enough for long enough."""
        now_s = self._settings.clock.monotonic_s()
        before = self._missing.pop(schema_id, None) or _Missing(0, now_s, now_s, is_unknown=False)
        tries = before.tries + 1
        patience_is_over = (
            tries >= self._settings.missing_tries and now_s - before.since_s >= self._settings.missing_grace_s
        )
        is_unknown = before.is_unknown or patience_is_over
        wait_s = self._settings.missing_ttl_s if is_unknown else self._settings.ask_again_s
        missing = _Missing(tries, before.since_s, now_s + wait_s, is_unknown)
        while len(self._missing) >= self._settings.schemas_max:
            self._missing.pop(next(iter(self._missing)))
        self._missing[schema_id] = missing
        return _unknown(schema_id) if is_unknown else _perhaps_later(schema_id, missing)

    def _with_references(self, schema: ClientSchema) -> SchemaText:
        """Follow the references, each (subject, version) once, those that others need first."""
        texts: list[str] = []
        self._follow(schema, set(), texts)
        return SchemaText(schema.schema_str or "", tuple(texts), schema.schema_type or "AVRO")

    def _follow(self, schema: ClientSchema, seen: set[tuple[str, int]], texts: list[str]) -> None:
        for reference in schema.references or ():
            subject, version = reference.subject or "", reference.version or 0
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            found = self._referred(subject, version)
            self._follow(found, seen, texts)
            texts.append(found.schema_str or "")

    def _referred(self, subject: str, version: int) -> ClientSchema:
        try:
            return self._ask(lambda client: _checked(client.get_version(subject, version, deleted=True).schema))
        except _NotFoundError:
            raise self._is_away(f"it does not have version {version} of {subject}, which a schema refers to") from None

    def _ask(self, request: Callable[[SchemaRegistryClient], T], *, may_lack: bool = False) -> T:
        """Ask at one URL after the other; the one that answered comes first next time.

        `may_lack`: not every registry knows this request; one that does not raises _NoRouteError.
        """
        if self._away is not None and self._settings.clock.monotonic_s() < self._away[0]:
            raise self._away[1]
        said: list[str] = []
        for client in tuple(self._clients):
            try:
                answer = request(client)
            except SchemaRegistryError as error:
                if error.http_status_code == 404 and error.error_code in _NOT_FOUND_CODES:
                    self._answered(client)
                    raise _NotFoundError from None
                if may_lack and error.http_status_code in _NO_ROUTE:
                    raise _NoRouteError from None
                said.append(f"status {error.http_status_code}")
            except _AWAY as error:
                said.append(type(error).__name__)
            else:
                self._answered(client)
                return answer
            finally:
                # It keeps all that it was ever told, without a bound, nonsense included. What is good is kept by us.
                client.clear_caches()
        raise self._is_away(", then ".join(said))

    def _answered(self, client: SchemaRegistryClient) -> None:
        self._away = None
        self._clients.remove(client)
        self._clients.insert(0, client)

    def _is_away(self, why: str) -> DependencyError:
        away = DependencyError(REGISTRY, f"cannot be asked ({why})")
        self._away = (self._settings.clock.monotonic_s() + self._settings.ask_again_s, away)
        return away


def _client(url: str, settings: CodecSettings) -> SchemaRegistryClient:
    # Without retries of its own: the caller pauses the partition and asks again, and never sleeps in the client thread.
    config: dict[str, Any] = {"timeout": settings.timeout_s, **settings.registry_client, "url": url, "max.retries": 0}
    try:
        return SchemaRegistryClient(config)
    except (ValueError, TypeError, OSError) as error:
        raise ConfigurationError.of(
            "registry", f"the schema registry's client refuses its settings: {type(error).__name__}", f"see {error}"
        ) from None


def _checked(schema: ClientSchema) -> ClientSchema:
    if not isinstance(schema.schema_str, str):
        raise TypeError("an answer without a schema")
    return schema


def _unknown(schema_id: SchemaKey) -> RecordError:
    return RecordError(Reason.UNKNOWN_SCHEMA, f"the schema registry has no schema {schema_id}")


def _no_guids(guid: str) -> RecordError:
    return RecordError(
        Reason.UNDECODABLE,
        f"unsupported_framing: schema {guid} is named by its GUID, and this registry does not look schemas up by GUID",
    )


def _perhaps_later(schema_id: SchemaKey, missing: _Missing) -> DependencyError:
    return DependencyError(
        REGISTRY,
        f"it does not have schema {schema_id} yet (asked {missing.tries} times); registries lag behind producers",
    )
