"""Hold what may only get better under ``src/``: code lines by room, complexity, length of functions, and the like.

    python tools/ratchet.py                              fails where a number is above the one in ratchet.json
    python tools/ratchet.py --write                      writes today's numbers there; refused where one rose
    python tools/ratchet.py --write --buys FRAGMENT.md   writes also what rose, if that fragment of changelog.d/
                                                         names the promise to users (ARCHITECTURE.md) that it buys

A code line is neither blank nor comment nor docstring. A room is a folder of ``src/gfxgraph``, a file
beside them, or a package beside it.
Complexity is McCabe's, as ruff counts it. What a cold call costs its reader is counted by ``tools/follow_call.py``.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
NUMBERS = Path(__file__).with_suffix(".json")
PROMISES = ROOT / "ARCHITECTURE.md"
COMPLEX = 10
LONG = 60
"""Lines of one function, its docstring and those within it included."""
SHOWN = 5
SHARED_BY_INTENT = {
    name: "compat/ gives 1.1.0's signatures under 1.1.0's names; the package gives today's"
    for name in ("ConditionalGraph", "DeviceInfo", "RedZone", "ShapeBucketPool")
}
"""Names that two files may define, each with the reason."""


@dataclass(frozen=True, order=True)
class Found:
    """One place, with how much of it there is."""

    n: int
    where: str


def measured() -> dict[str, list[Found]]:
    """By name of the measure: its places, the worst first."""
    found: dict[str, list[Found]] = {"complex functions": list(_complex()), "long functions": [], "Any": []}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.glob("gfxgraph*/**/*.py"))}
    found["shared class names"] = list(
        shared_class_names({path.relative_to(ROOT): tree for path, tree in trees.items()})
    )
    for path, tree in trees.items():
        where = path.relative_to(ROOT)
        found["long functions"] += [Found(n, f"{where}:{line} {name}") for n, line, name in long_functions(tree)]
        n_any = sum(1 for _ in vague_annotations(tree))
        if n_any:
            found["Any"].append(Found(n_any, str(where)))
    return {name: sorted(places, reverse=True) for name, places in found.items()}


def _complex() -> Iterator[Found]:
    setting = f"lint.mccabe.max-complexity={COMPLEX}"
    line = ["check", "--isolated", "--select", "C901", "--config", setting, "--output-format", "json"]
    line += map(str, SOURCE.glob("gfxgraph*"))
    done = subprocess.run([sys.executable, "-m", "ruff", *line], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"ratchet: ruff did not run: {done.stderr.strip()}")
    for each in json.loads(done.stdout):
        name, n = re.findall(r"`(\w+)` is too complex \((\d+) >", each["message"])[0]
        where = Path(each["filename"]).relative_to(ROOT)
        yield Found(int(n), f"{where}:{each['location']['row']} {name}")


def long_functions(tree: ast.AST, limit: int = LONG) -> Iterator[tuple[int, int, str]]:
    """Lines, first line and name of each function above the limit."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            n = (node.end_lineno or node.lineno) - node.lineno + 1
            if n > limit:
                yield n, node.lineno, node.name


def shared_class_names(trees: Mapping[Path, ast.AST]) -> Iterator[Found]:
    """Class names that two or more files define: in how many, and where."""
    defined: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for name in sorted({node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}):
            defined.setdefault(name, []).append(str(path))
    for name, files in defined.items():
        if len(files) > 1 and name not in SHARED_BY_INTENT:
            yield Found(len(files), f"{name} in {', '.join(files)}")


def vague_annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Annotations of arguments, results and variables in which ``Any`` stands."""
    for node in ast.walk(tree):
        said: ast.expr | None = None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            said = node.returns
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            said = node.annotation
        if said is not None and any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(said)):
            yield said


def code_lines(text: str) -> int:
    """How many lines hold code: neither blank nor comment nor docstring (or another text that is a statement)."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def code_lines_by_room(source: Path) -> dict[str, int]:
    """Code lines of ``source/gfxgraph`` by room, of the packages beside it, and of all together under ``src/``."""
    rooms: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        package, *inner = path.relative_to(source).parts
        room = package if package != "gfxgraph" else inner[0] + "/" * (len(inner) > 1)
        rooms[room] += code_lines(path.read_text(encoding="utf-8"))
    return {f"code lines of {room}": rooms[room] for room in sorted(rooms)} | {"code lines of src/": rooms.total()}


