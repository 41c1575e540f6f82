"""Run the tests with each torch under each Python, and with versions of engines; write docs/versions.md.

    python tools/test_versions.py                              every pair, then every engine
    python tools/test_versions.py --torch 2.11 --python 3.12   one pair; each option may be given several times
    python tools/test_versions.py transformers vllm==0.33.0    engines alone

Each pair gets an environment of its own in FOLDER (build/versions), made once: torch from PyPI, or from
TORCH_INDEX_URL, and what the tests import. One takes 3 to 6 GB; where the disk has no room for the next, those used
longest ago go, down to one. Each engine's version is installed into a folder that stands first on the path of the
Python that runs this. ``--quick`` runs QUICK alone, under this Python unless others are named, as CI does with 2.11.

What a run gave is a row of docs/versions.json, with its commit; the page is made of all rows. With each torch
benchmarks/bench_modules.py runs too, in the simulator: a module whose values are wrong, or that raises, is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines.listed import VERSIONS  # noqa: E402

TORCHES = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""The newest patch of each minor version."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that this machine lacks are left out, by name."""
TESTS = ["unit", "conformance", "programs", "examples"]
NOT_OF_TORCH = ["unit/tools", "unit/typing", "unit/gfxgraph_port", "unit/tests", "conformance/adapters"]
"""What reads sources or needs other packages."""
QUICK = [
    "programs",
    "unit/gfxgraph_simulator/test_runtime_streams.py",
    "unit/capture",
    "conformance/test_basic.py",
    "conformance/test_graphed.py",
    "conformance/test_function_state.py",
    "conformance/test_training_graphed.py",
    "conformance/test_failures.py",
]
"""By what differed between versions of torch: Dynamo's trace, autograd's bases, modes, flags of the dispatcher."""
PACKAGES = ["numpy", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "click", "rich", "hyperscan>=0.8"]
MORE_PACKAGES = ["unidiff", "packaging", "transformers>=5.17,<5.24"]
"""Without these the tests that want one are skipped."""
ROOM_GB = 9
"""For one environment, and pip's copy of its largest wheel."""
ENGINES = {
    "transformers": (
        ("5.17.0", "5.18.0", "5.19.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0", "5.24.0"),
        ["conformance/test_transformers.py"],
    ),
    "onnxruntime": (("1.31.1", "1.32.0"), ["conformance/adapters/test_onnxruntime.py"]),
    "vllm": ((VERSIONS["vllm"],), ["engines/test_vllm.py"]),
    "sglang": ((VERSIONS["sglang"],), ["engines/test_sglang.py"]),
}
"""Newest patch of each minor version, and the tests that concern it."""
Row = dict[str, Any]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--torch", action="append", metavar="2.11", help="a version, or the first numbers of one")
    options.add_argument("--python", action="append", metavar="3.12")
    options.add_argument("--quick", action="store_true", help="a few minutes' choice of the tests")
    options.add_argument("--tests", nargs="*", help="other files or folders of tests/; writes no row")
    options.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", "2")))  # noqa: TID251
    options.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    options.add_argument("--no-row", action="store_true", help="leave docs/versions.json as it is")
    options.add_argument("engines", nargs="*", help="NAME or NAME==VERSION")
    asked = options.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    if asked.torch or asked.python or not asked.engines:
        torches = [each for each in TORCHES if _is_asked(each, asked.torch)] or asked.torch
        this = [".".join(platform.python_version_tuple()[:2])] if asked.quick else None
        pythons = [each for each in PYTHONS if _is_asked(each, asked.python or this)] or asked.python
        found = {version: _python(version) for version in pythons}
        for torch in torches:
            rows += [_pair(asked, torch, version, path) for version, path in found.items() if path]
    engines = asked.engines or ([] if asked.torch or asked.python or asked.quick else list(ENGINES))
    for name in engines:
        what, _, version = name.partition("==")
        for each in [version] if version else ENGINES[what][0]:
            rows.append(_engine(asked, what, each))
    return 0 if rows and all(row["passed"] and not row["failed"] for row in rows) else 1


def _is_asked(version: str, asked: list[str] | None) -> bool:
    return not asked or any(f"{version}.".startswith(f"{each}.") for each in asked)


# ---- environments ----


def _python(version: str) -> str | None:
    """This Python, one on the PATH, or one of pyenv's."""
    if platform.python_version().startswith(f"{version}."):
        return sys.executable
    there = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    path = shutil.which(f"python{version}")
    works = path and subprocess.run([path, "-c", "import venv"], check=False, capture_output=True).returncode == 0
    found = path if works else str(there[-1]) if there else None
    if found is None:
        print(f"test_versions: no Python {version} on this machine: left out")
    return found


