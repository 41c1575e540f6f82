"""Change single statements of a room and see whether the tests next to them notice.

    python tools/mutate.py --rooms callables capture --cover FOLDER [--jobs N]
    python tools/mutate.py --rooms callables capture --covered FOLDER --n 40 --seed 1 [--json FILE]

A mutant is one changed statement inside a function: a condition negated, ``and`` for ``or``, a comparison or a
constant changed, a call or an assignment to an attribute dropped. The file is changed in place, its own tests run,
and the file is put back, whatever happens. Its own tests are the four test files that execute the line and of whose
work the module is the largest share, as the first command has measured (it needs ``coverage``, which is no
dependency of the project). A failing test is run once more on the unchanged file and must pass there. What survives
is a missing test, code that nothing needs, or a mutant that means the same. Files with uncommitted changes are
refused.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
NEAREST = 4
LIMIT_S = 600
SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
COMPARED |= {ast.Is: "is", ast.IsNot: "is not"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the text between two offsets becomes another one."""

    file: str
    line: int
    kind: str
    begin: int
    end: int
    text: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its text."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    name = str(path.relative_to(ROOT))

    def made(node: ast.expr | ast.stmt, kind: str, new: str) -> Mutant:
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return Mutant(name, node.lineno, kind, begin, end, new)

    def said(node: ast.expr) -> str:
        return ast.get_source_segment(text, node) or ast.unparse(node)

    functions = [
        node for node in ast.walk(ast.parse(data)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    seen: set[tuple[int, int, str]] = set()
    for function in functions:
        for statement in function.body:
            for node in ast.walk(statement):
                for each in _of(node, made, said):
                    key = (each.begin, each.end, each.kind)
                    if key not in seen:
                        seen.add(key)
                        yield each


def _of(node: ast.AST, made, said) -> Iterator[Mutant]:  # type: ignore[no-untyped-def]
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield made(node.test, "condition negated", f"(not ({said(node.test)}))")
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield made(node, "and for or", "(" + word.join(f"({said(each)})" for each in node.values) + ")")
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        word = SWAPPED[COMPARED[type(node.ops[0])]]
        yield made(node, "comparison changed", f"({said(node.left)} {word} {said(node.comparators[0])})")
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        yield made(node, "constant changed", str(not node.value if type(node.value) is bool else node.value + 1))
    elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield made(node, "call dropped", "pass")
    elif isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
    ):
        yield made(node, "assignment dropped", "pass")


def _folder(room: str) -> Path:
    return next(SOURCE.glob(room), SOURCE / "gfxgraph" / room)


def _tests_of(rooms: list[str]) -> list[str]:
    """The test files that may be a module's own: the rooms' units, and the promises."""
    folders = [ROOT / "tests" / "conformance", *(ROOT / "tests" / "unit" / room for room in rooms)]
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("test_*.py"))


def cover(folder: Path, rooms: list[str], jobs: int) -> None:
    """Run each test file by itself and keep what it executes in ``folder``."""
    if importlib.util.find_spec("coverage") is None:
        sys.exit("mutate: --cover measures by the package coverage, which is not installed: pip install coverage")
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | ({"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 12) else {})

    def one(test: str) -> None:
        data = folder / test.replace("/", "-")
        command = [sys.executable, "-m", "coverage", "run", f"--data-file={data}", f"--source={SOURCE}"]
        command += ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
        subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=LIMIT_S, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, _tests_of(rooms)))


@cache
def _executed(folder: Path) -> dict[str, dict[str, set[int]]]:
    """By test file and by source file: the lines that ran."""
    # lazily: the tool's --help needs no coverage
    from coverage import CoverageData

    found: dict[str, dict[str, set[int]]] = {}
    for path in folder.glob("*.py"):
        data = CoverageData(str(path))
        data.read()
        files = {str(Path(name).relative_to(ROOT)): set(data.lines(name) or ()) for name in data.measured_files()}
        found[path.name.replace("-", "/")] = files
    return found


def nearest_tests(mutant: Mutant, folder: Path) -> list[str]:
    """Of the test files that execute the mutant's line, those of whose work its module is the largest share."""
    shares = []
    for test, files in _executed(folder).items():
        if mutant.line in files.get(mutant.file, ()):
            shares.append((len(files[mutant.file]) / sum(map(len, files.values())), test))
    return [test for _, test in sorted(shares, reverse=True)[:NEAREST]]


def failing(tests: list[str], jobs: int) -> list[str]:
    """The tests that fail; ["hang"] where they do not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    command += ["-n", str(jobs)] if jobs > 1 and len(tests) > 1 else []
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return ["hang"]
    found = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found or (["collection"] if done.returncode not in (0, 5) else [])


def tried(mutant: Mutant, folder: Path, jobs: int) -> dict[str, object]:
    """The mutant, the tests that ran and the one that noticed; '' where none did."""
    path = ROOT / mutant.file
    whole = path.read_bytes()
    tests, began = nearest_tests(mutant, folder), time.monotonic()
    try:
        path.write_bytes(whole[: mutant.begin] + mutant.text.encode() + whole[mutant.end :])
        found = failing(tests, jobs) if tests else []
    finally:
        path.write_bytes(whole)
    if found and "::" in found[0] and failing([found[0]], 1):
        found = []  # it fails without the mutant, too
    row = asdict(mutant) | {"was": whole[mutant.begin : mutant.end].decode(), "tests": tests}
    return row | {"noticed_by": found[0] if found else "", "took_s": round(time.monotonic() - began)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rooms", nargs="+", required=True, help="folders below src/gfxgraph, or packages beside it")
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cover", type=Path, metavar="FOLDER", help="measure what each test file executes")
    what.add_argument("--covered", type=Path, metavar="FOLDER", help="what was measured")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.cover is not None:
        cover(options.cover, options.rooms, options.jobs)
        return 0
    paths = sorted(path for room in options.rooms for path in _folder(room).rglob("*.py"))
    dirty = subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, text=True).stdout
    if dirty:
        sys.exit(f"mutate: src/ has uncommitted changes, and a mutant is made in place:\n{dirty}")
    drawn = random.Random(options.seed).sample([each for path in paths for each in mutants(path)], options.n)
    rows = []
    for number, mutant in enumerate(drawn, 1):
        rows.append(row := tried(mutant, options.covered, options.jobs))
        said = row["noticed_by"] or "SURVIVED"
        print(f"{number:3} {mutant.file}:{mutant.line} {mutant.kind}: {row['was']!r:.60} {said}", flush=True)
    n_noticed = sum(bool(row["noticed_by"]) for row in rows)
    print(f"mutate: {n_noticed} of {len(rows)} noticed, seed {options.seed}")
    if options.json is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        about = {"commit": commit, "python": platform.python_version(), "rooms": options.rooms, "seed": options.seed}
        told = about | {"noticed": n_noticed, "of": len(rows), "mutants": rows}
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
