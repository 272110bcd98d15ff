"""Every setting of a tidegate process, with its type, its default and the reason for it. No IO.

Where a value comes from is the business of `layers.py`: the environment wins over the file, the file over code, code
over the default. A value here is strict: a whole number is written as digits, a switch as `true` or `false`; what a
template engine made of a number (`1.2e+06`) is refused with the key's name instead of being guessed at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from ..inbox.database import DatabaseSettings
from ..inbox.errors import ConfigurationError
from ..inbox.provider_breakers import ProviderPolicy
from ..inbox.tables import tables
from .client.config import ClientOptions
from .codecs.codec import CodecSettings
from .engine.policy import EnginePolicy

MEBIBYTE: Final = 1024 * 1024

MASK: Final = "********"

_USER_PASSWORD = re.compile(r"(?<=://)([^/@\s]*?):([^/\s]*)@")
_QUERY_PASSWORD = re.compile(r"((?:password|secret|token)=)[^&\s]*", re.IGNORECASE)
_DIGITS = re.compile(r"[+-]?[0-9]+")


def masked_address(text: str) -> str:
    """An address with the password in it replaced, wherever it stands."""
    without_user = _USER_PASSWORD.sub(rf"\1:{MASK}@", text)
    return _QUERY_PASSWORD.sub(rf"\1{MASK}", without_user)


def _whole(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("is not a whole number")
    if isinstance(value, str) and not _DIGITS.fullmatch(value.strip()):
        raise ValueError("is not a whole number (digits only: no exponent, no fraction, no separator)")
    return int(value)


def _seconds(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("is not a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("is not a number") from None
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number


def _switch(value: object) -> object:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ValueError("is neither true nor false")


def _listed(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _database_url(value: object) -> SecretStr:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        raise ValueError("is not text")
    if not text:
        return SecretStr("")
    scheme, found, rest = text.partition("://")
    if not found or scheme not in ("postgresql", "postgres", "postgresql+asyncpg"):
        raise ValueError("is not a PostgreSQL address (postgresql://user@host:5432/name)")
    if not rest.partition("?")[0].partition("/")[2]:
        raise ValueError("names no database (postgresql://user@host:5432/name)")
    return SecretStr(f"postgresql://{rest}")


def _schema(value: str) -> str:
    try:
        tables(value)
    except ConfigurationError as error:
        raise ValueError(f"is no name for a schema: {error.problems[0].fix}") from None
    return value


def _registry(value: tuple[str, ...]) -> tuple[str, ...]:
    remote = [entry for entry in value if urlsplit(entry).scheme in ("http", "https")]
    if remote and len(remote) != len(value):
        raise ValueError("mixes addresses with a directory")
    if any(urlsplit(entry).password for entry in remote):
        raise ValueError("holds a password: give it as registry.user and registry.password, which are never shown")
    if not remote and len(value) > 1:
        raise ValueError("names more than one directory")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Port = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=65535)]
RegistryUrl = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_registry)]
Schema = Annotated[str, AfterValidator(_schema)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


class Database(_Strict):
    """The PostgreSQL that holds the inbox and the read models."""

    url: Annotated[SecretStr, BeforeValidator(_database_url)] = Field(
        default=SecretStr(""), description="Where PostgreSQL is: `postgresql://user@host:5432/name`, 15 or newer."
    )
    password: SecretStr = Field(default=SecretStr(""), description="The password, where the URL holds none.")
    schema_name: Schema = Field(
        default="tidegate", alias="schema", description="The schema that holds tidegate's own tables and nothing else."
    )
    pool_max: Count = Field(
        default=8,
        description="Connections for batches, claims, checkpoints and takeovers. Eight keep two cores busy; "
        "PostgreSQL's default of 100 still serves ten processes.",
    )
    tx_pool_max: Count = Field(
        default=16,
        description="Connections for handlers that open `ctx.tx`: it bounds how many of them run at once, and nothing "
        "else waits on it. As many as one command's default concurrency.",
    )
    statement_timeout_s: Seconds = Field(
        default=30.0,
        description="The longest statement. It also bounds how long a takeover waits for writers that are still open.",
    )
    connect_timeout_s: Seconds = Field(
        default=5.0, description="How long one attempt to connect may take before the database counts as away."
    )

    def dsn(self) -> str:
        """The address with its password, in the form that libpq and asyncpg know. Empty where no `url` is set."""
        url = self.url.get_secret_value()
        password = self.password.get_secret_value()
        if not url or not password:
            return url
        return f"{url}{'&' if '?' in url else '?'}password={quote(password, safe='')}"

    def pools(self) -> DatabaseSettings:
        """The bounds of the connection pools."""
        return DatabaseSettings(
            pool_max=self.pool_max,
            tx_pool_max=self.tx_pool_max,
            connect_timeout_s=self.connect_timeout_s,
            statement_timeout_s=self.statement_timeout_s,
        )


class Kafka(_Strict):
    """The brokers, and how to talk to them."""

    bootstrap_servers: str = Field(default="", description="`host:port`, several separated by commas.")
    group_protocol: Literal["consumer", "classic"] = Field(
        default="consumer",
        description="`consumer` is KIP-848 (brokers from 4.0 on); `classic` is cooperative, for older brokers. One for "
        "the whole group.",
    )
    group_instance_id: str = Field(
        default="",
        description="Makes this a static member: only where each replica has a name of its own (a StatefulSet's pod). "
        "A static member that left keeps its partitions from the others until its session ends.",
    )
    client_id: str = Field(
        default="tidegate", description="How this process is called in the broker's logs and quotas."
    )
    client: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Any other librdkafka property (SASL, TLS, OAUTHBEARER, fetch sizes), passed on as it stands. "
        "Those that tidegate's promise rests on are refused.",
    )


class Registry(_Strict):
    """The schema registry of the Avro codec."""

    url: RegistryUrl = Field(
        default=(),
        description="Addresses of one Confluent-compatible registry, separated by commas, or one directory of `.avsc` "
        "files.",
    )
    user: str = Field(default="", description="User name for the registry.")
    password: SecretStr = Field(default=SecretStr(""), description="Password for the registry.")
    timeout_s: Seconds = Field(
        default=3.0,
        description="How long one request may take. The client thread waits for it, for each address in turn, so it "
        "stays far below `max.poll.interval.ms` (300 s).",
    )
    missing_tries: Count = Field(
        default=5,
        description="How often a missing schema id is asked for before its records are dead: registries lag behind "
        "producers. Asked for once a second.",
    )
    missing_grace_s: Seconds = Field(
        default=30.0,
        description="... and for how long at least: a replica of a registry may be that far behind. Its partition "
        "waits meanwhile.",
    )
    missing_ttl_s: Seconds = Field(
        default=60.0,
        description="How long an id that is unknown stays so: one request in this time, whatever comes with it.",
    )


class Worker(_Strict):
    """How much a process takes at once, and how it leaves."""

    window_records_max: Count = Field(
        default=25_000,
        description="Records in memory before partitions pause: five batches, so that the database never waits. They "
        "resume at half of it.",
    )
    window_bytes_max: Annotated[int, BeforeValidator(_whole), Field(ge=MEBIBYTE)] = Field(
        default=64 * MEBIBYTE,
        description="Bytes in memory before partitions pause, whichever comes first; a third as much is prefetched by "
        "the client. Decoded events take a few times their bytes.",
    )
    commit_interval_s: Seconds = Field(
        default=1.0,
        description="How often offsets go to Kafka. They are for lag figures and alarms; the truth is in PostgreSQL, "
        "so a second costs nothing after a crash.",
    )
    drain_budget_s: Seconds = Field(
        default=20.0,
        description="How long handlers in flight may go on after SIGTERM, and when Kafka takes partitions away (the "
        "group waits for that). Below Kubernetes' default grace period of 30 s, with room for commit and leave.",
    )
    close_budget_s: Seconds = Field(
        default=5.0,
        description="After the drain: how long commit, leaving the group and closing may take before the process exits "
        "anyway.",
    )
    handler_threads_max: Count = Field(
        default=32, description="Threads for `def` handlers: what a process can have waiting at once without asyncio."
    )


class Effects(_Strict):
    """Calls to the outside: when a provider is left alone, and how their unknown ends are found out."""

    provider_failures_max: Count = Field(
        default=10,
        description="Calls in a row of one process that a provider does not answer, or refuses for overload, before "
        "its breaker opens for all replicas: a single lost connection takes a few calls with it.",
    )
    provider_retry_after_s: Seconds = Field(
        default=15.0,
        description="How long a provider is left alone before one call of the whole fleet tries it again: longer than "
        "most restarts take.",
    )
    probe_every_s: Seconds = Field(
        default=0.5,
        description="Between two questions of the reconciler what became of a call, in the whole fleet: an outage "
        "leaves many calls in doubt, and should not be followed by a flood.",
    )
    alert_age_s: Seconds = Field(
        default=3_600.0,
        description="From this age on an error is logged for what waits for a person, again every ten minutes.",
    )


class Dlq(_Strict):
    """Dead letters: their topics, and how much may wait for them."""

    create_topics: Switch = Field(
        default=False,
        description="`tidegate run` makes the dead-letter topics that are missing. Off: who owns the cluster decides "
        "about topics, and `tidegate topic create` makes them.",
    )
    retention_s: Seconds = Field(
        default=14 * 86_400.0,
        description="How long a dead-letter topic may keep letters: so long the inbox has to know what became of them. "
        "`topic create` sets it, `check` and `run` refuse a topic that keeps them longer. Two weeks: a holiday.",
    )
    waiting_max: Count = Field(
        default=100_000,
        description="Letters and records in the outbox that may wait to be sent before consumption pauses: more of "
        "them is an outage of their topics, not a delay.",
    )
    waiting_age_max_s: Seconds = Field(
        default=3_600.0,
        description="How long the oldest of them may wait before consumption pauses, rather than add to the heap.",
    )


class Permission(_Strict):
    """Who may do what with `tidegate` commands, and how they prove who they are."""

    policy_file: str = Field(
        default="",
        description="A TOML file that grants roles: see `docs/guides/permission.md`. Without it, and without tokens, "
        "whoever can reach the database may do everything, under the name of their operating system's user.",
    )
    token_jwks: str = Field(
        default="",
        description="The public keys that tokens are signed with: the path of a JWKS file, or its https address "
        "(http only on this machine).",
    )
    token_secret: SecretStr = Field(
        default=SecretStr(""),
        description="The secret that tokens are signed with, where it is shared: 32 bytes at least. Not beside "
        "`token_jwks`.",
    )
    token_algorithms: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        default=(),
        description="Only these, of those that fit the key's type. Empty: all that do: RS, PS, ES and EdDSA for public "
        "keys, HS for the secret.",
    )
    token_issuer: str = Field(default="", description="Who must have signed a token (`iss`).")
    token_audience: str = Field(default="", description="For whom a token must have been made (`aud`).")
    token_leeway_s: Seconds = Field(
        default=10.0, description="How far two clocks may be apart where a token's times are judged."
    )
    groups_claim: str = Field(
        default="groups", description="The claim that lists a person's groups, for `group:` in the policy."
    )
    grants_claim: str = Field(
        default="",
        description="The claim in which a token brings grants of its own, in the policy file's words. Empty: what a "
        "token says about roles is not believed.",
    )


class Health(_Strict):
    """The HTTP server for probes and metrics."""

    host: str = Field(
        default="127.0.0.1",
        description="The address to listen on. In a container set `0.0.0.0`: the probes come from outside.",
    )
    port: Port = Field(
        default=8080,
        description="0 turns the server off. Where the default is taken (a second worker on one machine) the worker "
        "warns and runs without; a port that was set must be free.",
    )
    poll_stall_s: Seconds = Field(
        default=30.0,
        description="`/livez` fails when the poll loop has not turned for this long. A turn takes a second at most, so "
        "30 is a hang and no busy machine.",
    )


class Log(_Strict):
    """What is logged, and how."""

    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="`auto`: coloured lines where standard error is a terminal, else JSON."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The lowest level shown.")
    exception_messages: Switch = Field(
        default=False,
        description="Show the messages of foreign exceptions too. They may quote data of your events (PostgreSQL's "
        "unique violations do), so they stay out unless you say so; the failure row has them.",
    )


class Settings(_Strict):
    """All groups. Made by `layers.load`, which knows where each value came from."""

    database: Database = Field(default_factory=Database)
    kafka: Kafka = Field(default_factory=Kafka)
    registry: Registry = Field(default_factory=Registry)
    worker: Worker = Field(default_factory=Worker)
    dlq: Dlq = Field(default_factory=Dlq)
    effects: Effects = Field(default_factory=Effects)
    permission: Permission = Field(default_factory=Permission)
    health: Health = Field(default_factory=Health)
    log: Log = Field(default_factory=Log)

    def client_options(self, group: str, topics: Sequence[str]) -> ClientOptions:
        """What the Kafka clients of a consumer are made from."""
        return ClientOptions(
            bootstrap=self.kafka.bootstrap_servers,
            group=group,
            topics=tuple(topics),
            protocol=self.kafka.group_protocol,
            kafka=self.kafka.client,
            instance_id=self.kafka.group_instance_id or None,
            window_bytes=self.worker.window_bytes_max,
            client_id=self.kafka.client_id,
        )

    def provider_policy(self) -> ProviderPolicy:
        """When a provider counts as away."""
        return ProviderPolicy(self.effects.provider_failures_max, self.effects.provider_retry_after_s)

    def engine_policy(self) -> EnginePolicy:
        """The engine's bounds; what was paused resumes at half."""
        return EnginePolicy(
            window_records_max=self.worker.window_records_max,
            window_records_low=self.worker.window_records_max // 2,
            window_bytes_max=self.worker.window_bytes_max,
            window_bytes_low=self.worker.window_bytes_max // 2,
            commit_interval_s=self.worker.commit_interval_s,
        )

    def codec_settings(self) -> CodecSettings:
        """Where the codec finds its schemas."""
        user, password = self.registry.user, self.registry.password.get_secret_value()
        client = {"basic.auth.user.info": f"{user}:{password}"} if user or password else {}
        return CodecSettings(
            registry=self.registry.url,
            registry_client=client,
            timeout_s=self.registry.timeout_s,
            missing_tries=self.registry.missing_tries,
            missing_grace_s=self.registry.missing_grace_s,
            missing_ttl_s=self.registry.missing_ttl_s,
        )


GROUPS: Final[Mapping[str, type[BaseModel]]] = {
    "database": Database,
    "kafka": Kafka,
    "registry": Registry,
    "worker": Worker,
    "dlq": Dlq,
    "effects": Effects,
    "permission": Permission,
    "health": Health,
    "log": Log,
}
