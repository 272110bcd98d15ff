"""Bytecode of the product, for the processes that tests start.

They may not write any themselves: of a test's own module that is written twice within a second the first one's would be
taken for the second's. Without any they would compile the whole product each time, which is half of their start.
"""

from __future__ import annotations

import compileall
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("consumers", "dlq", "inbox", "projections", "tests")


def compile_all() -> None:
    """Whatever is new since the last time. A tree that is read only is read as it is."""
    for folder in FOLDERS:
        compileall.compile_dir(ROOT / folder, quiet=2)
