"""The facts of this machine as a file: what ``gfxgraph doctor --json`` holds, and ``doctor --bundle``, redacted."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

from gfxgraph import __version__, files

_PRIVATE = (
    (re.compile(r"/(home|Users)/[^/\s\"']+"), r"/\1/***"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "***@***"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.)"), "*.*.*.*"),
    (re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[bp])[-_][A-Za-z0-9_-]{8,}"), "***"),
)


def redacted(text: str) -> str:
    """``text`` without names of users, addresses and keys."""
    for pattern, shown in _PRIVATE:
        text = pattern.sub(shown, text)
    return text


def write_bundle(path: Path, report: dict[str, object]) -> None:
    """Write one file for a bug report: facts, findings, defects that apply; redacted, readable, and JSON."""
    whole = {"gfxgraph": __version__, "python": platform.python_version(), **report}
    files.write(path, (redacted(json.dumps(whole, indent=2, ensure_ascii=False)) + "\n").encode())
