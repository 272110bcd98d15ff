"""Settings from their four sources, in one order: environment, file, code, default. Every problem is found at once.

| source | how a key is written there | example for `worker.commit_interval_s` |
|---|---|---|
| environment | `TIDEGATE_<GROUP>_<KEY>` | `TIDEGATE_WORKER_COMMIT_INTERVAL_S=5` |
| file (TOML; `--config` or `TIDEGATE_CONFIG`) | a table for each group | `[worker]`, `commit_interval_s = 5` |
| code | `App(..., settings={...})` | `settings={"worker": {"commit_interval_s": 5}}` |

A librdkafka property in the environment is written as `TIDEGATE_KAFKA_CLIENT_` and its name in capitals with `_` for a
dot. Everywhere it is understood in any case and with `_` or `-` for a dot.

Each secret may be given as `..._file` (`..._FILE`) instead: the path of a file whose content, stripped of white space,
is the secret.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from ..inbox.errors import ConfigurationError, Problem
from .client import config
from .client.config import ClientOptions, spelled
from .settings import GROUPS, Settings, masked_address

PREFIX: Final = "TIDEGATE_"
CONFIG_VARIABLE: Final = "TIDEGATE_CONFIG"

TOKEN_VARIABLE: Final = "TIDEGATE_TOKEN"  # noqa: S105  the variable's name, which is no secret

NOT_SETTINGS: Final = frozenset(
    {CONFIG_VARIABLE, "TIDEGATE_APP", "TIDEGATE_CONSUMER", TOKEN_VARIABLE, "TIDEGATE_TOKEN_FILE"}
)
"""Variables that the command line reads: which file, which app, which consumer, and whose token."""

_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")
"""What Kubernetes sets in every pod beside a Service named tidegate or tidegate-...: nobody's mistake."""

CLIENT_TABLE: Final = "kafka.client."

_SECRET_PROPERTY = re.compile(r"(password|passphrase|secret|\.key\.pem|oauthbearer\.config)$")
_EXPONENT = re.compile(r"[0-9.]+[eE][+-]?[0-9]+")
_NUMERIC_PROPERTY = re.compile(r"\.(ms|bytes|kbytes|max|messages|count|size|min|retries|connections)$")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as its source gave it, and where that is, in words."""

    value: Any
    origin: str


@final
@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in force, and for each key that is not at its default where it came from."""

    settings: Settings
    given: Mapping[str, Entry]

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from; `default` where nobody gave one."""
        entry = self.given.get(key)
        return "default" if entry is None else entry.origin


def fields() -> dict[str, FieldInfo]:
    """Every setting by its dotted key, as `worker.commit_interval_s`."""
    return {
        f"{group}.{field.alias or name}": field
        for group, model in GROUPS.items()
        for name, field in model.model_fields.items()
    }


def is_secret(key: str) -> bool:
    """Whether a value of this dotted key must never be shown."""
    if key.startswith(CLIENT_TABLE):
        return _SECRET_PROPERTY.search(key.lower()) is not None
    field = fields().get(key)
    return field is not None and field.annotation is SecretStr


def variable(key: str) -> str:
    """The environment variable of a dotted key."""
    if key.startswith(CLIENT_TABLE):
        return f"{PREFIX}KAFKA_CLIENT_{key.removeprefix(CLIENT_TABLE).replace('.', '_').upper()}"
    return PREFIX + key.replace(".", "_").upper()


def load(
    environ: Mapping[str, str],
    file: Path | None = None,
    code: Mapping[str, Any] | None = None,
    needs: tuple[str, ...] = (),
) -> Effective:
    """Read every source and judge the whole.

    `needs` names the dotted keys that the caller cannot do without. Raises ConfigurationError with all problems.
    """
    problems: list[Problem] = []
    path = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    layers = (
        _from_environment(environ, problems),
        _from_file(path, problems) if path is not None else {},
        _from_mapping(code or {}, "code", problems),
    )
    given = {key: entry for layer in reversed(layers) for key, entry in layer.items()}
    problems += _client_problems(given)
    settings = _validated(given, problems)
    problems += _missing(given, needs)
    if problems or settings is None:
        raise ConfigurationError(problems)
    return Effective(settings, given)


# ---------------------------------------------------------------------------------------------------------- sources


def _from_environment(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for name, value in sorted(environ.items()):
        key = _key_of(name)
        if _is_setting(name, key):
            found[key] = Entry(value, f"environment {name}")
    return _known(found, problems)


def _is_setting(name: str, key: str) -> bool:
    if not name.startswith(PREFIX) or name.startswith("TIDEGATE_TEST_") or name in NOT_SETTINGS:
        return False
    return key in fields() or not _SERVICE_LINK.search(name)


def _key_of(name: str) -> str:
    rest = name.removeprefix(PREFIX)
    if rest.startswith("KAFKA_CLIENT_"):
        prop = rest.removeprefix("KAFKA_CLIENT_").lower()
        return CLIENT_TABLE + spelled(prop)
    group, _, field = rest.lower().partition("_")
    return f"{group}.{field}"


def _from_file(path: Path, problems: list[Problem]) -> dict[str, Entry]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(
            Problem("config", f"{path} cannot be read ({error.strerror})", "name a file that this user may read")
        )
    except UnicodeDecodeError:
        problems.append(Problem("config", f"{path} is not UTF-8 text", "save it as UTF-8"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem("config", f"{path} is not TOML: {error}", "correct that line"))
    else:
        return _from_mapping(document, f"file {path}", problems)
    return {}


def _from_mapping(tree: Mapping[str, Any], origin: str, problems: list[Problem]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for key, value in _flat(tree):
        known_as = CLIENT_TABLE + spelled(key.removeprefix(CLIENT_TABLE)) if key.startswith(CLIENT_TABLE) else key
        if known_as in found:
            problems.append(Problem(key, f"it is given twice in {origin}, in two spellings", "keep one of them"))
        found[known_as] = Entry(value, origin)
    return _known(found, problems)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys: TOML's own dotted keys (`sasl.username = ...`) then need no quotes."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _known(found: dict[str, Entry], problems: list[Problem]) -> dict[str, Entry]:
    """Keep the keys that exist; read the secrets that are given as files."""
    kept: dict[str, Entry] = {}
    for key, entry in found.items():
        secret = _secret_behind(key)
        if secret is not None:
            _read_secret(secret, entry, found, kept, problems)
        elif (key in fields() and key != "kafka.client") or key.startswith(CLIENT_TABLE):
            kept[key] = entry
        else:
            problems.append(_unknown(key, entry))
    return kept


def _secret_behind(key: str) -> str | None:
    """The secret that `key` gives the path of, None where it is an ordinary key."""
    if key in fields() or not key.endswith(("_file", ".file")):
        return None
    secret = key[: -len("_file")]
    return secret if is_secret(secret) else None


def _read_secret(
    key: str, entry: Entry, found: Mapping[str, Entry], kept: dict[str, Entry], problems: list[Problem]
) -> None:
    if key in found:
        problems.append(
            Problem(key, f"it is given twice: {found[key].origin} and {entry.origin}", "keep one of the two")
        )
        return
    try:
        content = Path(str(entry.value)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        problems.append(
            Problem(key, f"{entry.value} cannot be read ({why}; {entry.origin})", "mount or correct that file")
        )
        return
    kept[key] = Entry(content, f"{entry.origin} -> {entry.value}")


def _unknown(key: str, entry: Entry) -> Problem:
    source, _, name = entry.origin.partition(" ")
    written = name if source == "environment" else key
    near = difflib.get_close_matches(key, fields(), n=1, cutoff=0.6)
    near_written = [variable(match) if source == "environment" else match for match in near]
    fix = (
        f"did you mean {near_written[0]}?"
        if near_written
        else "remove it; `tidegate config --reference` lists every key"
    )
    return Problem(written, f"no such setting (in {entry.origin})", fix)


# --------------------------------------------------------------------------------------------------------- judgement


def _tree(given: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    """The entries in force in the shape of the model."""
    tree: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for key, entry in given.items():
        group, _, field = key.partition(".")
        if key.startswith(CLIENT_TABLE):
            tree[group].setdefault("client", {})[key.removeprefix(CLIENT_TABLE)] = _client_value(entry.value)
        else:
            tree[group][field] = entry.value
    return tree


def _client_value(value: Any) -> Any:
    """What librdkafka takes is text; callbacks (from code) stay what they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if callable(value) else str(value)


