"""Writes the figures of the last runs into benchmarks/README.md: `python -m benchmarks.figures`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import FOLDER

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
NOT_SHOWN = ("samples", "rounds")
"""Details of a run that are too long for a page; the JSON has them."""


def section(run: dict[str, Any]) -> str:
    """One benchmark's table, and what it was measured on."""
    goals = run["goals"]
    rows = [f"| `{name}` | {shown(value)} | {goals.get(name, '')} |" for name, value in run["figures"].items()]
    details = ", ".join(f"{key} {shown(value)}" for key, value in run["details"].items() if key not in NOT_SHOWN)
    machine = run["machine"]
    where = f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}"
    measured = f"{run['at'][:10]}: {details}; {where}; load at the end {machine['load_1m_at_end']}."
    return "\n".join(
        [f"### {run['bench']}", "", "| figure | measured | goal |", "|---|---:|---|", *rows, "", measured, ""]
    )


def shown(value: float) -> str:
    """Three digits that count, no more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def main() -> None:
    """Replace what stands between the marks."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(
        before + BEGIN + "\n" + "\n".join(section(run) for run in runs) + "\n" + END + after, encoding="utf-8"
    )


if __name__ == "__main__":
    main()
