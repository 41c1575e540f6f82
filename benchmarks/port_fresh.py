"""Every figure of `gfxgraph port` on ports that nobody read before, hipify alone beside it.

    python benchmarks/port_fresh.py MIRRORS --set fresh5 --keep FOLDER > result.json

For each row of ``port_repos.toml`` of that set the state before the port is unpacked, audited, fixed and, where a HIP
compiler is on the PATH, compiled. To measure another version of gfxgraph put its ``src`` first on PYTHONPATH.

- **found**: the lines that the port changed, as ``port_recall.py`` counts them, parted by ``port_lines.py`` into
  those that name something of CUDA's or of a warp's and others: flagged by the audit; flagged by it, by the compiler
  after the first fix, or edited by ``fix --loop``.
- **identical**: lines that the port put into files that were there before, ``#if``, ``#else`` and ``#endif`` aside,
  which ``fix --loop`` put into the same file too; the same of ``fix --hipify`` and of hipify alone. White
  space does not count.
- **units**: what compiles as the sources stand, after hipify alone, after ``fix --loop``.

``--keep`` writes the findings for ``port_noise.py``, which draws those that a person judges.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import port_recall
from port_lines import NAMED
from unidiff.patch import PatchSet

from gfxgraph_port import hipify
from gfxgraph_port.audit import audit
from gfxgraph_port.build.compiler import find_compiler
from gfxgraph_port.build.judge import ARCHS
from gfxgraph_port.build.units import read_tree
from gfxgraph_port.fix.loop import LoopOutcome, loop
from gfxgraph_port.model import Severity

GATE = re.compile(r"\s*#\s*(if|el|endif)|\s*(if|elif|else|endif)\b.*(?i:hip|rocm|cuda)")


def unpack(clone: Path, revision: str, folder: Path) -> None:
    """Write the whole tree; what the mirror lacks is left out."""
    index = f"{folder}.index"
    port_recall.git(clone, f"--work-tree={folder}", "read-tree", f"--index-output={index}", revision)
    command = ["git", "-C", str(clone), f"--work-tree={folder}", "checkout-index", "-a", "-q"]
    subprocess.run(command, check=False, env={"GIT_INDEX_FILE": index}, stderr=subprocess.DEVNULL)
    Path(index).unlink()


def put_in(old: str, new: str) -> Counter[str]:
    """Lines of ``new`` that ``old`` has not, without white space and gates."""
    before, after = (["".join(x.split()) for x in t.splitlines()] for t in (old, new))
    kept = {id_ for m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
            for id_ in range(m.b, m.b + m.size)}  # fmt: skip
    lines = new.splitlines()
    return Counter(
        after[n] for n, x in enumerate(lines) if n not in kept and re.search(r"\w", x) and not GATE.match(x)
    )


def identical(clone: Path, row: dict[str, Any], made: dict[str, LoopOutcome], tree: Any, tables: Any) -> Any:
    """How many of the port's lines `fix`, in each of its ways, and hipify put into the same files."""
    base, commit = str(row.get("base") or f"{row['commit']}^"), str(row["commit"])
    ways = {way: {f.path: (f.old, f.new) for f in done.fixes} for way, done in made.items()}
    counts = Counter(port=0, hipify=0, **dict.fromkeys(ways, 0))
    for file in PatchSet(port_recall.git(clone, "diff", "--unified=0", "-M", base, commit)):
        path = file.source_file.removeprefix("a/")
        if file.is_added_file or file.is_removed_file or file.is_binary_file or not port_recall.kind_of(path):
            continue
        old = port_recall.git(clone, "show", f"{base}:{path}")
        theirs = put_in(old, port_recall.git(clone, "show", f"{commit}:{file.path}"))
        counts["port"] += sum(theirs.values())
        for way, ours in ways.items():
            counts[way] += sum((theirs & put_in(*ours[path])).values()) if path in ours else 0
        if path in tree.paths:
            counts["hipify"] += sum((theirs & put_in(old, tables.translate(old))).values())
    return dict(counts)


def compiler_lines(done: LoopOutcome) -> dict[str, set[int]]:
    """Lines of the old files that the compiler names after the first fix, or that the loop edits."""
    found: dict[str, set[int]] = {}
    back: dict[str, dict[int, int]] = {}
    for fix in done.fixes:
        old, new = fix.old.splitlines(), fix.new.splitlines()
        same = back.setdefault(fix.path, {})
        for tag, a, b, c, _ in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                same.update({c + i + 1: a + i + 1 for i in range(b - a)})
            else:
                found.setdefault(fix.path, set()).update(range(a + 1, b + 1))
    for left in done.rounds[0].left:
        line = back[left.path].get(left.line) if left.path in back else left.line
        if line is not None:
            found.setdefault(left.path, set()).add(line)
    return found


def measure(mirrors: Path, row: dict[str, Any], keep: Path | None) -> dict[str, Any]:
    clone, name = port_recall.clone_of(mirrors, row["repo"]), row["repo"].replace("/", "+")
    compiler, tables = find_compiler(), hipify.load()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "tree")
        folder.mkdir()
        unpack(clone, str(row.get("base") or f"{row['commit']}^"), folder)
        began = time.process_time()
        report = audit(str(folder), min_severity=Severity.LOW)  # what a user is shown
        result: dict[str, Any] = {"commit": row["commit"], "lines": report.n_lines, "findings": len(report.findings),
                                  "audit_cpu_s": round(time.process_time() - began, 1)}  # fmt: skip
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            kept = [port_recall.keepsake(f, folder) for f in report.findings]
            (keep / f"{name}@{row['commit']}.json").write_text(json.dumps(kept))
        flagged = {path: set(lines) for path, lines in port_recall.flagged_lines(report).items()}
        told: dict[str, set[int]] = {}
        if compiler is not None:
            done = loop(str(folder), compiler, archs=ARCHS)
            told = compiler_lines(done)
            result["units"] = {s: getattr(done, s).as_json() for s in ("before", "hipify", "after")}
            result["rounds"] = len(done.rounds)
            result["left"] = [f"{x.kind}: {x.path}:{x.line}: {x.text}"[:200] for x in done.after.left[:40]]
            result["missing"] = {k: len(v) for k, v in done.after.headers.items()}
            made = {"fix": done, "fix_hipify": loop(str(folder), None, translates=True)}
            result["identical"] = identical(clone, row, made, read_tree(str(folder)), tables)
    counts: Counter[str] = Counter()
    misses = []
    for change in port_recall.changes(clone, row):
        kind = "named" if NAMED.search(change.text) else "others"
        is_flagged = not flagged.get(change.path, set()).isdisjoint(change.lines)
        is_told = is_flagged or not told.get(change.path, set()).isdisjoint(change.lines)
        counts.update({kind: 1, f"{kind}_audit": is_flagged, f"{kind}_with_compiler": is_told})
        if not is_told:
            misses.append(f"{change.path}:{change.lines[0]}\t{change.text}\t=> {change.became}")
    if keep is not None:
        (keep / f"{name}.misses").write_text("\n".join(misses) + "\n")
    return {**result, "found": dict(sorted(counts.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("--set", default="fresh5")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    rows = tomllib.loads((Path(__file__).parent / "port_repos.toml").read_text())["port"]
    results = {}
    for row in rows:
        if row["set"] == options.set and options.only in row["repo"]:
            results[row["repo"]] = measure(options.mirrors, row, options.keep)
            print(row["repo"], json.dumps(results[row["repo"]])[:400], file=sys.stderr, flush=True)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
