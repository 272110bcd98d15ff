"""A directory of `.avsc` files as the embedded registry: `<id>.avsc` or `<id>-<anything>.avsc`, one schema in each.

A schema may use types that other files define; a file without an id in its name (`address.avsc`) serves for that alone.
Where several files define a name the one without an id goes first, then the highest id. An id's content is final, as in
any registry: a file that was read is not read again, one that was missing is looked for again after a moment.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ...inbox.clock import Clock
from ...inbox.errors import ConfigurationError, DependencyError, RecordError
from ...inbox.outcome import Reason
from .codec import REGISTRY
from .schemas import SchemaError, UndefinedNameError, parse, pick_name, root_names, short_name
from .source import SchemaText

_FILE: Final = re.compile(r"(\d+)(-.*)?\.avsc")

MISSING_TTL_S: Final = 1.0
"""How long a missing id stays missing before the directory is looked at again: a glance at a directory costs 20 us."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The directory as it was seen: files by id, and all `.avsc` files, those without an id first, then falling ids."""

    by_id: dict[int, Path]
    paths: tuple[Path, ...]
    seen_at_s: float


@final
class SchemaDirectory:
    """The `SchemaSource` over one directory."""

    def __init__(self, path: Path, clock: Clock) -> None:
        if not path.is_dir():
            raise ConfigurationError.of(
                "registry",
                f"{path} is not a directory",
                "name a directory of .avsc files, or a registry by its http:// URL",
            )
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._listing: _Listing | None = None

    def by_id(self, schema_id: int) -> SchemaText:
        """See `SchemaSource.by_id`. A missing file is an unknown schema at once: nothing lags behind here."""
        path = self._listed(schema_id)
        if path is None:
            raise RecordError(Reason.UNKNOWN_SCHEMA, f"schema {schema_id} has no file in the schema directory")
        text = _read(path)
        try:
            return SchemaText(text, self._references(text, path, (text,)))
        except SchemaError as error:
            raise DependencyError(REGISTRY, f"{path.name} cannot be used: {error}") from None

    def by_guid(self, guid: str) -> SchemaText:
        """See `SchemaSource.by_guid`. Files have ids."""
        raise RecordError(
            Reason.UNDECODABLE, f"unsupported_framing: schema {guid} is named by its GUID, and the directory has ids"
        )

    def for_writing(self, topic: str, full_name: str, declared: str | None) -> tuple[int, SchemaText]:
        """See `SchemaSource.for_writing`. The highest id wins whose root is that type or a union with it."""
        texts = self._usable()
        names = {schema_id: root_names(text.text) for schema_id, text in texts.items()}
        name = pick_name(frozenset[str]().union(*names.values()), full_name)
        for schema_id, text in texts.items():
            if name in names[schema_id] and (declared is None or _same(text, declared)):
                return schema_id, text
        raise ValueError(f"no file of the schema directory holds {full_name} as it is to be written to {topic}")

    def _usable(self) -> dict[int, SchemaText]:
        """Every schema that can be used, the highest id first; one that cannot is no reason not to write another."""
        texts: dict[int, SchemaText] = {}
        for schema_id in sorted(self._refreshed().by_id, reverse=True):
            try:
                texts[schema_id] = self.by_id(schema_id)
            except DependencyError:
                continue
        return texts

    def _listed(self, schema_id: int) -> Path | None:
        listing = self._listing
        if listing is None or (
            schema_id not in listing.by_id and self._clock.monotonic_s() >= listing.seen_at_s + MISSING_TTL_S
        ):
            listing = self._refreshed()
        return listing.by_id.get(schema_id)

    def _refreshed(self) -> _Listing:
        with self._lock:
            by_id: dict[int, Path] = {}
            shared: list[Path] = []
            for path in self._files():
                matched = _FILE.fullmatch(path.name)
                if matched is None:
                    shared.append(path)
                    continue
                _keep_one(by_id, int(matched[1]), path)
            paths = (*shared, *(by_id[schema_id] for schema_id in sorted(by_id, reverse=True)))
            self._listing = _Listing(by_id, paths, self._clock.monotonic_s())
            return self._listing

    def _files(self) -> list[Path]:
        try:
            return sorted(path for path in self._path.iterdir() if path.suffix == ".avsc")
        except OSError as error:
            raise DependencyError(REGISTRY, f"the schema directory cannot be read: {error.strerror}") from None

    def _references(self, text: str, path: Path, inside: tuple[str, ...]) -> tuple[str, ...]:
        """The files that define what the schema uses without defining it, what they need themselves first."""
        texts: tuple[str, ...] = ()
        while True:
            try:
                parse(text, texts)
            except UndefinedNameError as error:
                found = self._definition(error.name, path) or self._definition(short_name(error.name), path)
                if found is None or found in inside:
                    raise SchemaError(f"no file of the directory defines {error.name}") from None
                needed = self._references(found, path, (*inside, found))
                texts += tuple(each for each in (*needed, found) if each not in texts)
            else:
                return texts

    def _definition(self, name: str, user: Path) -> str | None:
        for path in (self._listing or self._refreshed()).paths:
            if path != user and short_name(name) in (text := _read(path)) and name in root_names(text):
                return text
        return None


def _keep_one(by_id: dict[int, Path], schema_id: int, path: Path) -> None:
    other = by_id.setdefault(schema_id, path)
    if other != path:
        raise DependencyError(
            REGISTRY, f"two files of the schema directory claim id {schema_id}: {other.name}, {path.name}"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DependencyError(REGISTRY, f"{path.name} cannot be read: {type(error).__name__}") from None


def _same(text: SchemaText, declared: str) -> bool:
    try:
        return parse(text.text, text.references) == parse(declared, text.references)
    except SchemaError:
        return False
