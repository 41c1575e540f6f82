"""The kernels in Triton's interpreter, which needs a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.gfxgraph_kernels.conftest import HAS_TRITON, IS_INTERPRETING

HERE = Path(__file__).parent
NO_TRITON = "Triton is not installed here; pip install triton==3.8.0 where torch has brought none"


@pytest.mark.timeout(300)
@pytest.mark.skipif(not HAS_TRITON, reason=NO_TRITON)
@pytest.mark.skipif(IS_INTERPRETING, reason="this is that process")
def test_in_the_interpreter():
    """Every test that needs the interpreter passes there, and there are some."""
    wanted = [str(HERE / "test_kernels_numbers.py"), f"{HERE / 'test_modules.py'}::test_steps_in_the_interpreter"]
    command = [sys.executable, "-m", "pytest", "-o", "addopts=-q", "-p", "no:cacheprovider", *wanted]
    made = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    if "only 0-dimensional arrays can be converted to Python scalars" in made.stdout:
        pytest.skip("the interpreter of this Triton (3.5, torch 2.9) needs a NumPy older than 2.4")
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-2000:]
    n_passed = re.search(r"(\d+) passed", made.stdout)
    assert n_passed is not None and int(n_passed[1]) >= 40, made.stdout[-500:]
