"""What processes left in a folder (``leave.py``), and what ``gfxgraph bench`` printed, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gfxgraph.errors import CommandError


def read(folder: str | Path) -> list[dict[str, Any]]:
    """What every process left in ``folder``, in the order in which they ended."""
    found = []
    for path in Path(folder).glob("gfxgraph-*.json"):
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # a process that died while it wrote
        if isinstance(table, dict) and _KINDS.items() <= {key: type(value) for key, value in table.items()}.items():
            found.append(table)
    return sorted(found, key=lambda table: table["at"])


_KINDS = {"pid": int, "argv": list, "at": float, "stats": dict}
"""By these a process's file is told from others of that name."""


def read_bench(path: Path) -> dict[str, Any]:
    """What ``gfxgraph bench --json`` printed.

    Raises:
        CommandError: `file_unusable`.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CommandError("file_unusable", path=path, problem=f"it is no JSON: {error}") from error
    if not (isinstance(table, dict) and {"provenance", "results"} <= table.keys()):
        raise CommandError("file_unusable", path=path, problem="gfxgraph bench --json prints something else")
    return table
