"""Which statements of each room ordinary programs execute, which only tests do, and which neither.

    python tools/reach.py run FOLDER [--tests PATH ...]   runs tests/programs, then those tests, under coverage.py
    python tools/reach.py table FOLDER [--json FILE]      the shares by room, and by file with --files

Needs ``coverage`` (not a dependency of the project: ``pip install coverage``). A statement that nothing reaches is a
question, not a verdict: what makes failures safe is reached by failures alone. Child processes count as far as they
end by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
KINDS = ("programs", "tests")
SETTINGS = """[run]
source = {source}
data_file = {data}
parallel = true
sigterm = true
patch = _exit, execv, fork, subprocess
disable_warnings = no-data-collected, couldnt-parse, trace-changed
"""


def run(folder: Path, tests: list[str], jobs: int) -> None:
    """Run the programs, then the tests, each kind with data files of its own in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        paths = ["tests/programs"] if kind == "programs" else tests
        if not paths:
            continue
        settings = folder / f"{kind}.rc"
        settings.write_text(SETTINGS.format(source=SOURCE, data=folder / kind), encoding="utf-8")
        env = os.environ | {"COVERAGE_PROCESS_START": str(settings), "COVERAGE_RCFILE": str(settings)}
        if sys.version_info >= (3, 12):
            env["COVERAGE_CORE"] = "sysmon"  # each line is told once: no cost afterwards
        spread = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
        command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", *spread, *paths]
        subprocess.run(command, cwd=ROOT, env=env, check=False)  # a test that fails has reached what it reached


def reached(folder: Path) -> dict[str, dict[str, set[int]]]:
    """By kind and by file below ``src``: the lines that ran."""
    # lazily: the tool's --help needs no coverage
    from coverage import CoverageData

    found: dict[str, dict[str, set[int]]] = {}
    for kind in KINDS:
        found[kind] = defaultdict(set)
        for part in folder.glob(f"{kind}.*"):
            if part.suffix == ".rc":
                continue
            data = CoverageData(str(part))
            data.read()
            for name in data.measured_files():
                inner = name.partition("/src/")[2]
                found[kind][inner].update(data.lines(name) or ())
    return found


def shares(folder: Path) -> dict[str, dict[str, int]]:
    """By file: its statements, and how many programs reach, only tests reach, and neither does."""
    # lazily, as above
    from coverage.python import PythonParser

    ran = reached(folder)
    found: dict[str, dict[str, int]] = {}
    for path in sorted(SOURCE.glob("gfxgraph*/**/*.py")):
        inner = str(path.relative_to(SOURCE))
        parser = PythonParser(text=path.read_text(encoding="utf-8"), filename=inner)
        parser.parse_source()
        programs = parser.translate_lines(ran["programs"][inner]) & parser.statements
        tests = parser.translate_lines(ran["tests"][inner]) & parser.statements
        found[inner] = {
            "statements": len(parser.statements),
            "programs": len(programs),
            "only tests": len(tests - programs),
            "neither": len(parser.statements - tests - programs),
        }
    return found


def by_room(files: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The sums of each room, with its files and how many of them programs pass through."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, counts in files.items():
        package, _, inner = name.partition("/")
        room = rooms[package if package != "gfxgraph" else inner.partition("/")[0] + "/" * ("/" in inner)]
        for what, n in counts.items():
            room[what] += n
        room["files"] += 1
        room["files of programs"] += counts["programs"] > 0
    return {name: dict(counts) for name, counts in sorted(rooms.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tests", nargs="*", default=[], help="paths for pytest; with run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", action="store_true", help="a line for each file, not only for each room")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what == "run":
        run(options.folder.resolve(), options.tests, options.jobs)
        return 0
    files = shares(options.folder)
    rooms = by_room(files)
    for name, counts in (files if options.files else rooms).items():
        print(f"{name:40} " + "  ".join(f"{what} {n:5}" for what, n in counts.items()))
    if options.json is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
        about = {"commit": commit, "python": platform.python_version(), "device": "simulator", "rooms": rooms}
        options.json.write_text(json.dumps(about | {"files": files}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
