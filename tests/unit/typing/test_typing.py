"""What ``mypy --strict`` knows of graphed functions, by the example beside this file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[3]
EXAMPLE = Path(__file__).with_name("example.py")


def test_parameters_and_results_are_the_functions_and_mistakes_are_refused():
    """Errors exactly where the example says; every other line passes, with the types that it asserts.

    With the settings of ``make check``, whose cache it shares: torch's own types are not followed.
    """
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", str(EXAMPLE)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"MYPYPATH": "src"}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    refused = {number for number, line in enumerate(lines, 1) if "# refused" in line}
    assert {int(line.split(":")[1]) for line in errors} == refused, done.stdout
    assert all("example.py" in line for line in errors), done.stdout
