"""What was measured in one process, kept for later ones: rows of JSON in the user's state folder.

A file that cannot be read or written is no reason to fail: it is reported once and left alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gfxgraph import config, files
from gfxgraph.process import process


class Kept:
    """One file of rows by key, replaced as a whole.

    Args:
        name: the file's, without its ending.
        rows: what messages call its rows.
        version: a file of another one is none.
        most: rows; beyond, those kept longest ago go.
    """

    def __init__(self, name: str, rows: str, version: int, most: int, level: int = logging.WARNING) -> None:
        self.path: Path | None = None
        with suppress(FileNotFoundError):  # this user's home is not known: nothing is kept
            self.path = config.state_folder() / f"{name}.json"
        self._called, self._version, self._most, self._level = rows, version, most, level
        self._rows: dict[str, Any] | None = None

    def get(self, key: str) -> dict[str, Any]:
        """The row kept under a key; empty where there is none that can be read."""
        if self._rows is None:
            self._rows = self._read()
        row = self._rows.get(key)
        return row if isinstance(row, dict) else {}

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row; what other processes have kept meanwhile stays."""
        if self.path is None:
            return
        rows = self._read()
        rows[key] = {**row, "at": round(time.time())}
        self._rows = dict(sorted(rows.items(), key=lambda item: _kept_at(item[1]))[-self._most :])
        try:
            files.new_folder(self.path.parent, 0o700)
            files.write(self.path, json.dumps({"version": self._version, "rows": self._rows}, indent=1))
        except OSError as error:
            self._report("not_kept", str(error.strerror))

    def _read(self) -> dict[str, Any]:
        if self.path is None:
            return {}
        try:
            data = files.read_json(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            self._report("not_read", str(error))
            return {}
        rows = data.get("rows") if isinstance(data, dict) and data.get("version") == self._version else None
        return rows if isinstance(rows, dict) else {}

    def _report(self, kind: str, why: str) -> None:
        kind = f"{self._called}_{kind}"
        # A path may hold what no terminal takes.
        reason = f"{self.path}: {why}".encode("utf-8", "backslashreplace").decode()
        state = process.current()
        if state is not None:
            state.report(kind, reason, level=self._level)
        else:
            process.log.log(self._level, "%s: %s", kind.replace("_", " "), reason)


def key_of(about: dict[str, Any]) -> str:
    """A key for plain data."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _kept_at(row: Any) -> float:
    """When a row was kept; one that somebody else wrote counts as the oldest."""
    at = row.get("at", 0) if isinstance(row, dict) else 0
    return at if isinstance(at, (int, float)) else 0
