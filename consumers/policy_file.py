"""Reads a policy: which grants of roles there are, and for whom. No IO; time is an argument.

```toml
[[grant]]
who = ["token:ada", "group:oncall", "os:deploy"]
role = "operator"            # viewer, operator, reviewer, admin
tenants = ["acme"]           # or "*"; "" in the list: what belongs to no tenant
brands = ["north"]           # left out: all of them; so with consumers and handlers
handlers = ["invoices"]
```

Nothing is allowed that no grant allows. Every problem is found at once. A token that brings grants of its own brings
them in the same words, without `who`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, final

from ..dlq.reach import EVERY, Grant
from ..dlq.verbs import Role
from ..inbox.errors import ConfigurationError, Problem

KEY: Final = "permission.policy_file"

ALL: Final = "*"

_NAMES: Final = ("tenants", "brands", "consumers", "handlers")

_WHO: Final = re.compile(r"(os|token|group):.+", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Policy:
    """Grants, each with the names that it is for: `os:` users, `token:` subjects, `group:` of a token."""

    entries: tuple[tuple[frozenset[str], Grant], ...] = ()

    def grants(self, names: frozenset[str]) -> tuple[Grant, ...]:
        """What somebody with these names is granted."""
        return tuple(grant for who, grant in self.entries if who & names)


def parse(text: str, origin: str) -> Policy:
    """The policy that stands in `text`, read from `origin`. Raises ConfigurationError with all problems."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError.of(KEY, f"{origin} is not TOML: {error}", "correct that line") from None
    problems = [_unknown(origin, "", key, ("grant",)) for key in document if key != "grant"]
    listed: object = document.get("grant", [])
    if not isinstance(listed, list) or not listed:
        problems.append(Problem(f"{origin}: grant", "it grants nothing to anybody", "add a table [[grant]]"))
        listed = []
    entries: list[tuple[frozenset[str], Grant]] = []
    for number, table in enumerate(cast("list[object]", listed), 1):
        entry = _entry(table, f"{origin}: grant {number}", problems)
        if entry is not None:
            entries.append(entry)
    if problems:
        raise ConfigurationError(problems)
    return Policy(tuple(entries))


def claimed(value: object, claim: str) -> tuple[tuple[Grant, ...], list[Problem]]:
    """The grants that a token's claim brings, and what is wrong with them."""
    problems: list[Problem] = []
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    grants = [_grant(table, f"{claim} {number}", problems) for number, table in enumerate(listed, 1)]
    return tuple(grant for grant in grants if grant is not None), problems


def _entry(table: object, at: str, problems: list[Problem]) -> tuple[frozenset[str], Grant] | None:
    if not isinstance(table, Mapping):
        problems.append(Problem(at, "it is no table", "write [[grant]] and its keys below it"))
        return None
    rest = dict(cast("Mapping[str, Any]", table))
    who = _who(rest.pop("who", None), at, problems)
    grant = _grant(rest, at, problems)
    return None if grant is None else (who, grant)


def _who(value: object, at: str, problems: list[Problem]) -> frozenset[str]:
    fix = 'list names: who = ["token:ada", "group:oncall", "os:deploy"]'
    names = _list_of_text(value)
    if not names:
        problems.append(Problem(f"{at}, who", "it does not say for whom", fix))
        return frozenset()
    problems += [
        Problem(f"{at}, who", f"{name!r} begins with none of token:, group: and os:", fix)
        for name in names
        if not _WHO.fullmatch(name)
    ]
    return frozenset(names)


def _grant(table: object, at: str, problems: list[Problem]) -> Grant | None:
    if not isinstance(table, Mapping):
        problems.append(Problem(at, "it is no grant", "give role and tenants"))
        return None
    fields = cast("Mapping[str, Any]", table)
    before = len(problems)
    known = ("role", *_NAMES)
    problems += [_unknown(at, ", ", key, known) for key in fields if key not in known]
    role = fields.get("role")
    if role not in set(Role):
        problems.append(Problem(f"{at}, role", f"{role!r} is no role", f"name one of: {', '.join(Role)}"))
    if "tenants" not in fields:
        problems.append(Problem(f"{at}, tenants", "it does not say in which", 'list them, or write "*" for all'))
    names = {key: _names(fields[key], f"{at}, {key}", problems) for key in _NAMES if key in fields}
    if len(problems) > before:
        return None
    return Grant(role=Role(role), **({"tenants": EVERY} | names))


def _names(value: object, at: str, problems: list[Problem]) -> frozenset[str] | None:
    if value == ALL:
        return EVERY
    names = _list_of_text(value)
    if not names:
        problems.append(Problem(at, 'it is neither a list of names nor "*"', 'list names, or write "*" for all'))
    elif ALL in names:
        problems.append(Problem(at, '"*" stands among names', 'write "*" instead of the list'))
    return frozenset(names)


def _list_of_text(value: object) -> list[str]:
    """Its members where it is a list of text; nothing where it is not."""
    if not isinstance(value, list):
        return []
    members = cast("list[object]", value)
    return [member for member in members if isinstance(member, str)] if all(isinstance(m, str) for m in members) else []


def _unknown(at: str, joint: str, key: str, known: tuple[str, ...]) -> Problem:
    return Problem(f"{at}{joint or ': '}{key}", "no such key", f"remove it; there are: {', '.join(known)}")
