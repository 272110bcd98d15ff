"""What fastavro's reader does with four bad records, and ours does not: the reasons why it is our own.

Where one of these fails because fastavro does better, that reason is gone: take it out of DESIGN.md, and when all four
are gone, take fastavro's reader.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.support.avro import framed, opened, record_schema, refusal_of, varint
from tidegate.consumers.codecs.codec import Decoded
from tidegate.inbox.outcome import Reason

CHAIN = record_schema("Chain", {"next": ["null", "Chain"]})
DEEP = b"\x02" * 50_000 + b"\x00"
"""5,000 levels are enough on Linux; ten times as many wherever a stack is larger."""
CRASHING = f"""
import io, sys, fastavro
fastavro.schemaless_reader(io.BytesIO(sys.stdin.buffer.read()), fastavro.parse_schema({CHAIN!r}), None)
"""
KIND = {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
NULLS = {"type": "array", "items": "null"}


def as_fastavro_reads(schema: Any, content: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(content), fastavro.parse_schema(schema), None)


def test_a_deep_record_ends_the_process_in_fastavro_and_itself_here(tmp_path: Path) -> None:
    """A record within a record within a record: fastavro's compiled code overflows the stack, and all ends."""
    ended = subprocess.run([sys.executable, "-c", CRASHING], input=DEEP, capture_output=True, check=False, timeout=60)
    assert ended.returncode in (-signal.SIGSEGV, -signal.SIGBUS), ended.stderr.decode()

    codec = opened(tmp_path, {1: CHAIN})
    bad, good = codec.decode_many([framed(1, DEEP), framed(1, b"\x00")])
    assert isinstance(good, Decoded)
    assert str(bad) == "nested too deeply (50006 bytes)"


@pytest.mark.parametrize(
    ("schema", "content", "wrong"), [(KIND, b"\x01", "C"), (["string", "int"], b"\x01\x0a", 5)], ids=["enum", "union"]
)
def test_a_negative_index_is_a_wrong_value_in_fastavro_and_refused_here(
    tmp_path: Path, schema: Any, content: bytes, wrong: object
) -> None:
    """The index -1 counts from the end in Python: a value that nobody wrote."""
    assert as_fastavro_reads(schema, content) == wrong

    codec = opened(tmp_path, {1: record_schema("R", {"v": schema})})
    assert refusal_of(codec, 1, content).reason is Reason.UNDECODABLE


def test_a_count_of_nulls_fills_the_memory_in_fastavro_and_is_refused_here(tmp_path: Path) -> None:
    """Nulls take no bytes, so no body is too short for their count: ten bytes can ask for 2^60, these for a million."""
    content = varint(1_000_000) + b"\x00"
    assert len(as_fastavro_reads(NULLS, content)) == 1_000_000

    codec = opened(tmp_path, {1: record_schema("R", {"v": NULLS})})
    assert refusal_of(codec, 1, content).reason is Reason.UNDECODABLE


def test_a_decimal_with_too_many_digits_is_rounded_in_fastavro_and_refused_here(tmp_path: Path) -> None:
    """123456.78 where four digits are allowed."""
    content = bytes.fromhex("0800bc614e")
    assert as_fastavro_reads(MONEY, content) == Decimal("123500")

    codec = opened(tmp_path, {1: record_schema("R", {"v": MONEY})})
    assert str(refusal_of(codec, 1, content)).startswith("decimal_precision")
