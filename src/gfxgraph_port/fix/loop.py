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
from gfxgraph_port.archs import Arch, select
from gfxgraph_port.build import real as building
from gfxgraph_port.build.compiler import Compiler
from gfxgraph_port.build.judge import ARCHS, CompilerFinding, Verdict, judge
from gfxgraph_port.build.units import read_tree
from gfxgraph_port.facts import gather
from gfxgraph_port.files import read_inside
from gfxgraph_port.fix import compat, compiled, run
from gfxgraph_port.fix.edits import Edit, EditRefusal, apply_cpp
from gfxgraph_port.hipify import load
from gfxgraph_port.project import HOME, MAX_READ, Project, discover, kind_of

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
    top = run.top_of(path)
    project = _read(top)
    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as scratch:
        copy = Path(scratch, "tree")
        sources = read_tree(top).paths
        part = "" if real else HOME  # what an older fix wrote there is written anew
        if real or os.path.isdir(os.path.join(top, HOME)) and not os.path.islink(os.path.join(top, HOME)):
            files.copy_tree(os.path.join(top, part), str(copy / part))
        for name in {*sources, *(s.path for s in project.sources)} if not real else ():
            _put(copy, name, read_inside(top, name, MAX_READ).decode("utf-8", "surrogateescape"))

        def ask(stage: str) -> Verdict:
            assert compiler is not None
            return judge(
                str(copy), compiler, load(), archs=archs[:1] if stage == "before" else archs, commands=commands,
                stage=stage, is_torch=project.has_torch_extension,
                progress=(lambda n, of: progress(stage, n, of)) if progress else None,
            )  # fmt: skip

        state = _Loop(copy, project.has_torch_extension, targets or select(None), ask)
        if compiler is not None:
            state.done.before, state.done.hipify = ask("before"), ask("hipify")
        if translates:
            state.take(run.translated(str(copy), sources, load()))
        made = run.fix(str(copy), unsafe=unsafe, archs=targets)
        if compiler is None:
            state.take(made)
        else:
            state.rounds(made)
            if real:
                state.real_rounds(archs)
        state.done.fixes = list(state.fixes.values())
        return state.done


def _read(top: str) -> Project:
    project = discover(top)
    gather(project)
    return project


@dataclass
class _Loop:
    """The copy as edits are tried on it."""

    copy: Path
    is_torch: bool
    targets: tuple[Arch, ...]
    ask: Callable[[str], Verdict]
    fixes: dict[str, run.FileFix] = field(default_factory=dict)
    done: LoopOutcome = field(default_factory=lambda: LoopOutcome([]))

    def rounds(self, made: list[run.FileFix]) -> None:
        """The build and its folder first, then edits of sources, then what the compiler names."""
        edited = [f for f in made if kind_of(f.path) == "cpp" and not f.path.startswith(f"{HOME}/")]
        self.take([f for f in made if f not in edited])
        self.done.rounds.append(self.ask("after"))
        assert self.done.hipify is not None
        if not self.is_torch and self.done.after.count("compiles") < self.done.hipify.count("compiles"):
            self.take(
                run.stand_in(str(self.copy))
            )  # the project's own HIP build does not give these units HIP's names
            self.done.rounds.append(self.ask("after"))
        if edited:
            self.attempt(edited)
        for _ in range(MOST_ROUNDS):
            answers = [] if self.is_torch else _name(self.copy, self.done.after)
            answers = answers or _answer(str(self.copy), self.done.after.left, self.targets)
            if not self.attempt(answers):
                break

    def real_rounds(self, archs: tuple[str, ...]) -> None:
        """The project's build, and what it names, while that leads on."""
        for _ in range(MOST_ROUNDS):
            self.done.real = building.build(str(self.copy), _read(str(self.copy)), load(), archs=archs)
            if self.done.real.is_linked or not self.attempt(
                _answer(str(self.copy), self.done.real.left, self.targets)
            ):
                break

    def take(self, made: list[run.FileFix]) -> None:
        for f in made:
            _take(self.copy, self.fixes, f)

    def attempt(self, made: list[run.FileFix]) -> bool:
        """Take edits, without those by which a unit stops compiling; whether any is left."""
        if not any(f.new != f.old for f in made):
            return False
        before = self.done.after
        for f in made:
            _put(self.copy, f.path, f.new)
        after = self.ask("after")
        if lost := _lost(before, after):
            after = self._withdraw(made, before, lost)
        self.take(made)
        self.done.rounds.append(after)
        return any(f.new != f.old for f in made)

    def _withdraw(self, made: list[run.FileFix], before: Verdict, lost: set[str]) -> Verdict:
        """The edits of what lost units read, one by one."""
        tree = read_tree(str(self.copy))
        read = {path for unit in lost for path in tree.closure(unit)[0]}
        suspects = [f for f in made if f.new != f.old and (f.path in read or f.path.startswith(f"{HOME}/"))]
        for f in suspects:
            _put(self.copy, f.path, f.old)
        after = self.ask("after")
        for f in suspects:
            parts = [[e] for e in f.applied] if all(e.last_line or e.define for e in f.applied) else [f.applied]
            now, kept = f.old, list[Edit]()
            for part in parts:
                text = apply_cpp(f.old, kept + part) if len(parts) > 1 else f.new
                _put(self.copy, f.path, text)
                then = self.ask("after")
                if _lost(before, then):
                    _put(self.copy, f.path, now)
                    f.refused += [EditRefusal(e.line, "withdrawn: a unit stops compiling", e.rule) for e in part]
                else:
                    now, after = text, then
                    kept += part
            f.new, f.applied = now, kept
        return after


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
    project = _read(copy)
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
