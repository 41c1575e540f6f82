"""gfxgraph.native: setting the preload library up and reading what it wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gfxgraph import native
from gfxgraph.errors import GfxGraphError


def test_a_program_is_preloaded_and_its_report_is_read(plain: Path, tmp_path: Path) -> None:
    """The environment that we make is one that works, and the lines say what happened."""
    report = tmp_path / "report.json"
    environ = native.preload_environment(os.environ, report, plain / "libgfxgraph_preload.so")
    environ |= {"GFX_FAKE_FAIL": "1:2:hipGraphLaunch", "GFXGRAPH_DIAG": "0"}
    program = [str(plain / "tests/app_linked"), "linked", str(plain / "fake/libamdhip64.so.6"), "plain"]
    subprocess.run(program, env=environ, check=True, capture_output=True)
    seen = native.read_report(report)
    assert seen is not None
    assert (seen.runtime, seen.version, seen.captures, seen.captured_nodes) == ("hip", (7, 2, 26015), 1, 6)
    lines = [line for line in seen.lines() if not line.startswith("mean time")]
    assert lines[1:] == [
        "captures: 1, of 6 nodes; failed: 0",
        "graph execs made: 1; updated: 0; launches: 3; rebuilt: 0",
        "fallback: 0 instantiations and 1 launches refused, 6 nodes run one by one",
    ]


def test_other_preloaded_libraries_stay(tmp_path: Path) -> None:
    """Ours goes first; what was there is kept."""
    library = tmp_path / "lib.so"
    library.touch()
    environ = native.preload_environment({"LD_PRELOAD": "/x.so", "A": "b"}, tmp_path / "r.json", library)
    assert environ["LD_PRELOAD"] == f"{library}:/x.so"
    assert environ["A"] == "b"


def test_without_the_companion_it_is_said(tmp_path: Path) -> None:
    """An error that names the package to install, before any program is started."""
    with pytest.raises(GfxGraphError) as caught:
        native.preload_environment({}, tmp_path / "r.json", tmp_path / "missing.so")
    assert caught.value.code == "native_library_unusable"
    assert "./native" in str(caught.value)


def test_no_report_where_nothing_was_called(tmp_path: Path) -> None:
    """A program without graph calls writes none."""
    assert native.read_report(tmp_path / "none.json") is None
