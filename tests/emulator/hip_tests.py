"""AMD's own graph unit tests, each with the preload library and without it: the outcomes must be the same.

    python tests/emulator/hip_tests.py PROGRAM LIBRARY --out FILE.json [--limit SECONDS]

PROGRAM holds the tests: catch/unit/graph of hip-tests in ROCm/rocm-systems, compiled with ``hipcc -O1
--offload-arch=gfx1030`` (at -O0 the emulator's scratch memory is wrong) together with catch/hipTestMain and
linked with Catch2. LIBRARY is libgfxgraph_preload.so. Every test runs in a process of its own under rocjitsu.
A test that is too slow for the emulator in one of the two runs says nothing and is counted apart. The order is
shuffled, so that a run which ends at its limit is a sample; FILE.json of the same library is gone on with.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARCH = "gfx1030"
TIMEOUT_S = 20
TOO_SLOW = "too slow"
SKIPPED_STATUS = 4  # Catch2's: every case of the run was skipped
# Long runs, which the emulator cannot end in time.
LEFT_OUT = ("Perf", "MultiThread", "Complex", "Complx", "Stress")


def emulator() -> list[str]:
    rocjitsu = shutil.which("rocjitsu")
    if rocjitsu is None:
        sys.exit("needs AMD's emulator: rocjitsu is not on the PATH")
    configs = Path(rocjitsu).resolve().parent.parent / "share" / "rocjitsu" / "configs"
    config = os.environ.get("GFXGRAPH_EMULATOR_CONFIG") or str(sorted(configs.glob(f"{ARCH}*.json"))[0].resolve())
    return [rocjitsu, "--config", config, "--"]


def names(command: list[str]) -> list[str]:
    done = subprocess.run([*command, "--list-tests", "--verbosity", "quiet"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith("Unit_")]


def outcome(command: list[str], name: str, environ: dict[str, str]) -> str:
    try:
        done = subprocess.run([*command, name], capture_output=True, env=environ, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return TOO_SLOW
    words = {0: "passed", SKIPPED_STATUS: "skipped"}
    if done.returncode in words:
        return words[done.returncode]
    # Through a shell a death by signal is 128 and its number.
    return f"died of signal {done.returncode % 128}" if not 0 <= done.returncode <= 128 else "failed"


def compare(program: str, library: Path, limit_s: float, known: dict[str, list[str]]) -> dict[str, Any]:
    command = [*emulator(), program]
    end = time.monotonic() + limit_s
    wanted = [name for name in names(command) if not any(word in name for word in LEFT_OUT)]
    runs = {name: pair for name, pair in known.items() if name in wanted}
    waiting = [name for name in wanted if name not in runs]
    random.Random(1).shuffle(waiting)  # noqa: S311  (an order, not a secret)
    plain = {**os.environ, "GFXGRAPH_DIAG": "0"}
    for name in waiting:
        if time.monotonic() > end:
            break
        runs[name] = [outcome(command, name, environ) for environ in (plain, {**plain, "LD_PRELOAD": str(library)})]
    decided = {name: pair for name, pair in runs.items() if TOO_SLOW not in pair}
    return {
        "tests": len(wanted),
        "run": len(runs),
        "decided": len(decided),
        "without": dict(collections.Counter(pair[0] for pair in decided.values())),
        "with": dict(collections.Counter(pair[1] for pair in decided.values())),
        "differ": {name: pair for name, pair in decided.items() if pair[0] != pair[1]},
        "outcomes": dict(sorted(runs.items())),
    }


def outcomes_in(path: Path, library: str) -> dict[str, list[str]]:
    """What an earlier run of this library found; nothing where there was none."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = earlier["outcomes"] if earlier.get("library_sha256") == library else {}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("library", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=3600.0, help="stop after so many seconds")
    given = parser.parse_args()
    library = hashlib.sha256(given.library.read_bytes()).hexdigest()
    figures = compare(given.program, given.library.resolve(), given.limit, outcomes_in(given.out, library))
    commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    report = {
        "what": "AMD's graph unit tests (hip-tests) with libgfxgraph_preload.so and without it",
        "device": f"{ARCH} emulated",
        "commit": commit.stdout.strip(),
        "library_sha256": library,
        "limit_of_a_test_s": TIMEOUT_S,
        **figures,
    }
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if figures["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
