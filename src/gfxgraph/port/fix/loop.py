"""Fix, compile, and fix what the compiler names, until nothing changes; or give the sources HIP's names.

It works on a copy of the tree; what comes out is the same list of edits that `run.fix` makes, without those by which
a unit stops compiling. With ``real`` the project's own build is asked as well, once the compiler has no answer left.

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
from gfxgraph.port.build import real as building
from gfxgraph.port.build.compiler import Compiler
from gfxgraph.port.build.judge import ARCHS, CompilerFinding, Verdict, judge
from gfxgraph.port.build.units import read_tree
from gfxgraph.port.facts import gather
from gfxgraph.port.files import read_inside
from gfxgraph.port.fix import compat, compiled, run
from gfxgraph.port.fix.edits import Edit, EditRefusal, apply_cpp
from gfxgraph.port.hipify import load
from gfxgraph.port.project import HOME, MAX_READ, discover, kind_of

MOST_ROUNDS = 6


@dataclass
class LoopOutcome:
    """The edits, and what compiled: before, after hipify alone, after each round."""

    fixes: list[run.FileFix]
    before: Verdict | None = None
    hipify: Verdict | None = None
    rounds: list[Verdict] = field(default_factory=list)
    real: building.BuildOutcome | None = None

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
    real: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> LoopOutcome:
    """Repeat fix and build; without a compiler fix once.

    Args:
        translates: hipify's names go into the sources, and NVIDIA's build is not kept.
        real: the project's own build runs too, and what it says is answered.

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
        if real:
            files.copy_tree(top, str(copy))
        else:
            for name in {*sources, *(s.path for s in project.sources)}:
                _put(copy, name, read_inside(top, name, MAX_READ).decode("utf-8", "surrogateescape"))
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

        def attempt(made: list[run.FileFix]) -> None:
            """Take edits, without those by which a unit stops compiling."""
            before = done.after
            for f in made:
                _put(copy, f.path, f.new)
            after = build("after")
            if lost := _lost(before, after):
                after = withdraw(made, before, lost)
            take(made)
            done.rounds.append(after)

        def withdraw(made: list[run.FileFix], before: Verdict, lost: set[str]) -> Verdict:
            tree = read_tree(str(copy))
            read = {path for unit in lost for path in tree.closure(unit)[0]}
            suspects = [f for f in made if f.new != f.old and (f.path in read or f.path.startswith(f"{HOME}/"))]
            for f in suspects:
                _put(copy, f.path, f.old)
            after = build("after")
            for f in suspects:
                parts = [[e] for e in f.applied] if all(e.last_line or e.define for e in f.applied) else [f.applied]
                now, kept = f.old, list[Edit]()
                for part in parts:
                    text = apply_cpp(f.old, kept + part) if len(parts) > 1 else f.new
                    _put(copy, f.path, text)
                    then = build("after")
                    if _lost(before, then):
                        _put(copy, f.path, now)
                        f.refused += [EditRefusal(e.line, "withdrawn: a unit stops compiling", e.rule) for e in part]
                    else:
                        now, after = text, then
                        kept += part
                f.new, f.applied = now, kept
            return after

        if compiler is not None:
            done.before, done.hipify = build("before"), build("hipify")
        if translates:
            take(run.translated(str(copy), sources, hipify))
        made = run.fix(str(copy), unsafe=unsafe, archs=targets)
        if compiler is None or done.hipify is None:
            take(made)
        else:
            edited = [f for f in made if kind_of(f.path) == "cpp" and not f.path.startswith(f"{HOME}/")]
            take([f for f in made if f not in edited])
            done.rounds.append(build("after"))
            if not is_torch and done.after.count("compiles") < done.hipify.count("compiles"):
                take(run.stand_in(str(copy)))  # the project's own HIP build does not give these units HIP's names
                done.rounds.append(build("after"))
            if edited:
                attempt(edited)
            for _ in range(MOST_ROUNDS):
                made = [] if is_torch else _name(copy, done.after)
                made = made or _answer(str(copy), done.after.left, targets or select(None))
                if not made or all(f.new == f.old for f in made):
                    break
                attempt(made)
            for _ in range(MOST_ROUNDS if real else 0):
                project = discover(str(copy))
                gather(project)
                done.real = building.build(str(copy), project, hipify, archs=archs)
                made = [] if done.real.is_linked else _answer(str(copy), done.real.left, targets or select(None))
                if not made:
                    break
                attempt(made)
                if all(f.new == f.old for f in made):
                    break
        done.fixes = list(fixes.values())
        return done


def _lost(before: Verdict, after: Verdict) -> set[str]:
    """Units that compiled and do not any more."""
    return {u for u, state in before.states.items() if state == "compiles" and after.states.get(u) != "compiles"}


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
        _put(copy, made.path, made.new)
        if made.is_executable:
            (copy / made.path).chmod(0o755)


def _put(copy: Path, name: str, text: str) -> None:
    files.new_folder((copy / name).parent)
    files.write(copy / name, text.encode("utf-8", "surrogateescape"))


def _answer(copy: str, said: list[CompilerFinding], targets: tuple[Arch, ...]) -> list[run.FileFix]:
    """Edits of what the compiler names; none where there is nothing left to do by itself."""
    by_file: dict[str, list[CompilerFinding]] = {}
    for left in said:
        for path in compiled.places(left) if left.kind == "does not compile" else ():
            if not os.path.isabs(path):
                by_file.setdefault(path, []).append(left)
    project = discover(copy)
    gather(project)
    found = []
    for path, messages in by_file.items():
        try:
            text = read_inside(copy, path, MAX_READ).decode()
        except (OSError, UnicodeDecodeError):
            continue
        new, done = compiled.edit(path, text, messages)
        edits = [Edit(line, 0, "", "compiler", needs=what) for line, what in done]
        if not done:
            lines = frozenset(m.line for m in messages if m.path == path)
            made = run.fix_file(project, path, kind_of(path), unsafe=True, archs=targets, lines=lines)
            new, edits = (made.new, made.applied) if made is not None else (text, [])
        if new != text:
            found.append(run.FileFix(path, text, new, edits))
    return found
