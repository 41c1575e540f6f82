"""What processes left in a folder (``leave.py``), and what ``gfxgraph bench`` printed, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gfxgraph import files
from gfxgraph.errors import CommandError


def read(folder: str | Path) -> list[dict[str, Any]]:
    """What every process left in ``folder``, in the order in which they ended."""
    found = []
    for path in Path(folder).glob("gfxgraph-*.json"):
        try:
            found.append(read_one(folder, path.name))
        except (OSError, ValueError):
            continue  # a process that died while it wrote
    return sorted(found, key=lambda table: table["at"])


def read_one(folder: str | Path, name: str) -> dict[str, Any]:
    """What one process left.

    Raises:
        OSError: no regular file, or one that cannot be read.
        ValueError: it holds something else.
    """
    table = _understood(files.read_inside(str(folder), name, files.MOST_NBYTES))
    if isinstance(table, dict) and _KINDS.items() <= {key: type(value) for key, value in table.items()}.items():
        return table
    raise ValueError("it is no report of a process")


def _understood(data: bytes) -> object:
    try:
        return json.loads(data)  # a figure of a program's may well be infinite
    except RecursionError:
        raise ValueError("nested too deeply") from None


_KINDS = {"pid": int, "argv": list, "at": float, "stats": dict}
"""By these a process's file is told from others of that name."""


def read_bench(path: Path) -> dict[str, Any]:
    """What ``gfxgraph bench --json`` printed.

    Raises:
        CommandError: `file_unusable`.
    """
    try:
        table = _understood(path.read_bytes())
    except ValueError as error:
        raise CommandError("file_unusable", path=path, problem=f"it is no JSON: {error}") from error
    if not (isinstance(table, dict) and {"provenance", "results"} <= table.keys()):
        raise CommandError("file_unusable", path=path, problem="gfxgraph bench --json prints something else")
    return table
