"""`tidegate config`: every setting in force, where it came from, secrets masked."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.table import Table

from .. import config_report
from ..layers import Effective
from .options import OUT


def show(effective: Effective, as_json: bool) -> None:
    """Print the settings as a table, or as JSON for a machine."""
    rows = config_report.rows(effective)
    if as_json:
        OUT.print_json(json.dumps([asdict(row) for row in rows]))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row.key, row.value or "-", row.source, style="dim" if row.source == "default" else None)
    OUT.print(table)
