"""What an operator sees of a payload: everything is masked, but the fields that are declared harmless. No IO.

A rule is a path and whether what stands there is masked: `{"order_id": False, "customer": True}`. A path names fields
from the top, with dots; items of a list have the path of their list, `*` stands for any key. The nearest rule above a
value decides; where there is none it is masked. A masked value shows its kind and nothing else, not even its length.
Keys of maps are data too, so they are masked like values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast, final

Path = tuple[str, ...]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""What the name of a field looks like; any other key of an object may be anything, an address say."""

CHANGES_MAX: Final = 100
"""Changed fields that are named: an audit line has room for them, and nobody reads more."""


@final
@dataclass(frozen=True, slots=True)
class Masking:
    """The rules by path, and the paths of maps, whose keys are data."""

    rules: Mapping[Path, bool] = field(default_factory=dict[Path, bool])
    maps: frozenset[Path] = frozenset()

    def over(self, declared: Mapping[str, bool]) -> Masking:
        """The same with a consumer's own rules, which count before those of a schema."""
        return Masking(
            {**self.rules, **{tuple(path.split(".")): hidden for path, hidden in declared.items()}}, self.maps
        )

    def hides(self, path: Path) -> bool:
        """Whether a value at `path` is masked."""
        for length in range(len(path), 0, -1):
            rule = self._rule(path[:length])
            if rule is not None:
                return rule
        return True

    def _rule(self, path: Path) -> bool | None:
        found = self.rules.get(path)
        if found is not None:
            return found
        stars = [rule for rule in self.rules if "*" in rule and len(rule) == len(path)]
        fitting = (self.rules[rule] for rule in stars if all(a in ("*", b) for a, b in zip(rule, path, strict=True)))
        return next(fitting, None)


EVERYTHING: Final = Masking()
"""Nothing is declared: everything is masked."""


def masked(value: Any, masking: Masking, path: Path = ()) -> Any:
    """The value (of what JSON knows) as anybody may see it. None and empty lists and objects are shown as they are.

    >>> masked({"id": "o-1", "customer": {"name": "Ann"}}, Masking({("id",): False}))
    {'id': 'o-1', 'customer': {'name': '<text>'}}
    """
    if value is None:
        return None
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {
            _key(key, number, masking, path): masked(item, masking, (*path, key))
            for number, (key, item) in enumerate(pairs, 1)
        }
    if isinstance(value, list):
        return [masked(item, masking, path) for item in cast("list[Any]", value)]
    return _kind(value) if masking.hides(path) else value


def _key(key: str, number: int, masking: Masking, path: Path) -> str:
    is_field = path not in masking.maps and _NAME.fullmatch(key) is not None
    return key if is_field or not masking.hides((*path, key)) else f"<key {number}>"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "<boolean>"
    return "<number>" if isinstance(value, int | float) else "<text>"


def changes(before: Any, after: Any) -> list[str]:
    """The paths at which two values differ, without the values; keys that are no field's name stand as `*`.

    >>> changes({"a": 1, "b": [1, 2]}, {"a": 2, "b": [1, 2, 3]})
    ['a', 'b']
    """
    found = dict.fromkeys(".".join(path) or "(all)" for path in _changes(before, after, ()))
    return list(found)[:CHANGES_MAX]


def _changes(before: Any, after: Any, path: Path) -> Iterator[Path]:
    kind = before.__class__
    if kind is not after.__class__:
        yield path
        return
    if kind is dict:
        one, other = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        for key in dict.fromkeys((*one, *other)):
            inner = (*path, key if _NAME.fullmatch(key) else "*")
            if key in one and key in other:
                yield from _changes(one[key], other[key], inner)
            else:
                yield inner
        return
    if kind is list and len(before) == len(after):
        for mine, theirs in zip(cast("list[Any]", before), cast("list[Any]", after), strict=True):
            yield from _changes(mine, theirs, path)
        return
    if before != after:
        yield path
