"""AMD's own graph unit tests, each with the preload library and without it: the outcomes must be the same.

    python tests/emulator/hip_tests.py build SOURCES CATCH2 FOLDER
    python tests/emulator/hip_tests.py run LIBRARY PROGRAM... --out FILE.json [--limit SECONDS] [--jobs N]

SOURCES is hip-tests' folder ``catch`` in ROCm/rocm-systems, CATCH2 an installed Catch2 3; FOLDER gets one program
of unit/graph and one of unit/streamperthread. What this HIP's headers do not know is left out by name. At -O0 the
emulator's scratch memory is wrong, hence -O1. LIBRARY is libgfxgraph_preload.so.

Every test runs in a process of its own under rocjitsu, first without the library. One that is too slow for the
emulator then says nothing and is counted apart. Outcomes are compared with their number of assertions; where they
differ, both runs are repeated, and what is not the same twice in the same way is unsteady, not different. The
order is shuffled, so that a run which ends at its limit is a sample; FILE.json of the same library is gone on with.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARCH = "gfx1030"
TIMEOUT_S = 30
TOO_SLOW = "too slow"
SKIPPED_STATUS = 4  # Catch2's: every case of the run was skipped
REPEATS = 3  # of both runs, where they differed
# Long runs, which the emulator cannot end in time.
LEFT_OUT = ("Perf", "MultiThread", "Complex", "Complx", "Stress")
# What fails without the library and passes with it, as it should.
MENDED = {"Unit_hipStreamEndCapture_Negative_InvalidatedStateReset": "HIP before 7.14 leaves the stream invalid"}
MAIN = ("main.cc", "hip_test_context.cc", "hip_test_features.cc", "hip_test_params.cc", "hip_test_listener.cc")
FLAGS = ("-O1", "-w", "-std=c++17", "-DHT_AMD=1", "-D__HIP_PLATFORM_AMD__")

Outcomes = dict[str, list[str]]


def build(sources: Path, catch2: Path, folder: Path) -> list[str]:
    """Compile both programs into ``folder``; return the files that this HIP's headers do not allow."""
    left_out = []
    places = [*(sources / "hipTestMain" / name for name in MAIN)]
    for unit in ("graph", "streamperthread"):
        places += sorted((sources / "unit" / unit).glob("*.cc"))
    includes = [sources / part for part in ("include", "external/picojson", "unit/graph", "hipgen")]
    common = ["hipcc", f"--offload-arch={ARCH}", *FLAGS, *(f"-I{path}" for path in (*includes, catch2 / "include"))]
    for place in places:
        made = folder / place.parent.name / f"{place.name}.o"
        made.parent.mkdir(parents=True, exist_ok=True)
        if not made.exists() and subprocess.run([*common, "-c", place, "-o", made], capture_output=True).returncode:
            left_out.append(place.name)
    for unit in ("graph", "streamperthread"):
        objects = [*(folder / "hipTestMain").glob("*.o"), *(folder / unit).glob("*.o")]
        linked = ["hipcc", f"--offload-arch={ARCH}", *objects, catch2 / "lib/libCatch2.a", "-lhiprtc"]
        subprocess.run([*linked, "-o", folder / f"{unit}_tests"], check=True)
    return left_out


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
    status = done.returncode
    if status < 0 or status > 128:  # through a shell a death by signal is 128 and its number
        return f"died of signal {-status if status < 0 else status - 128}"
    verdict = {0: "passed", SKIPPED_STATUS: "skipped"}.get(status, "failed")
    counted = re.findall(rb"(\d+) assertions?|assertions: +(\d+)", done.stdout)
    return f"{verdict}, {(counted[-1][0] or counted[-1][1]).decode()} assertions" if counted else verdict


def pair(command: list[str], name: str, library: Path) -> list[str]:
    """What the test says without the library and with it; once where it is too slow to say anything."""
    plain = {**os.environ, "GFXGRAPH_DIAG": "0"}
    without = outcome(command, name, plain)
    if without == TOO_SLOW:
        return [TOO_SLOW, TOO_SLOW]
    return [without, outcome(command, name, {**plain, "LD_PRELOAD": str(library)})]


