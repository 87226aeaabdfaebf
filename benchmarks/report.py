"""Rows of results, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def write_json(path: Path | None, rows: Sequence[Row]) -> None:
    """Write the list of rows, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(list(rows), indent=1) + "\n")


def table(title: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print some columns of the rows."""
    out = Table(title=title, box=None, pad_edge=False)
    for k, c in enumerate(columns):
        out.add_column(c, justify="left" if k == 0 else "right", no_wrap=True)
    for r in rows:
        out.add_row(*(_text(r.get(c)) for c in columns))
    Console(width=160).print(out)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
