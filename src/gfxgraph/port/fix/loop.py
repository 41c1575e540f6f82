"""Fix, compile, and fix what the compiler names, until nothing changes.

It works on a copy of the sources and build files; what comes out is the same list of edits that `run.fix` makes.

Enters: a repository and a compiler.
Stays out: the repository itself, which only `run.write_all` changes.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gfxgraph import files
from gfxgraph.port.archs import Arch, select
from gfxgraph.port.build.compiler import Compiler
from gfxgraph.port.build.judge import ARCHS, CompilerFinding, Verdict, judge
from gfxgraph.port.build.units import read_tree
from gfxgraph.port.facts import gather
from gfxgraph.port.files import read_inside
from gfxgraph.port.fix import compat, compiled, run
from gfxgraph.port.fix.edits import Edit
from gfxgraph.port.hipify import load
from gfxgraph.port.project import MAX_READ, discover, kind_of

MOST_ROUNDS = 6


@dataclass
class LoopOutcome:
    """The edits, and what compiled: before, after hipify alone, after each round."""

    fixes: list[run.FileFix]
    before: Verdict
    hipify: Verdict
    rounds: list[Verdict] = field(default_factory=list)

    @property
    def after(self) -> Verdict:
        return self.rounds[-1]


def loop(
    path: str,
    compiler: Compiler,
    *,
    unsafe: bool = False,
    targets: tuple[Arch, ...] | None = None,
    archs: tuple[str, ...] = ARCHS,
    commands: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LoopOutcome:
    """Repeat fix and build.

    Raises:
        NoHipifyError, OSError, ValueError: as `run.fix` and `judge` raise them.
    """
    top, hipify = run.top_of(path), load()
    project = discover(top)
    gather(project)
    is_torch = project.has_torch_extension

    def build(root: str, stage: str) -> Verdict:
        tell = (lambda n, of: progress(stage, n, of)) if progress else None
        chosen = archs[:1] if stage == "before" else archs
        return judge(
            root, compiler, hipify, archs=chosen, commands=commands, stage=stage, is_torch=is_torch, progress=tell
        )

    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as scratch:
        copy = Path(scratch, "tree")
        for name in {*read_tree(top).paths, *(s.path for s in project.sources)}:
            files.new_folder((copy / name).parent)
            files.write(copy / name, read_inside(top, name, MAX_READ))
        before, after_hipify = build(top, "before"), build(top, "hipify")
        fixes = {f.path: f for f in run.fix(str(copy), unsafe=unsafe, archs=targets)}
        run.write_all(str(copy), list(fixes.values()))
        done = LoopOutcome([], before, after_hipify, [build(str(copy), "after")])
        if not is_torch and done.after.count("compiles") < after_hipify.count("compiles"):
            # The project's own HIP build does not give these units HIP's names.
            for made in run.stand_in(str(copy)):
                _take(copy, fixes, made.path, made.old, made.new, made.applied)
            done.rounds.append(build(str(copy), "after"))
        for _ in range(MOST_ROUNDS):
            names = not is_torch and _name(copy, done.after, fixes)
            if not names and not _answer(str(copy), done.after, fixes, targets or select(None)):
                break
            done.rounds.append(build(str(copy), "after"))
        done.fixes = list(fixes.values())
        return done


_UNKNOWN = re.compile(r"(?:undeclared identifier|unknown type name|no (?:type|member) named) '(\w+)'")


def _name(copy: Path, verdict: Verdict, fixes: dict[str, run.FileFix]) -> bool:
    """Try HIP's spelling for names that the compiler does not know; False where that changes nothing."""
    path = f"{compat.FOLDER}/{compat.MAIN}"
    unknown = {m[1] for left in verdict.left if (m := _UNKNOWN.search(left.text))}
    if not (copy / path).is_file() or not unknown:
        return False
    old = read_inside(str(copy), path, MAX_READ).decode()
    new = compat.respelt(old, unknown)
    if new == old:
        return False
    _take(copy, fixes, path, old, new, [])
    return True


def _take(copy: Path, fixes: dict[str, run.FileFix], path: str, old: str, new: str, applied: list[Edit]) -> None:
    """Write a file of the copy, and note it with the edits that it has by now."""
    known = fixes.setdefault(path, run.FileFix(path, old, old, is_new=not old))
    known.new, known.applied = new, [*known.applied, *applied]
    files.new_folder((copy / path).parent)
    files.write(copy / path, new.encode())


def _answer(copy: str, verdict: Verdict, fixes: dict[str, run.FileFix], targets: tuple[Arch, ...]) -> bool:
    """Edit what the compiler names, in the copy; False where there is nothing left to do by itself."""
    by_file: dict[str, list[CompilerFinding]] = {}
    for left in verdict.left:
        if left.kind == "does not compile" and not os.path.isabs(left.path):
            by_file.setdefault(left.path, []).append(left)
    project = discover(copy)
    gather(project)
    changed = False
    for path, messages in by_file.items():
        try:
            text = read_inside(copy, path, MAX_READ).decode()
        except (OSError, UnicodeDecodeError):
            continue
        new, done = compiled.edit(text, messages)
        edits = [Edit(line, 0, "", "compiler", needs=what) for line, what in done]
        if not done:
            lines = frozenset(m.line for m in messages)
            made = run.fix_file(project, path, kind_of(path), unsafe=True, archs=targets, lines=lines)
            new, edits = (made.new, made.applied) if made is not None else (text, [])
        if new == text:
            continue
        changed = True
        _take(Path(copy), fixes, path, text, new, edits)
    return changed
