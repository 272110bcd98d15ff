"""Unions: the branch's name decides, never the value's looks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.avro import body, framed, one, opened, record_schema, value_of
from tidegate.consumers.codecs.codec import Decoded

AA = record_schema("shop.Aa", {"x": "int", "y": "string"})
BB = record_schema("shop.Bb", {"x": "int", "y": "string"})


@dataclass(frozen=True)
class Aa:
    x: int
    y: str


@dataclass(frozen=True)
class Bb:
    x: int
    y: str


def test_look_alike_records_are_told_apart_by_their_branch(tmp_path: Path) -> None:
    """A record of a union keeps the full name of its branch, as a dict and as an instance.

    Case: B26
    Parts: real (the case's wire index)
    Red when: avro._decoded takes the first branch that fits instead of the index
    """
    content = b"\x02" + b"\x0a\x02t"
    plain, mapped = tmp_path / "plain", tmp_path / "mapped"
    plain.mkdir()
    mapped.mkdir()
    decoded = one(opened(plain, {1: [AA, BB]}), 1, content)
    assert isinstance(decoded, Decoded)
    assert (decoded.type, decoded.value) == ("shop.Bb", {"x": 5, "y": "t"})
    decoded = one(opened(mapped, {1: [AA, BB]}, types=[Aa, Bb]), 1, content)
    assert isinstance(decoded, Decoded)
    assert (decoded.type, decoded.value) == ("shop.Bb", Bb(5, "t"))


def test_what_is_written_again_has_the_same_type(tmp_path: Path) -> None:
    """An instance, and a named dict, are written as the branch that they name, byte for byte.

    Case: B26
    Parts: real (fastavro)
    Red when: writing.Preparation.branch takes the first branch whatever its name
    """
    codec = opened(tmp_path, {1: [AA, BB]})
    content = body([AA, BB], ("shop.Bb", {"x": 5, "y": "t"}))
    assert codec.encode("t", Bb(5, "t")) == framed(1, content).value
    assert codec.encode("t", ("shop.Bb", {"x": 5, "y": "t"})) == framed(1, content).value


def test_a_look_alike_inside_a_record_keeps_its_name_too(tmp_path: Path) -> None:
    outer = record_schema("Outer", {"inner": ["null", AA, BB]})
    codec = opened(tmp_path, {1: outer})
    value: dict[str, Any] = {"inner": ("shop.Bb", {"x": 5, "y": "t"})}
    content = body(outer, value)
    assert value_of(codec, 1, content) == value
    assert codec.encode("t", ("Outer", value)) == framed(1, content).value


GUESSES: list[tuple[Any, str]] = [
    ({"inner": {"x": 5, "y": "t"}}, "in 2 of the branches"),
    ({"inner": 5}, "in 0 of the branches"),
    ({"inner": ("shop.Cc", {})}, "has no branch shop.Cc"),
    ({"inner": ("shop.Bb", {"x": 5, "y": "t", "z": 1})}, "does not have: z"),
    ({"inner": ("shop.Bb", {"x": 5})}, "Outer.inner.y is missing"),
]


@pytest.mark.parametrize(("value", "text"), GUESSES)
def test_nothing_is_guessed_when_writing(tmp_path: Path, value: Any, text: str) -> None:
    """Writing is strict: an ambiguous branch, a field too many or too few is an error, never a guess.

    Case: B26
    Parts: real (files)
    Red when: writing.Preparation._union takes the first of several fitting branches
    """
    codec = opened(tmp_path, {1: record_schema("Outer", {"inner": ["null", AA, BB]})})
    with pytest.raises(ValueError, match=text):
        codec.encode("t", ("Outer", value))


@pytest.mark.parametrize("content", [b"\x04", b"\x01", b"\x80\x80\x04", b""])
def test_an_index_that_names_no_branch_is_undecodable(tmp_path: Path, content: bytes) -> None:
    assert not isinstance(one(opened(tmp_path, {1: [AA, BB]}), 1, content), Decoded)
    inner = tmp_path / "inner"
    inner.mkdir()
    codec = opened(inner, {1: record_schema("R", {"v": ["null", "int"], "w": ["int", "null", "string"]})})
    assert not isinstance(one(codec, 1, content), Decoded)
    assert not isinstance(one(codec, 1, b"\x00" + content), Decoded)
