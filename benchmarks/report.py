"""How a benchmark says what it measured: a table on the terminal and a JSON file, always in the same form."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path("build/bench")


def report(name: str, figures: Mapping[str, float], goals: Mapping[str, str], details: Mapping[str, Any]) -> None:
    """Print `figures` beside their `goals` and write both with what machine they were measured on."""
    table = Table(title=f"bench {name}")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("goal")
    for figure, value in figures.items():
        table.add_row(figure, f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}", goals.get(figure, ""))
    Console().print(table)
    FOLDER.mkdir(parents=True, exist_ok=True)
    written = {
        "bench": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": figures,
        "goals": goals,
        "details": details,
        "machine": machine(),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(written, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """What it ran on: enough to know why figures of two runs differ."""
    load = os.getloadavg()
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "load_1m_at_end": round(load[0], 2),
    }