def _environment(asked: argparse.Namespace, torch: str, version: str, python: str) -> Path:
    """The pair's own Python, made if it is not there."""
    place = asked.folder / f"torch-{torch}-python-{version}"
    made, wanted = place / ".made", PACKAGES if asked.quick else PACKAGES + MORE_PACKAGES
    executable = place / "bin" / "python"
    if not made.exists():
        _make_room(asked.folder, place)
        began = time.monotonic()
        # The system's packages stay out of sight; a virtual environment's Python makes one like itself.
        subprocess.run([python, "-m", "venv", "--clear", place], check=True)
        index = os.environ.get("TORCH_INDEX_URL")  # noqa: TID251
        _pip(executable, f"torch=={torch}", *(["--index-url", index] if index else []))
        made.write_text("")
        print(f"test_versions: torch {torch} installed in {time.monotonic() - began:.0f} s", flush=True)
    have = set(made.read_text().splitlines())
    if not have.issuperset(wanted):
        _pip(executable, *wanted)
        made.write_text("\n".join(sorted(have | set(wanted))))
    os.utime(made)
    return executable


def _pip(executable: Path, *what: str) -> None:
    line = [
        executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--no-cache-dir",
    ]
    subprocess.run([*line, *what], check=True)


def _make_room(folder: Path, but: Path) -> None:
    """Remove environments, the one used longest ago first, until there is room for another."""
    others = sorted(folder.glob("torch-*/.made"), key=lambda made: made.stat().st_mtime)
    while shutil.disk_usage(folder).free < ROOM_GB * 1e9 and len(others) > 1:
        place = others.pop(0).parent
        if place != but:
            print(f"test_versions: removes {place.name}, for room")
            place.unlink() if place.is_symlink() else shutil.rmtree(place)


# ---- runs ----


def _pair(asked: argparse.Namespace, torch: str, version: str, python: str) -> Row:
    tests = asked.tests or (QUICK if asked.quick else TESTS)
    about: Row = {"what": "torch", "version": torch, "tests": "quick" if asked.quick else "all"}
    about["name"] = f"torch-{torch}-python-{version}"
    try:
        executable = _environment(asked, torch, version, python)
    except subprocess.CalledProcessError as error:  # pip has said why
        print(f"test_versions: torch {torch}, Python {version}: not installed: {error}")
        return {"passed": 0, "failed": ["not installed"]}
    ignored = [] if asked.tests else [f"--ignore=tests/{each}" for each in NOT_OF_TORCH]
    return _run(
        asked, about, executable, {}, [*_paths(tests), *ignored, "-n", str(asked.jobs), "--dist", "worksteal"]
    )


def _engine(asked: argparse.Namespace, what: str, version: str) -> Row:
    more: dict[str, str] = {}
    if what in VERSIONS:
        files = asked.folder / "engines"
        subprocess.run([sys.executable, ROOT / "tools" / "fetch_engines.py", files], check=True)
        more["GFXGRAPH_ENGINE_FILES"] = str(files)
    else:
        place = asked.folder / f"{what}-{version}"
        if not (place / what).exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--target", str(place), f"{what}=={version}"], check=True)
        more["PYTHONPATH"] = str(place)
    about: Row = {"what": what, "version": version, "tests": "all", "name": f"{what}-{version}"}
    return _run(asked, about, Path(sys.executable), more, _paths(ENGINES[what][1]))


def _paths(tests: list[str]) -> list[str]:
    return [f"tests/{test.removeprefix('tests/')}" for test in tests]


