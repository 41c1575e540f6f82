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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_is_right(program: Path) -> None:
    """The program ends well under ``gfxgraph run``, and what it compared was right."""
    torch = pytest.importorskip("torch")
    where = "--allow-cuda" if torch.cuda.is_available() and torch.version.cuda else "--simulate"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
    command = [sys.executable, "-m", "gfxgraph", "run", where, str(program)]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("right: "), done.stdout
