"""Runs command lines one after the other in this process, as `tidegate` does; for tests that need very many of them.

Reads a JSON list of {"words": [...], "token": "..."} from standard input; writes a list of [code, out, err].
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from tidegate.consumers.cli.entry import main


def run(words: list[str], token: str) -> tuple[int, str, str]:
    """One command line, by whoever holds the token."""
    os.environ["TIDEGATE_TOKEN"] = token
    sys.argv = ["tidegate", *words]
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return code, _text(out), _text(err)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


if __name__ == "__main__":
    lines: list[dict[str, Any]] = json.load(sys.stdin)
    json.dump([run(line["words"], line["token"]) for line in lines], sys.stdout)