def _run(asked: argparse.Namespace, about: Row, python: Path, more: dict[str, str], tests: list[str]) -> Row:
    environment = {**os.environ, **more}  # noqa: TID251
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [more.get("PYTHONPATH"), str(ROOT / "src"), str(ROOT)]))
    # Nothing that one pair's compiler made is another's.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(asked.folder / "inductor" / about["name"])
    probe = "import platform, torch; print(torch.__version__, platform.python_version())"
    seen = subprocess.run(
        [python, "-c", probe], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    about["torch"], about["python"] = seen.split()
    about |= {"commit": _commit(), "date": time.strftime("%Y-%m-%d")}
    print(
        f"test_versions: {about['what']} {about['version']}, torch {about['torch']}, Python {about['python']}",
        flush=True,
    )
    report = asked.folder / f"{about.pop('name')}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    command = [python, "-m", "pytest", "-p", "tests.progress", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run([*command, *tests], env=environment, cwd=ROOT, check=False)
    row = {**about, "minutes": round((time.monotonic() - began) / 60, 1), **_counted(report)}
    if about["what"] == "torch" and not asked.tests:
        row["modules"], bad = _modules(python, report.with_suffix(".modules.json"), environment)
        row["failed"] += bad
    print(f"test_versions: {row['passed']} passed, {len(row['failed'])} failed, {row['skipped']} skipped", flush=True)
    if not asked.tests and not asked.no_row:
        _write(row)
    return row


def _modules(python: Path, written: Path, environment: dict[str, str]) -> tuple[str, list[str]]:
    """Of the ordinary modules, how many cost more CPU than eager; and those that are wrong or raise."""
    written.unlink(missing_ok=True)
    what = [ROOT / "benchmarks" / "bench_modules.py", "--simulate", "--reps", "5", "--peers", "eager,graphed"]
    subprocess.run([python, *what, "--write", written], env=environment, cwd=ROOT, check=False)
    if not written.exists():
        return "-", ["bench_modules: it did not end"]
    found = json.loads(written.read_text(encoding="utf-8"))
    bad = [
        f"bench_modules::{each['module']}-{each['mode']}"
        for each in found["figures"]
        if each["peers"]["graphed"]["is_right"] is not True
    ]
    above = [f"{count['above eager']} of {count['modules']}" for count in found["counted"].values()]
    return "; ".join(above), bad


def _commit() -> str:
    """The commit that runs, with a plus where a file of the package or of the tests differs from it."""
    asks = ["git", "describe", "--always", "--abbrev=8", "--exclude=*"], ["git", "status", "--short", "src", "tests"]
    head, changed = (subprocess.run(ask, cwd=ROOT, capture_output=True, text=True).stdout.strip() for ask in asks)
    return f"{head}+" if changed else head


def _counted(report: Path) -> Row:
    """Numbers of tests by outcome, and the names of those that failed; nothing ran where there is no report."""
    if not report.exists():
        return {"passed": 0, "skipped": 0, "failed": ["no test ran to its end"]}
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = sorted({f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in bad})
    return {"passed": len(cases) - len(bad) - len(skipped), "skipped": len(skipped), "failed": names}


# ---- the page ----

ROWS = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"


def _write(row: Row) -> None:
    """Put the row where an earlier one of the same versions stood, and make the page anew."""
    rows = json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else []
    rows = sorted([each for each in rows if _key(each) != _key(row)] + [row], key=_key)
    text = ",\n".join(json.dumps(each) for each in rows)
    ROWS.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    PAGE.write_text("\n".join(_page(rows)) + "\n", encoding="utf-8")
    print(f"test_versions: wrote {PAGE.relative_to(ROOT)}")


def _key(row: Row) -> tuple[object, ...]:
    """A version of Python is its first two numbers; engines come after torch."""
    numbers = [int(part) for part in row["version"].split(".") if part.isdigit()]
    is_engine = row["what"] != "torch"
    python = "" if is_engine else row["python"].rpartition(".")[0]
    return is_engine, row["what"], numbers, python, row["tests"]


def _page(rows: list[Row]) -> Iterator[str]:
    yield from (
        "# Tested versions",
        "",
        "Written by `make test-versions` from `versions.json`. All runs were in the simulator, on a CPU, and compare",
        "results and tokens with eager execution. Other versions are not refused: see [engines](engines.md). A",
        "commit with a plus had changes that were not committed yet. The figures of [GPUs](evidence.md) are",
        "of torch 2.11, where their files name no other. Dearer: of the ordinary modules of",
        "`benchmarks/bench_modules.py`, those whose call costs more of the CPU by a graph than eagerly, in",
        "the simulator, where the CPU computes as well; without gradients, then with.",
        "",
        "| What | Version | torch | Python | Tests | Passed | Failed | Skipped | Dearer | Commit | Date |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    for one in rows:
        names = ("what", "version", "torch", "python", "tests", "passed", "failed", "skipped", "modules", "commit")
        names += ("date",)
        cells = {"modules": "-", **one, "failed": len(one["failed"])}
        yield f"| {' | '.join(str(cells[name]) for name in names)} |"
    if any(one["failed"] for one in rows):
        yield from ("", "What failed:", "")
    for one in rows:
        where = f"{one['what']} {one['version']}, Python {one['python']}, {one['tests']}"
        yield from (f"- {where}: `{name}`" for name in one["failed"])
    all_of = ", ".join(f"`tests/{each}`" for each in TESTS)
    yield from (
        "",
        "The tests of each:",
        "",
        f"- torch, all: {all_of}, without what reads sources or needs other packages:",
    )
    yield from (f"  - `tests/{each}`" for each in NOT_OF_TORCH)
    yield from ("- torch, quick, as in CI:", *(f"  - `tests/{each}`" for each in QUICK))
    for what, (_, tests) in ENGINES.items():
        yield from (f"- {what}:", *(f"  - `tests/{test}`" for test in tests))


if __name__ == "__main__":
    sys.exit(main())
