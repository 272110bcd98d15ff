"""Payload classes: which class a full name belongs to, what a class's field accepts, how an instance is made. No IO.

A class is known by its `__avro_name__`, else by its own name, which matches the full name or the last part of it. A
field's annotation may also ask for a logical type's base value (`int` for a timestamp, `str` for a uuid).
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, final

import pydantic

from ...dlq.guard import Raised, contained_call
from ...dlq.validation_text import told_errors
from ...inbox.errors import ConfigurationError, RecordError
from ...inbox.outcome import Reason
from .schemas import short_name

T = TypeVar("T")

ANY: Final[Any] = Any
"""No class asks for anything: records become the class declared for their name, else dicts."""

_LISTS: Final = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_MAPS: Final = (dict, abc.Mapping, abc.MutableMapping)


class Mismatch(Exception):
    """A class cannot be made from a schema, whatever the record. The message names field and types."""


@dataclass(frozen=True, slots=True)
class ClassField:
    """A field of a payload class: what it accepts, and whether it has to be given."""

    accepts: Any
    required: bool


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """What a record is turned into: a class with these fields, or a dict that takes all (`fields` is None)."""

    cls: type | None
    fields: Mapping[str, ClassField] | None
    checks_itself: bool = False
    """True for pydantic models: a field whose type is not known here gets the natural value, and the model decides."""
    positional: bool = False
    """The constructor takes the fields in their order."""
    make: Callable[..., Any] = dict
    """Makes an instance of the fields' values; raises RecordError and nothing else."""


DICT: Final = Shape(None, None)


def full_name_of(cls: type) -> str:
    """The name by which a class declares itself, full or short."""
    return getattr(cls, "__avro_name__", cls.__name__)


def named_pair(value: object) -> tuple[str, Any] | None:
    """The (full name, value) by which a branch of a union is named; None where a value is no such pair."""
    if not isinstance(value, tuple):
        return None
    pair = cast("tuple[Any, ...]", value)
    return (pair[0], pair[1]) if len(pair) == 2 and isinstance(pair[0], str) else None


def is_instance(value: object) -> bool:
    """True for an instance of a payload class."""
    return _is_shaped(value.__class__)


def type_name(value: object) -> str:
    """The name of a value's class, for messages."""
    return value.__class__.__name__


@final
class Classes:
    """The payload classes of an application, looked up by full name."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._by_name: dict[str, type] = {}
        for cls in classes:
            if cls is not dict and _is_shaped(cls):
                self._add(cls)

    def _add(self, cls: type) -> None:
        name = full_name_of(cls)
        known = self._by_name.setdefault(name, cls)
        if dataclasses.is_dataclass(cls):
            _check_annotations(cls)
        if known is not cls:
            raise ConfigurationError.of(
                "types",
                f"{known.__module__}.{known.__qualname__} and {cls.__module__}.{cls.__qualname__} are both {name}",
                "give one of them its full name in `__avro_name__`",
            )

    def find(self, full_name: str) -> type | None:
        """The class for a full name: exact before short."""
        return self._by_name.get(full_name) or self._by_name.get(short_name(full_name))

    def __iter__(self) -> abc.Iterator[type]:
        return iter(self._by_name.values())


def _is_shaped(cls: Any) -> bool:
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or issubclass(cls, pydantic.BaseModel))


def shape_of(accepts: Any, full_name: str, classes: Classes) -> Shape:
    """What a record called `full_name` becomes where `accepts` is asked for.

    Raises:
        Mismatch: no record can become that.
    """
    if accepts is ANY:
        cls = classes.find(full_name)
        return DICT if cls is None else _class_shape(cls)
    members = [plain(member) for member in members_of(accepts)]
    if any(member is ANY for member in members):
        return shape_of(ANY, full_name, classes)
    shaped = [member for member in members if _is_shaped(member)]
    named = [cls for cls in shaped if full_name_of(cls) in (full_name, short_name(full_name))]
    if named or len(shaped) == 1:
        return _class_shape((named or shaped)[0])
    if any(typing.get_origin(member) in _MAPS or member in _MAPS or typing.is_typeddict(member) for member in members):
        return DICT
    raise Mismatch(f"{shown(accepts)} cannot be made from a record")


def _class_shape(cls: type) -> Shape:
    if issubclass(cls, pydantic.BaseModel):
        return Shape(cls, _model_fields(cls), checks_itself=True, make=checked(cls.model_validate, cls.__name__, cls))
    made = cast("Any", cls)
    hints = _annotations(made)
    given = [item for item in dataclasses.fields(made) if item.init]
    fields = {item.name: ClassField(hints[item.name], _is_required(item)) for item in given}
    make = made if _is_plain(made) else checked(made, cls.__name__, made)
    return Shape(made, fields, positional=not any(item.kw_only for item in given), make=make)


def _is_plain(cls: Any) -> bool:
    """True where making an instance runs no code but dataclasses' own, which raises nothing: it needs no guard."""
    params = cast("Any", vars(cls).get("__dataclass_params__"))
    return bool(
        type(cls) is type
        and params is not None
        and params.init
        and not hasattr(cls, "__post_init__")
        and cls.__new__ is object.__new__
        and (params.frozen or cls.__setattr__ is object.__setattr__)
        and all(_is_plain_field(cls, item) for item in dataclasses.fields(cls))
    )


