"""The script that holds AMD's graph tests against themselves (tests/emulator/hip_tests.py), on a program of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "emulator"))
import hip_tests  # noqa: E402

# Says what Catch2 says; `count` is what an earlier run left behind.
PROGRAM = """#!/bin/sh
case "$1" in
  --list-tests) echo Unit_same; echo Unit_fails; echo Unit_less; echo Unit_crash; echo Unit_odd; echo Unit_slow
                echo Unit_Perf; echo other;;
  Unit_same) echo "All tests passed (3 assertions in 1 test case)";;
  Unit_fails) echo "assertions: 5 | 4 passed | 1 failed"; exit 1;;
  Unit_less) if [ -n "$LD_PRELOAD" ]; then echo "All tests passed (1 assertion in 1 test case)"
             else echo "All tests passed (2 assertions in 1 test case)"; fi;;
  Unit_crash) [ -z "$LD_PRELOAD" ] || kill -SEGV $$;;
  Unit_odd) echo x >> "$0.count"; [ $(($(wc -l < "$0.count") % 3)) = 2 ] && exit 1; exit 0;;
  Unit_slow) exec sleep 5;;
esac
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "tests.sh"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return str(path)


def test_what_differs_is_told(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By verdict, by number of assertions, by signal; what cannot be decided is set apart."""
    monkeypatch.setattr(hip_tests, "TIMEOUT_S", 1)
    seen = hip_tests.compare([program], tmp_path / "lib.so", 60, {}, command=[])
    assert (seen["listed"], seen["tests"], seen["run"], seen["too_slow"], seen["decided"]) == (7, 6, 6, 1, 5)
    assert seen["differ"] == {
        "Unit_less": ["passed, 2 assertions", "passed, 1 assertions"],
        "Unit_crash": ["passed", "died of signal 11"],
    }
    assert seen["unsteady"] == {"Unit_odd": ["failed | passed", "failed | passed"]}
    assert seen["outcomes"]["Unit_fails"] == ["failed, 5 assertions"] * 2
    assert sum(seen["with"].values()) == 4


def test_what_is_known_is_not_run_again(program: str, tmp_path: Path) -> None:
    """A run that ended at its limit is gone on with."""
    known = {
        f"Unit_{name}": ["passed", "passed"] for name in ("same", "fails", "less", "crash", "odd", "slow", "gone")
    }
    seen = hip_tests.compare([program], tmp_path / "lib.so", 60, known, command=[])
    assert seen["differ"] == {} and seen["run"] == 6 and not Path(f"{program}.count").exists()
