"""Ordinary programs of users, whole: each checks its own results against eager and says that they are right.

They are also what `tools/reach.py` measures: which statements of each room such programs execute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith(("test_", "__")))
ONE_BY_ONE = """
import runpy, sys, traceback
import torch
for program in sys.argv[1:]:
    print("program", program, flush=True)
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception:
        traceback.print_exc(file=sys.stdout)
    torch._dynamo.reset()
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    """What each program printed, by its path: one process under ``gfxgraph run`` runs them all, for speed."""
    torch = pytest.importorskip("torch")
    runner = tmp_path_factory.mktemp("programs") / "one_by_one.py"
    runner.write_text(ONE_BY_ONE)
    where = "--allow-cuda" if torch.cuda.is_available() and torch.version.cuda else "--simulate"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
    command = [sys.executable, "-m", "gfxgraph", "run", where, str(runner), *map(str, PROGRAMS)]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("program ")[1:])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_is_right(printed: dict[str, str], program: Path) -> None:
    """The program ends well, and what it compared was right."""
    assert printed[str(program)].startswith("right: "), printed[str(program)]
