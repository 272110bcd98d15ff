"""An Avro value as text that a person can edit (Avro's own JSON encoding) and back, and what its schema masks. No IO.

Each is by the schema that the value was written with, so that a repaired value has the same schema id. The text is read
by fastavro and then written strictly; whoever asks has the product's own reader check the bytes.

Source: Apache Avro 1.12 specification, "JSON Encoding".
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import fastavro

from ...dlq.masking import Masking, Path
from .source import SchemaText

MASK: Final = "mask"
"""The property of a field: `false`, it may be shown; `true`, it never is, whatever stands above it says."""

_VISITS_MAX: Final = 10_000
"""Fields that are looked at: what a schema repeats beyond that stays masked."""


def as_text(schema: SchemaText, body: bytes) -> str:
    """The value of a body that was decoded before. Raises ValueError where it has no JSON form."""
    form = _form(schema)
    value = fastavro.schemaless_reader(io.BytesIO(body), form, None, return_named_type=True)
    out = io.StringIO()
    fastavro.json_writer(out, form, [value])
    return json.dumps(json.loads(out.getvalue()), indent=2, ensure_ascii=False) + "\n"


def from_text(schema: SchemaText, text: str) -> bytes:
    """The body of an edited text. Raises ValueError where it is no JSON, or does not fit the schema."""
    given = json.loads(text)
    form, out = _form(schema), io.BytesIO()
    try:
        values: list[Any] = [*cast("Any", fastavro.json_reader(io.StringIO(json.dumps(given)), form))]
        if len(values) != 1:
            raise ValueError("it is not exactly one value")
        fastavro.schemaless_writer(out, form, values[0], strict=True)
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration, OverflowError) as error:
        raise ValueError(f"a field is missing or of another type ({type(error).__name__})") from None
    except ValueError as error:
        # fastavro's own messages quote values
        raise ValueError(f"a value does not fit its field ({type(error).__name__})") from None
    # fastavro passes over a field that the schema does not have: somebody's repair would be lost in silence
    if unknown := next(_left_out(given, json.loads(as_text(schema, out.getvalue())), "value"), None):
        raise ValueError(f"{unknown} has a field that its schema does not have")
    return out.getvalue()


def _left_out(given: Any, kept: Any, path: str) -> Iterator[str]:
    """Where `given` has keys that `kept` lacks."""
    if isinstance(given, dict) and isinstance(kept, dict):
        mine, theirs = cast("dict[str, Any]", given), cast("dict[str, Any]", kept)
        if mine.keys() - theirs.keys():
            yield path
        for key in mine.keys() & theirs.keys():
            yield from _left_out(mine[key], theirs[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for one, other in zip(cast("list[Any]", given), cast("list[Any]", kept), strict=False):
            yield from _left_out(one, other, path)


def _form(schema: SchemaText) -> Any:
    names: dict[str, Any] = {}
    for reference in schema.references:
        fastavro.parse_schema(json.loads(reference), names)
    return fastavro.parse_schema(json.loads(schema.text), names)


# ---------------------------------------------------------------------------------------------------------- masking


def masking_of(schema: SchemaText) -> Masking:
    """What the fields' property `mask` says, and where the maps are."""
    names: dict[str, Mapping[str, Any]] = {}
    rules: dict[Path, bool] = {}
    maps: set[Path] = set()
    texts = [json.loads(text) for text in (*schema.references, schema.text)]
    for text in texts:
        _named(text, "", names)
    waiting: list[tuple[Any, Path, str, frozenset[str]]] = [(texts[-1], (), "", frozenset())]
    for _ in range(_VISITS_MAX):
        if not waiting:
            break
        node, path, space, above = waiting.pop()
        waiting += _below(node, path, space, above, names, rules, maps)
    return Masking(rules, frozenset(maps))


def _below(
    node: Any, path: Path, space: str, above: frozenset[str],
    names: Mapping[str, Mapping[str, Any]], rules: dict[Path, bool], maps: set[Path],
) -> list[tuple[Any, Path, str, frozenset[str]]]:  # fmt: skip
    """What stands below a node; a type within itself is not gone into again: it stays masked there."""
    if isinstance(node, list):
        return [(branch, path, space, above) for branch in cast("list[Any]", node)]
    if isinstance(node, str):
        found = names.get(_full(node, space)) or names.get(node)
        return [] if found is None else [(found, path, space, above)]
    given = cast("dict[str, Any]", node)
    kind = given.get("type")
    if kind == "array":
        return [(given.get("items"), path, space, above)] if given.get("items") else []
    if kind == "map":
        maps.add(path)
        return [(given.get("values"), (*path, "*"), space, above)] if given.get("values") else []
    if kind not in ("record", "error"):
        return [(kind, path, space, above)] if isinstance(kind, dict | list) else []
    name = _full(str(given.get("name")), str(given.get("namespace") or space))
    if name in above:
        return []
    inner: list[tuple[Any, Path, str, frozenset[str]]] = []
    for item in given.get("fields") or ():
        at = (*path, str(item.get("name")))
        if isinstance(item.get(MASK), bool):
            rules[at] = item[MASK]
        inner.append((item.get("type"), at, name.rpartition(".")[0], above | {name}))
    return inner


def _named(node: Any, space: str, names: dict[str, Mapping[str, Any]]) -> None:
    """Every record that a schema defines, by its full name."""
    if isinstance(node, list):
        for branch in cast("list[Any]", node):
            _named(branch, space, names)
    if not isinstance(node, dict):
        return
    given = cast("dict[str, Any]", node)
    if given.get("type") in ("record", "error"):
        name = _full(str(given.get("name")), str(given.get("namespace") or space))
        names[name], space = given, name.rpartition(".")[0]
        for item in given.get("fields") or ():
            _named(item.get("type"), space, names)
        return
    for part in ("type", "items", "values"):
        _named(given.get(part), space, names)


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
