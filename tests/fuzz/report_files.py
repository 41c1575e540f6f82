"""Fuzz target: the files that one process writes and another reads: reports of the native libraries and of processes.

Anybody may have written them. Whatever the bytes, reading gives an answer or one of the errors that the reader names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gfxgraph import native
from gfxgraph.reporting import process_files

_PRELOAD = {
    "pid": 1, "library": "libamdhip64.so.7", "runtime": "hip", "runtime_version": 70226015, "asked_by": ["a.so"],
    "captures": 1, "captures_failed": 0, "captured_nodes": 3, "rebuilds": 0, "set_aside": 1, "made_again": 1,
    "fallback": {"instantiate": 1, "launch": 1, "nodes": 2, "refused": 1}, "not_recorded": {"hipMalloc": 2},
    "calls": {"hipGraphLaunch": {"calls": 2, "timed": 1, "ns": 5}},
    "failures": [{"api": "hipGraphLaunch", "status": 900, "times": 1}], "execs": [{"nodes": 3}],
    "deepbind_cleared": [], "deepbind_kept": ["b.so"], "namespaces": [],
}  # fmt: skip
_COMPAT = {
    "library": "x",
    "hip": 7,
    "symbols": {"cudaGraphLaunch": {"how": "mapped", "to": "hipGraphLaunch", "calls": 1}},
}
_REFUSALS = (ValueError, OSError)


def seeds() -> Iterator[bytes]:
    """Each report as it is written; without one of its keys; with each value of another kind."""
    for report in (_PRELOAD, _COMPAT):
        yield json.dumps(report).encode()
        for key in report:
            yield json.dumps({name: value for name, value in report.items() if name != key}).encode()
            for other in (None, [], {}, "x", -1, 1e300, [[]], {"a": []}, True):
                yield json.dumps({**report, key: other}).encode()
    yield from (b"", b"[]", b"null", b"{", b"[" * 5000, b'{"pid":' * 5000, b"\xff\xfe", b'"' + b"a" * 100_000)


def run(data: bytes) -> None:
    """Read ``data`` as each kind of report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        path.write_bytes(data)
        for read in (
            lambda: list((native.read_report(path) or native.Report).lines()),
            lambda: process_files.read(folder),
        ):
            try:
                read()
            except _REFUSALS:
                continue
