"""What `tidegate config` shows: every setting in force with its source, secrets masked; the reference page. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from . import layers
from .layers import CLIENT_TABLE, Effective, variable
from .settings import GROUPS, MASK, masked_address


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: its dotted key, its value as it may be shown, where it came from."""

    key: str
    value: str
    source: str


def rows(effective: Effective) -> list[Row]:
    """Every setting in force, in the reference's order; librdkafka properties by name."""
    found: list[Row] = []
    for group, model in GROUPS.items():
        values = getattr(effective.settings, group)
        for name, field in model.model_fields.items():
            key = f"{group}.{field.alias or name}"
            if key + "." != CLIENT_TABLE:
                found.append(Row(key, shown(key, getattr(values, name)), effective.origin(key)))
    for name, value in sorted(effective.settings.kafka.client.items()):
        key = CLIENT_TABLE + name
        found.append(Row(key, shown(key, value), effective.origin(key)))
    return found


def shown(key: str, value: Any) -> str:
    """The value as text without secrets: a password is masked, also one inside an address."""
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        if key == "database.url":
            return masked_address(secret)
        return MASK if secret else ""
    if layers.is_secret(key):
        return MASK
    if isinstance(value, tuple):
        return ", ".join(masked_address(str(part)) for part in cast("tuple[object, ...]", value))
    if isinstance(value, bool):
        return str(value).lower()
    return masked_address(f"<{getattr(value, '__name__', 'callable')}>" if callable(value) else str(value))


# ------------------------------------------------------------------------------------------------------ the reference


def reference() -> str:
    """docs/settings.md: made from the code, so that it cannot be out of date (a test compares)."""
    parts = ["# Settings", "", _INTRODUCTION]
    for group, model in GROUPS.items():
        parts += [f"## {group}", "", (model.__doc__ or "").strip(), ""]
        parts += ["| key | variable | default | what it is |", "|---|---|---|---|"]
        for name, field in model.model_fields.items():
            parts.append(_reference_row(f"{group}.{field.alias or name}", field))
        parts.append("")
    return "\n".join(parts)


def _reference_row(key: str, field: FieldInfo) -> str:
    name = f"`{variable(key)}`" + (f", `{variable(key)}_FILE`" if layers.is_secret(key) else "")
    if key + "." == CLIENT_TABLE:
        name = "`TIDEGATE_KAFKA_CLIENT_...`"
    return f"| `{key}` | {name} | {_default(key, field)} | {field.description} |"


def _default(key: str, field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "-"
    text = shown(key, field.default)
    return f"`{text}`" if text else "-"


_INTRODUCTION = f"""\
<!-- Made by `tidegate config --reference`; edit consumers/settings.py instead. -->

A value is looked for in four places, and the first that has it wins:

1. the **environment**: `TIDEGATE_<GROUP>_<KEY>`, as `TIDEGATE_WORKER_COMMIT_INTERVAL_S=5`;
2. the **file** that `--config` or `{layers.CONFIG_VARIABLE}` names (TOML): a table for each group, as `[worker]` with
   `commit_interval_s = 5`;
3. **code**: `App(..., settings={{"worker": {{"commit_interval_s": 5}}}})`;
4. the **default**.

`tidegate config` prints every value in force with the place it came from, passwords masked. A key that does not exist
is an error wherever it stands (`TIDEGATE_TEST_...` belongs to tidegate's own tests, and `TIDEGATE_APP` and
`TIDEGATE_CONSUMER` are read by the command line). All problems are shown at once, and the process exits with 78.

**Secrets** (and any librdkafka property that is one) may be given as a file instead: the same name with `_FILE` (in a
file or in code `_file`) holds a path, and that file's content without white space around it is the value. Giving both
in one place is an error.

**librdkafka properties** go under `kafka.client`: in the file `[kafka.client]` with `sasl.username = "shop"`; in the
environment the name in capitals with `_` for a dot (`TIDEGATE_KAFKA_CLIENT_SASL_USERNAME=shop`). Callbacks (`oauth_cb`)
are given in code. The properties that tidegate's promise rests on (offset storing, reset and isolation, group identity)
are refused in any spelling, each with its reason.

Whole numbers are written in digits. What a template engine makes of a large number (`1.2e+06`) is refused with the
key's name; switches are `true` or `false` and nothing else.
"""