def steadily(command: list[str], name: str, library: Path) -> list[str]:
    """The pair of outcomes, each of them every outcome that was seen where they differed."""
    first = pair(command, name, library)
    if first[0] == first[1] or TOO_SLOW in first:
        return first
    seen = [first, *(pair(command, name, library) for _ in range(REPEATS))]
    return [" | ".join(sorted({each[side] for each in seen})) for side in (0, 1)]


def is_unsteady(outcomes: list[str]) -> bool:
    """Whether a test has several outcomes, of which the library's are not others than those without it."""
    without, with_us = (set(each.split(" | ")) for each in outcomes)
    return len(without | with_us) > 1 and bool(without & with_us)


def is_mended(outcomes: list[str]) -> bool:
    """Whether a test failed without the library and passed with it."""
    return [each.split(",")[0] for each in outcomes] == ["failed", "passed"]


def compare(
    programs: Iterable[str],
    library: Path,
    limit_s: float,
    known: Outcomes,
    command: list[str] | None = None,
    jobs: int = 1,
) -> dict[str, Any]:
    """Run what is not known yet, for at most ``limit_s``, and sum up."""
    before = emulator() if command is None else command
    end = time.monotonic() + limit_s
    listed = {name: program for program in programs for name in names([*before, program])}
    wanted = {name: at for name, at in listed.items() if not any(word in name for word in LEFT_OUT)}
    runs = {name: seen for name, seen in known.items() if name in wanted}
    waiting = [name for name in wanted if name not in runs]
    random.Random(1).shuffle(waiting)  # noqa: S311  (an order, not a secret)

    def say(name: str) -> list[str]:
        return [] if time.monotonic() > end else steadily([*before, wanted[name]], name, library)

    with ThreadPoolExecutor(jobs) as pool:
        runs |= {name: seen for name, seen in zip(waiting, pool.map(say, waiting)) if seen}
    decided = {name: seen for name, seen in runs.items() if TOO_SLOW not in seen}
    unsteady = {name: seen for name, seen in decided.items() if is_unsteady(seen)}
    mended = {name: why for name, why in MENDED.items() if is_mended(decided.get(name, []))}
    steady = [seen for name, seen in decided.items() if name not in unsteady]
    verdicts = [[seen[side].split(",")[0] for seen in steady] for side in (0, 1)]
    return {
        "listed": len(listed),
        "tests": len(wanted),
        "run": len(runs),
        "too_slow": len(runs) - len(decided),
        "decided": len(decided),
        "without": dict(collections.Counter(verdicts[0])),
        "with": dict(collections.Counter(verdicts[1])),
        "differ": {
            name: seen
            for name, seen in decided.items()
            if seen[0] != seen[1] and name not in unsteady and name not in mended
        },
        "mended": mended,
        "unsteady": unsteady,
        "outcomes": dict(sorted(runs.items())),
    }


def outcomes_in(path: Path, library: str) -> Outcomes:
    """What an earlier run of this library found; nothing where there was none."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    found: Outcomes = earlier["outcomes"] if earlier.get("library_sha256") == library else {}
    return found


def write(programs: list[str], library: Path, out: Path, limit_s: float, jobs: int = 1) -> dict[str, Any]:
    """Compare, and write ``out``."""
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    figures = compare(programs, library.resolve(), limit_s, outcomes_in(out, digest), jobs=jobs)
    commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    report = {
        "what": "AMD's graph unit tests (hip-tests) with libgfxgraph_preload.so and without it",
        "device": f"{ARCH} emulated",
        "commit": commit.stdout.strip(),
        "library_sha256": digest,
        "limit_of_a_test_s": TIMEOUT_S,
        **figures,
    }
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("build")
    for name in ("sources", "catch2", "folder"):
        making.add_argument(name, type=Path)
    running = commands.add_parser("run")
    running.add_argument("library", type=Path)
    running.add_argument("programs", nargs="+")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--limit", type=float, default=3600.0, help="stop after so many seconds")
    running.add_argument("--jobs", type=int, default=1, help="tests at a time")
    given = parser.parse_args()
    if given.command == "build":
        sys.stdout.write("".join(f"left out: {name}\n" for name in build(given.sources, given.catch2, given.folder)))
        return 0
    return 1 if write(given.programs, given.library, given.out, given.limit, given.jobs)["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