def cold_call() -> dict[str, int]:
    """What a reader opens of a first call of ``graphed``, counted by ``follow_call.py`` in its own process."""
    tool = Path(__file__).with_name("follow_call.py")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "call.json")
        done = subprocess.run([sys.executable, str(tool), "--json", str(result)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"ratchet: {tool.name} did not run: {done.stderr.strip()}")
        counts = json.loads(result.read_text(encoding="utf-8"))
    return {f"{name} of a cold graphed call": counts[name] for name in ("files", "returns")}


def promises(text: str) -> list[str]:
    """The promises' names: the first column of the table under ARCHITECTURE.md's heading of that name."""
    table = text.partition("## Promises")[2].partition("\n## ")[0]
    return re.findall(r"^\| \*\*(.+?)\*\*", table, re.MULTILINE)


def promise_bought(fragment: Path) -> str:
    """The promise that a changelog fragment names; '' where it names none, or is not there."""
    text = fragment.read_text(encoding="utf-8") if fragment.is_file() else ""
    names = promises(PROMISES.read_text(encoding="utf-8"))
    return next((name for name in names if name.lower() in text.lower()), "")


def numbers(found: dict[str, list[Found]]) -> dict[str, int]:
    """What is committed: how many there are, and the worst where one function can be bad alone."""
    return {
        f"functions more complex than {COMPLEX}": len(found["complex functions"]),
        "complexity of the most complex function": max((f.n for f in found["complex functions"]), default=0),
        f"functions of more than {LONG} lines": len(found["long functions"]),
        "lines of the longest function": max((f.n for f in found["long functions"]), default=0),
        "annotations with Any": sum(f.n for f in found["Any"]),
        "class names defined in two files": len(found["shared class names"]),
    }


def judged(now: dict[str, int], held: dict[str, int]) -> tuple[list[str], list[str]]:
    """What rose, and what fell, in words."""
    rose = [f"{name}: {n}, and {held.get(name, 0)} are held" for name, n in now.items() if n > held.get(name, 0)]
    fell = [f"{name}: {n}, down from {held[name]}" for name, n in now.items() if n < held.get(name, 0)]
    return rose, fell


def main() -> int:
    parser = argparse.ArgumentParser(description="hold what may only get better under src/")
    parser.add_argument("--write", action="store_true", help="write what fell to ratchet.json")
    parser.add_argument("--buys", type=Path, metavar="FRAGMENT", help="the changelog fragment that pays for a rise")
    options = parser.parse_args()
    found = measured()
    now = numbers(found) | code_lines_by_room(SOURCE) | cold_call()
    rose, fell = judged(now, json.loads(NUMBERS.read_text(encoding="utf-8")))
    if rose and options.write and options.buys is not None:
        bought = promise_bought(options.buys)
        if bought:
            print(f"ratchet: raised for the promise {bought!r}: {'; '.join(rose)}")
            rose = []
        else:
            sys.stderr.write(f"ratchet: {options.buys} names none of the promises in {PROMISES.name}\n")
    for line in rose:
        sys.stderr.write(f"ratchet: {line}\n")
    if rose:
        for name, places in found.items():
            worst = ", ".join(f"{each.where} ({each.n})" for each in places[:SHOWN])
            sys.stderr.write(f"  {name}, the worst: {worst}\n")
        sys.stderr.write(
            "  A fix pays for itself: delete as much in the same room, or refuse the case (a clear error, or eager"
            " with its reason).\n  To raise a number: python tools/ratchet.py --write --buys FRAGMENT.md\n"
        )
    elif options.write:
        NUMBERS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    elif fell:
        print(f"ratchet: better: {'; '.join(fell)}. To hold it: python tools/ratchet.py --write")
    return 1 if rose else 0


if __name__ == "__main__":
    sys.exit(main())