def _is_plain_field(cls: type, item: dataclasses.Field[Any]) -> bool:
    found: Any = inspect.getattr_static(cls, item.name, None)
    is_descriptor = hasattr(found, "__set__") and not isinstance(found, types.MemberDescriptorType)
    return not is_descriptor and item.default_factory in (dataclasses.MISSING, list, dict, set)


def checked(make: Callable[..., T], name: str, cls: type | None = None) -> Callable[..., T]:
    """`make` behind the guard: whatever a user's class raises, of whatever type, is the record's fault."""

    def make_or_refuse(*args: Any, **named: Any) -> T:
        outcome = contained_call(make, *args, **named)
        if isinstance(outcome, Raised):
            raise _refused(name, outcome.error, cls) from None
        return outcome.value

    return make_or_refuse


def _annotations(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise Mismatch(f"{cls.__name__} has an annotation that nothing defines: {error.name}") from None


def _check_annotations(cls: type) -> None:
    """Names in annotations are looked up when the application starts, not at the first record."""
    try:
        _annotations(cls)
    except Mismatch as mismatch:
        raise ConfigurationError.of(
            "types", str(mismatch), "import it where the class stands, not under TYPE_CHECKING or inside a function"
        ) from None


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _model_fields(cls: type[pydantic.BaseModel]) -> dict[str, ClassField]:
    fields: dict[str, ClassField] = {}
    for name, item in cls.model_fields.items():
        alias = item.validation_alias if isinstance(item.validation_alias, str) else item.alias
        fields[alias or name] = ClassField(item.annotation, item.is_required())
    return fields


def takes_in_order(shape: Shape, names: Sequence[str | None]) -> bool:
    """True where the class's constructor takes exactly these values, in this order."""
    return shape.positional and list(names) == list(shape.fields or {})[: len(names)]


def builder(shape: Shape, names: Sequence[str | None]) -> Callable[[list[Any]], Any]:
    """The function from a record's values to the dict or instance; a name of None is a value that nobody asked for."""
    kept = [name for name in names if name is not None]
    indexes = [index for index, name in enumerate(names) if name is not None]
    cls = shape.cls
    if cls is None:
        return _dict_builder(kept, None if len(kept) == len(names) else indexes)
    pairs = list(zip(kept, indexes, strict=True))
    make = shape.make
    if issubclass(cls, pydantic.BaseModel):
        return lambda values: make({name: values[index] for name, index in pairs})
    return lambda values: make(**{name: values[index] for name, index in pairs})


def _dict_builder(names: list[str], indexes: list[int] | None) -> Callable[[list[Any]], dict[str, Any]]:
    if indexes is None:
        return lambda values: dict(zip(names, values, strict=False))
    kept = list(zip(names, indexes, strict=True))
    return lambda values: {name: values[index] for name, index in kept}


def _refused(name: str, error: Exception, cls: type | None) -> RecordError:
    """The RecordError for a payload class that does not take a record's values; no value and no key is quoted."""
    if isinstance(error, pydantic.ValidationError) and (told := told_errors(error, cls)):
        path, kind = told[0]
        where = f"{name}.{path}" if path else name
        return RecordError(Reason.SCHEMA_INCOMPATIBLE, f"{where} does not take the value: {kind}")
    return RecordError(Reason.SCHEMA_INCOMPATIBLE, f"{name} does not take the record: {type(error).__name__}")


# ------------------------------------------------------------------------------------------------- annotations


def plain(accepts: Any) -> Any:
    """An annotation without its wrappings (Annotated, NewType, type aliases, Final); what says nothing is ANY."""
    while True:
        origin = typing.get_origin(accepts)
        if origin is typing.Annotated or origin in (typing.Final, typing.ClassVar, typing.Required, typing.NotRequired):
            accepts = typing.get_args(accepts)[0]
        elif hasattr(accepts, "__supertype__"):
            accepts = accepts.__supertype__
        elif hasattr(accepts, "__value__"):
            accepts = accepts.__value__
        else:
            break
    return ANY if accepts is object or isinstance(accepts, TypeVar) else accepts


def members_of(accepts: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation: those of a Union, else itself."""
    accepts = plain(accepts)
    if typing.get_origin(accepts) in (typing.Union, types.UnionType):
        return tuple(inner for member in typing.get_args(accepts) for inner in members_of(member))
    return (accepts,)


def converter_to(accepts: Any, given: type) -> Callable[[Any], Any] | None:
    """How a value of type `given` becomes what an annotation accepts: None is "as it is".

    Raises:
        Mismatch: the annotation does not accept such a value.
    """
    members = members_of(accepts)
    if any(member is ANY or member is given for member in members) or (given is type(None) and None in members):
        return None
    for member in members:
        if typing.get_origin(member) is Literal and any(type(value) is given for value in typing.get_args(member)):
            return _one_of(frozenset(typing.get_args(member)), accepts)
        if isinstance(member, type) and issubclass(member, enum.Enum) and given in (str, int):
            return _member_of(member)
    raise Mismatch(f"{shown(accepts)} does not take {given.__name__}")


def _one_of(values: frozenset[Any], accepts: Any) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value not in values:
            raise RecordError(Reason.SCHEMA_INCOMPATIBLE, f"a value that is none of {shown(accepts)}")
        return value

    return convert


def _member_of(cls: type[enum.Enum]) -> Callable[[Any], Any]:
    by_value: dict[Any, enum.Enum] = {**{m.name: m for m in cls}, **{m.value: m for m in cls}}

    def convert(value: Any) -> Any:
        member = by_value.get(value)
        if member is None:
            raise RecordError(Reason.SCHEMA_INCOMPATIBLE, f"a value that {cls.__name__} does not have")
        return member

    return convert


def list_of(accepts: Any) -> tuple[Any, Callable[[list[Any]], Any] | None]:
    """What the items of an array have to be, and how the list becomes what is asked for (None: it stays a list).

    Raises:
        Mismatch: the annotation takes no array.
    """
    for member in members_of(accepts):
        origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
        if member is ANY or origin in _LISTS:
            return (arguments[0] if arguments else ANY), None
        if origin in (set, frozenset, abc.Set):
            return (arguments[0] if arguments else ANY), set if origin is set else frozenset
        if origin is tuple and (not arguments or arguments[1:] == (...,)):
            return (arguments[0] if arguments else ANY), tuple
    raise Mismatch(f"{shown(accepts)} does not take an array")


def values_of(accepts: Any) -> Any:
    """What the values of a map have to be. Raises Mismatch where the annotation takes no map."""
    for member in members_of(accepts):
        if member is ANY:
            return ANY
        arguments = typing.get_args(member)
        if (typing.get_origin(member) or member) in _MAPS and (not arguments or plain(arguments[0]) in (str, ANY)):
            return arguments[1] if arguments else ANY
    raise Mismatch(f"{shown(accepts)} does not take a map")


def shown(accepts: Any) -> str:
    """An annotation in words, for messages."""
    return accepts.__name__ if isinstance(accepts, type) and not typing.get_args(accepts) else str(accepts)
