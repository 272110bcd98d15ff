"""Runs command lines one after the other in this process, as `tidegate` does; for tests that need very many of them.

Reads a JSON list of {"words": [...], "token": "..."} from standard input; writes a list of [code, out, err]. With
`--one-by-one` each line of the input is one of these, and each line of the output its answer.
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


def one_by_one() -> None:
    """Answer each before the next one is read."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        sys.stdout.write(json.dumps(run(asked["words"], asked["token"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if "--one-by-one" in sys.argv:
        one_by_one()
    else:
        lines: list[dict[str, Any]] = json.load(sys.stdin)
        json.dump([run(line["words"], line["token"]) for line in lines], sys.stdout)
