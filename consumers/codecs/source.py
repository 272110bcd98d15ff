"""Where schemas come from: the port of the registry and of the directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

SchemaKey: TypeAlias = int | str
"""What a record names its schema by: the id that the registry gave it, or its GUID."""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema as it was registered, and the schemas that it refers to, each after those that it needs itself."""

    text: str
    references: tuple[str, ...] = ()
    kind: str = "AVRO"


class SchemaSource(Protocol):
    """Schemas by id, for reading, and by topic and name, for writing. Safe to use from several threads."""

    def by_id(self, schema_id: int) -> SchemaText:
        """The schema that was registered under an id.

        Raises:
            RecordError: `unknown_schema`: there is none, after all the patience that was configured.
            DependencyError: the source is away, or the id may still turn up.
        """
        ...

    def by_guid(self, guid: str) -> SchemaText:
        """The schema with this GUID, the same in every registry.

        Raises:
            RecordError: `unknown_schema`, as in `by_id`; `undecodable` where this source has no GUIDs.
            DependencyError: as in `by_id`.
        """
        ...

    def for_writing(self, topic: str, full_name: str, declared: str | None) -> tuple[int, SchemaText]:
        """The schema to write a value called `full_name` with, and its id. `declared` is the application's own schema.

        Raises:
            ValueError: there is none.
            DependencyError: the source is away.
        """
        ...
