"""Reads, without torch, the files that processes wrote (``write_process_file.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gfxgraph import files


def read(folder: str | Path) -> list[dict[str, Any]]:
    """The data of every process in ``folder``, in the order in which they ended."""
    found = []
    for path in Path(folder).glob("gfxgraph-*.json"):
        try:
            found.append(read_one(folder, path.name))
        except (OSError, ValueError):
            continue  # a process that died while writing
    return sorted(found, key=lambda table: table["at"])


def read_one(folder: str | Path, name: str) -> dict[str, object]:
    """The data of one process.

    Raises:
        OSError: not a regular file, or not readable.
        ValueError: it contains something else.
    """
    table = _understood(files.read_inside(str(folder), name, files.MOST_NBYTES))
    if isinstance(table, dict) and _KINDS.items() <= {key: type(value) for key, value in table.items()}.items():
        return table
    raise ValueError("it is not a report of a process")


def _understood(data: bytes) -> object:
    try:
        return json.loads(data)  # a program's own figure may well be infinite
    except RecursionError:
        raise ValueError("nested too deeply") from None


_KINDS = {"pid": int, "argv": list, "at": float, "stats": dict}
"""The fields that identify a process's file."""
