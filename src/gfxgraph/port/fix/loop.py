"""Fix, compile, and fix what the compiler names, until nothing changes; or give the sources HIP's names.

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
    before: Verdict | None = None
    hipify: Verdict | None = None
    rounds: list[Verdict] = field(default_factory=list)

    @property
    def after(self) -> Verdict:
        return self.rounds[-1]


def loop(
    path: str,
    compiler: Compiler | None,
    *,
    unsafe: bool = False,
    translates: bool = False,
    targets: tuple[Arch, ...] | None = None,
    archs: tuple[str, ...] = ARCHS,
    commands: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LoopOutcome:
    """Repeat fix and build; without a compiler fix once.

    Args:
        translates: hipify's names go into the sources, and NVIDIA's build is not kept.

    Raises:
        NoHipifyError, OSError, ValueError: as `run.fix` and `judge` raise them.
    """
    top, hipify = run.top_of(path), load()
    project = discover(top)
    gather(project)
    is_torch = project.has_torch_extension

    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as scratch:
        copy = Path(scratch, "tree")
        sources = read_tree(top).paths
        for name in {*sources, *(s.path for s in project.sources)}:
            files.new_folder((copy / name).parent)
            files.write(copy / name, read_inside(top, name, MAX_READ))
        fixes: dict[str, run.FileFix] = {}
        done = LoopOutcome([])

        def build(stage: str) -> Verdict:
            tell = (lambda n, of: progress(stage, n, of)) if progress else None
            assert compiler is not None
            return judge(
                str(copy), compiler, hipify, archs=archs[:1] if stage == "before" else archs, commands=commands,
                stage=stage, is_torch=is_torch, progress=tell,
            )  # fmt: skip

        def take(made: list[run.FileFix]) -> None:
            for f in made:
                _take(copy, fixes, f)

        if compiler is not None:
            done.before, done.hipify = build("before"), build("hipify")
        if translates:
            take(run.translated(str(copy), sources, hipify))
        take(run.fix(str(copy), unsafe=unsafe, archs=targets))
        if compiler is not None and done.hipify is not None:
            done.rounds.append(build("after"))
            if not is_torch and done.after.count("compiles") < done.hipify.count("compiles"):
                take(run.stand_in(str(copy)))  # the project's own HIP build does not give these units HIP's names
                done.rounds.append(build("after"))
            for _ in range(MOST_ROUNDS):
                made = [] if is_torch else _name(copy, done.after)
                made = made or _answer(str(copy), done.after, targets or select(None))
                if not made:
                    break
                take(made)
                done.rounds.append(build("after"))
        done.fixes = list(fixes.values())
        return done


_UNKNOWN = re.compile(r"(?:undeclared identifier|unknown type name|no (?:type|member) named) '(\w+)'")


def _name(copy: Path, verdict: Verdict) -> list[run.FileFix]:
    """Try HIP's spelling for names that the compiler does not know; nothing where that changes nothing."""
    path = f"{compat.FOLDER}/{compat.MAIN}"
    unknown = {m[1] for left in verdict.left if (m := _UNKNOWN.search(left.text))}
    if not (copy / path).is_file() or not unknown:
        return []
    old = read_inside(str(copy), path, MAX_READ).decode()
    new = compat.respelt(old, unknown)
    return [run.FileFix(path, old, new)] if new != old else []


def _take(copy: Path, fixes: dict[str, run.FileFix], made: run.FileFix) -> None:
    """Write a file of the copy, and note it with what was done to it before."""
    known = fixes.setdefault(made.path, made)
    if known is not made:
        known.new = made.new
        known.applied, known.refused = [*known.applied, *made.applied], made.refused
    if made.new != made.old:
        files.new_folder((copy / made.path).parent)
        files.write(copy / made.path, made.new.encode("utf-8", "surrogateescape"))


def _answer(copy: str, verdict: Verdict, targets: tuple[Arch, ...]) -> list[run.FileFix]:
    """Edits of what the compiler names; none where there is nothing left to do by itself."""
    by_file: dict[str, list[CompilerFinding]] = {}
    for left in verdict.left:
        if left.kind == "does not compile" and not os.path.isabs(left.path):
            by_file.setdefault(left.path, []).append(left)
    project = discover(copy)
    gather(project)
    found = []
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
        if new != text:
            found.append(run.FileFix(path, text, new, edits))
    return found
