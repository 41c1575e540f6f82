"""AMD's own graph unit tests, each with the preload library and without it: the outcomes must be the same.

    python tests/emulator/hip_tests.py PROGRAM LIBRARY --out FILE.json [--limit SECONDS]

PROGRAM holds the tests: catch/unit/graph of hip-tests in ROCm/rocm-systems, compiled with ``hipcc -O1
--offload-arch=gfx1030`` (at -O0 the emulator's scratch memory is wrong) together with catch/hipTestMain and
linked with Catch2. LIBRARY is libgfxgraph_preload.so. Every test runs in a process of its own under rocjitsu.
A test that is too slow for the emulator in one of the two runs says nothing and is counted apart.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARCH = "gfx1030"
TIMEOUT_S = 40
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
        return "too slow"
    words = {0: "passed", SKIPPED_STATUS: "skipped"}
    if done.returncode in words:
        return words[done.returncode]
    # Through a shell a death by signal is 128 and its number.
    return f"died of signal {done.returncode % 128}" if not 0 <= done.returncode <= 128 else "failed"


def compare(program: str, library: Path, limit_s: float) -> dict[str, Any]:
    command = [*emulator(), program]
    end = time.monotonic() + limit_s
    runs: dict[str, list[str]] = {}
    totals: collections.Counter[str] = collections.Counter()
    wanted = [name for name in names(command) if not any(word in name for word in LEFT_OUT)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        plain = {**os.environ, "GFXGRAPH_DIAG": "0"}
        ours = {**plain, "LD_PRELOAD": str(library), "GFXGRAPH_PRELOAD_REPORT": str(report)}
        for name in wanted:
            if time.monotonic() > end:
                break
            report.unlink(missing_ok=True)
            runs[name] = [outcome(command, name, plain), outcome(command, name, ours)]
            if report.exists():
                told = json.loads(report.read_text())
                totals["captures"] += told["captures"]
                launches = (told["calls"].get(f"hipGraphLaunch{form}", {}) for form in ("", "_spt"))
                totals["launches"] += sum(call.get("calls", 0) for call in launches)
                totals["nodes run one by one"] += told["fallback"]["nodes"]
                totals["failing calls"] += sum(failure["times"] for failure in told["failures"])
    decided = {name: pair for name, pair in runs.items() if "too slow" not in pair}
    differ = {name: pair for name, pair in decided.items() if pair[0] != pair[1]}
    return {
        "tests": len(wanted),
        "run": len(runs),
        "decided": len(decided),
        "without": dict(collections.Counter(pair[0] for pair in runs.values())),
        "with": dict(collections.Counter(pair[1] for pair in runs.values())),
        "differ": differ,
        "too slow in one of the two": sorted(runs.keys() - decided.keys()),
        "not passed in either": {name: pair[0] for name, pair in decided.items() if "passed" not in pair},
        "seen by the library": dict(totals),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("library", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=3600.0, help="stop after so many seconds")
    given = parser.parse_args()
    figures = compare(given.program, given.library.resolve(), given.limit)
    commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    report = {
        "what": "AMD's graph unit tests (hip-tests) with libgfxgraph_preload.so and without it",
        "device": f"{ARCH} emulated",
        "commit": commit.stdout.strip(),
        "limit_of_a_test_s": TIMEOUT_S,
        **figures,
    }
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if figures["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