def _validated(given: Mapping[str, Entry], problems: list[Problem]) -> Settings | None:
    try:
        return Settings.model_validate(_tree(given))
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            key = ".".join(str(part) for part in detail["loc"][:2])
            problems.append(_invalid(key, detail["msg"], given.get(key)))
        return None


def _invalid(key: str, message: str, entry: Entry | None) -> Problem:
    what = message.removeprefix("Value error, ")
    if entry is None:
        return Problem(key, what, f"set {variable(key)}")
    shown = "the value" if is_secret(key) else masked_address(repr(entry.value))
    return Problem(key, f"{shown}: {what[0].lower()}{what[1:]} (from {entry.origin})", f"correct {entry.origin}")


def _client_problems(given: Mapping[str, Entry]) -> list[Problem]:
    """Properties that the promise rests on are refused, and so are numbers that went through a template engine."""
    client = {key: entry for key, entry in given.items() if key.startswith(CLIENT_TABLE)}
    protocol = given.get("kafka.group_protocol")
    options = ClientOptions(
        bootstrap="",
        group="",
        topics=("-",),
        protocol="classic" if protocol is not None and protocol.value == "classic" else "consumer",
        kafka={key.removeprefix(CLIENT_TABLE): entry.value for key, entry in client.items()},
    )
    found = [
        Problem(CLIENT_TABLE + p.key, f"{p.what} (from {client[CLIENT_TABLE + p.key].origin})", p.fix)
        for p in config.problems(options)
    ]
    return found + [
        Problem(key, f"{entry.value!r}: is not a whole number (from {entry.origin})", "write it in digits")
        for key, entry in client.items()
        if _NUMERIC_PROPERTY.search(key) and (isinstance(entry.value, float) or _EXPONENT.fullmatch(str(entry.value)))
    ]


def _missing(given: Mapping[str, Entry], needs: tuple[str, ...]) -> list[Problem]:
    return [
        Problem(
            key,
            "it is not set",
            f"set {variable(key)}, or `{key.split('.')[1]}` in the file's table [{key.split('.')[0]}]",
        )
        for key in needs
        if key not in given or given[key].value == ""
    ]
