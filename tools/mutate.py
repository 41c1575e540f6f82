"""Change single statements of a room and see whether the tests next to them notice.

    python tools/mutate.py --rooms callables capture --n 40 --seed 1 [--json FILE]

A mutant is one changed statement inside a function: a condition negated, ``and`` for ``or``, a comparison or a
constant changed, a call or an assignment to an attribute dropped. The file is changed in place, the test files
nearest to it run (its own in ``tests/unit`` first, then those that name the module and what it defines most often),
and the file is put back, whatever happens. A failing test is run once more on the unchanged file and must pass
there. What survives is a missing test, code that nothing needs, or a mutant that means the same. Files with
uncommitted changes are refused.
"""

from __future__ import annotations

import argparse
import ast
import json
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gfxgraph"
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


@cache
def _texts_of_tests() -> dict[Path, str]:
    folders = (ROOT / "tests" / "unit", ROOT / "tests" / "conformance")
    return {path: path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("test_*.py")}


def nearest_tests(file: str) -> list[str]:
    """The test files for a module, its own first."""
    path = ROOT / file
    inner = path.relative_to(SOURCE)
    dotted = "gfxgraph." + ".".join(inner.with_suffix("").parts)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, kinds) and len(node.name) > 3]
    own = ROOT / "tests" / "unit" / inner.parent / f"test_{inner.stem}.py"

    def near(test: Path, text: str) -> float:
        named = sum(len(re.findall(rf"\b{re.escape(name)}\b", text)) for name in names)
        stem = inner.stem in test.stem.split("_") or test.stem == f"test_{inner.stem}"
        return (
            1000 * (test == own)
            + 20 * text.count(dotted)
            + 10 * stem
            + min(named, 50)
            + 2 * (inner.parts[0] in test.parts)
        )

    ranked = sorted(
        ((near(*each), each[0]) for each in _texts_of_tests().items()), key=lambda pair: (-pair[0], pair[1])
    )
    return [str(test.relative_to(ROOT)) for score, test in ranked[:NEAREST] if score > 0]


def failing(tests: list[str], jobs: int) -> list[str]:
    """The tests that fail; ["hang"] where they do not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    command += ["-n", str(jobs)] if jobs > 1 and len(tests) > 1 else []
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return ["hang"]
    found = re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)", done.stdout, re.MULTILINE)
    return found or (["collection"] if done.returncode not in (0, 5) else [])


def tried(mutant: Mutant, jobs: int) -> dict[str, object]:
    """The mutant, the tests that ran and the one that noticed; '' where none did."""
    path = ROOT / mutant.file
    whole = path.read_bytes()
    tests, began = nearest_tests(mutant.file), time.monotonic()
    try:
        path.write_bytes(whole[: mutant.begin] + mutant.text.encode() + whole[mutant.end :])
        found = failing(tests, jobs)
    finally:
        path.write_bytes(whole)
    if found and "::" in found[0] and failing([found[0]], 1):
        found = []  # it fails without the mutant, too
    row = asdict(mutant) | {"was": whole[mutant.begin : mutant.end].decode(), "tests": tests}
    return row | {"noticed_by": found[0] if found else "", "took_s": round(time.monotonic() - began)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rooms", nargs="+", required=True, help="folders below src/gfxgraph")
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    paths = sorted(path for room in options.rooms for path in (SOURCE / room).rglob("*.py"))
    dirty = subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, text=True).stdout
    if dirty:
        sys.exit(f"mutate: src/ has uncommitted changes, and a mutant is made in place:\n{dirty}")
    drawn = random.Random(options.seed).sample([each for path in paths for each in mutants(path)], options.n)
    rows = []
    for number, mutant in enumerate(drawn, 1):
        rows.append(row := tried(mutant, options.jobs))
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
