"""Find what can be fixed, fix it in memory, pass the gate, and hand back a patch.

Nothing is written here but through ``write_all``, which follows no link and undoes what it began.
"""

from __future__ import annotations

import difflib
import errno
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gfxgraph_port.archs import Arch, select
from gfxgraph_port.build.units import read_tree, uses_cuda
from gfxgraph_port.engine import Context, audit_file, wanted
from gfxgraph_port.facts import gather
from gfxgraph_port.files import read_inside, write_inside
from gfxgraph_port.fix import builds, compat, gate
from gfxgraph_port.fix.edits import Edit, EditRefusal, apply_cpp, apply_python
from gfxgraph_port.guards import cpp as cpp_guards
from gfxgraph_port.guards.python import PyGuards
from gfxgraph_port.hipify import Hipify
from gfxgraph_port.hipify import load as load_hipify
from gfxgraph_port.model import Fix
from gfxgraph_port.project import ANSWERED_BY_HOME, HOME, MAX_READ, Project, UnreadableError, discover
from gfxgraph_port.readers.cpp import CppFile
from gfxgraph_port.readers.python import PyFile
from gfxgraph_port.readers.text import TextFile
from gfxgraph_port.registry import find

_COMPILED = (2, 4)  # phases of sources and builds: the compiler judges, and the gate proves that NVIDIA's stay
FIXERS = ("python", "cpp")


@dataclass
class FileFix:
    """What happened to one file."""

    path: str
    old: str
    new: str
    applied: list[Edit] = field(default_factory=list)
    refused: list[EditRefusal] = field(default_factory=list)
    is_executable: bool = False
    is_new: bool | None = None  # None: where ``old`` is empty

    @property
    def old_bytes(self) -> bytes | None:
        """What was read; None for a file that the fix makes."""
        is_new = not self.old if self.is_new is None else self.is_new
        return None if is_new else _bytes(self.old)

    def patch(self) -> str:
        """A unified diff that ``git apply`` and ``patch -p1`` take."""
        lines = difflib.unified_diff(
            self.old.splitlines(keepends=True),
            self.new.splitlines(keepends=True),
            f"a/{self.path}" if self.old else "/dev/null",
            f"b/{self.path}",
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def fix(path: str, *, unsafe: bool = False, archs: tuple[Arch, ...] | None = None) -> list[FileFix]:
    """Compute the fixes of a repository; writes nothing.

    Raises:
        NoHipifyError: CUDA sources are here, and no table of CUDA's names.
    """
    project = discover(path)
    gather(project)
    found = []
    for source in project.sources:
        if source.kind in FIXERS:
            made = fix_file(project, source.path, source.kind, unsafe=unsafe, archs=archs or select(None))
            if made is not None:
                found.append(made)
    is_ours = os.path.isfile(os.path.join(project.root, HOME, "hip.cmake"))
    if os.path.isdir(path) and not project.has_torch_extension and (is_ours or not project.has_hip_build):
        _build(project, found)
    if project.has_torch_extension:
        _functions(project, found, archs or select(None))
    return found


def translated(path: str, sources: list[str], hipify: Hipify) -> list[FileFix]:
    """Every source with HIP's names, as hipify has them."""
    found = []
    for name in sources:
        old = read_inside(path, name, MAX_READ).decode("utf-8", "surrogateescape")
        new = hipify.translate(old)
        if new != old and not name.startswith(f"{HOME}/"):
            found.append(FileFix(name, old, new, [Edit(1, 0, "", "stand-in")]))
    return found


def stand_in(path: str) -> list[FileFix]:
    """The folder that stands in for the CUDA toolkit, and its lines in the build, whatever build for HIP is there."""
    project = discover(path)
    gather(project)
    found: list[FileFix] = []
    _build(project, found)
    return found


def _build(project: Project, found: list[FileFix]) -> None:
    """The folder that stands in for the CUDA toolkit, and the lines by which the build takes it."""
    tree = read_tree(project.root, without=HOME)
    if not any(uses_cuda(tree, p) for p in tree.paths):
        return
    made = builds.headers(project, tree, load_hipify())
    is_executable = f"{HOME}/bin/nvcc"
    for name, text in made.items():
        now = _now(project.root, FileFix(name, "", ""))
        if now != _bytes(text):
            old = "" if now is None else now.decode("utf-8", "surrogateescape")
            edit = Edit(1, 0, "", "stand-in")
            found.append(
                FileFix(name, old, text, [edit], [], is_executable=name == is_executable, is_new=now is None)
            )
    for name, old, new, done, refused in builds.edits(project):
        now = _now(project.root, FileFix(name, "", ""))
        if now == _bytes(f"\ufeff{old}"):
            old, new = f"\ufeff{old}", f"\ufeff{new}"
        if now != _bytes(old):
            continue  # not UTF-8
        found[:] = [
            f for f in found if f.path != name
        ]  # theirs come first: the folder answers what a rule would edit
        found.append(FileFix(name, old, new, done, refused))


# torch's headers have brought HIP's warpSize: a source that asks for the width thinks in the device's.
_ASKS_WIDTH = re.compile(r"\bwarpSize\b|\bC10_WARP_SIZE\b")


def _functions(project: Project, found: list[FileFix], archs: tuple[Arch, ...]) -> None:
    """A torch extension: what torch's hipify has no name for, as headers that the sources include under ROCm."""
    used: set[str] = set()
    written: set[str] = set()
    for path in project.paths("cpp"):
        made = next((f for f in found if f.path == path), None) or FileFix(path, "", "")
        try:
            text = made.new or project.read(path)[0]
        except (OSError, UnreadableError):
            continue
        if not project.is_translated(path) or not (
            compat.LACKING.search(text) or any(w in text for w in compat.WRITTEN)
        ):
            continue
        if _now(project.root, FileFix(path, "", "")) != _bytes(made.old or text):
            continue  # not UTF-8
        file = CppFile(path, text)
        lacking = {
            name
            for name, line, _ in file.idents_like(compat.LACKING.pattern)
            if name not in project.own_names and _is_reached(file, line, archs, project)
        }
        near = posixpath.relpath(compat.FOLDER, posixpath.dirname(path) or ".")
        native = "#define GFXGRAPH_NATIVE_WARP\n" if _ASKS_WIDTH.search(text) else ""
        include = f'{native}#include "{near}/{compat.FUNCTIONS}"'
        define = f"#if defined(USE_ROCM) && defined(__HIPCC__)\n{include}\n#endif\n"
        edits = [Edit(1, 0, "", "stand-in", define=define)] if lacking and define not in text else []
        for header, line in file.includes():
            if header in compat.WRITTEN and _is_reached(file, line, archs, project):
                row, ours = file.line_text(line), f'#include "{near}/{header}"'
                gated = "\n".join(["#if defined(USE_ROCM)", ours, "#else", row, "#endif"])
                edits.append(Edit(line, 0, gated, "stand-in", last_line=line))
                written.add(header)
        used |= lacking
        if edits:
            made.old, made.new = made.old or text, apply_cpp(text, edits)
            made.applied += edits
            found += [made] if made not in found else []
    headers = {**compat.functions(used), **compat.written(written)}
    for name, text in headers.items():
        place = f"{compat.FOLDER}/{name}"
        now = _now(project.root, FileFix(place, "", ""))
        if text and now != _bytes(text):
            old = (now or b"").decode("utf-8", "surrogateescape")
            found.append(FileFix(place, old, text, [Edit(1, 0, "", "stand-in")], is_new=now is None))


def _is_reached(file: CppFile, line: int, archs: tuple[Arch, ...], project: Project) -> bool:
    return bool(cpp_guards.reaching(file.arm(line), archs, project.macros)[0])


def fix_file(
    project: Project,
    path: str,
    kind: str,
    *,
    unsafe: bool,
    archs: tuple[Arch, ...],
    lines: frozenset[int] | None = None,
) -> FileFix | None:
    """Fix one file, or some lines of it; None where there is nothing to say."""
    try:
        text, note = project.read(path)
    except (OSError, UnreadableError):
        return None
    if note or text.startswith("\ufeff") or _now(project.root, FileFix(path, "", "")) != _bytes(text):
        return None  # written back as UTF-8 it would be another file
    try:
        proposals = [
            p for p in _proposals(project, path, kind, text, unsafe, archs) if lines is None or p.line in lines
        ]
    except (SyntaxError, ValueError, RecursionError):
        return None
    result = FileFix(path, text, text)
    result.refused = [p for p in proposals if isinstance(p, EditRefusal)]
    edits = _apart([p for p in proposals if isinstance(p, Edit)])
    if edits:
        _apply(result, edits, kind)
    return result if result.applied or result.refused else None


def _apart(edits: list[Edit]) -> list[Edit]:
    """Edits that do not touch each other's lines; of two that do, the one that replaces more."""
    kept: list[Edit] = []
    for e in sorted(edits, key=lambda e: (not e.last_line, e.line - e.last_line, e.line, e.column)):
        span = range(e.line, (e.last_line or e.line) + 1)
        if not any(
            (e.last_line or k.last_line) and not set(span).isdisjoint(range(k.line, (k.last_line or k.line) + 1))
            for k in kept
        ) and (e.line, e.column) not in {(k.line, k.column) for k in kept if not k.last_line}:
            kept.append(e)
    return sorted(kept, key=lambda e: (e.line, e.column))


def _apply(result: FileFix, edits: list[Edit], kind: str) -> None:
    """Apply the edits that the gate lets pass."""
    apply = {"python": apply_python, "cpp": apply_cpp}[kind]
    passing = []
    for edit in edits:
        try:
            verdict = gate.check(result.path, result.old, apply(result.old, [edit]), [edit])
        except (SyntaxError, ValueError, RecursionError) as error:
            verdict = gate.GateVerdict(False, f"could not be applied: {error}")
        if verdict.passes:
            passing.append(edit)
        else:
            result.refused.append(EditRefusal(edit.line, verdict.reason, edit.rule))
    if passing:
        new = apply(result.old, passing)
        if gate.check(result.path, result.old, new, passing).passes:
            result.new, result.applied = new, passing


def _proposals(
    project: Project, path: str, kind: str, text: str, unsafe: bool, archs: tuple[Arch, ...]
) -> Iterator[Edit | EditRefusal]:
    shown = audit_file(project, path, kind, archs).places
    file: Any = (
        PyFile(path, text)
        if kind == "python"
        else CppFile(path, text)
        if kind == "cpp"
        else TextFile(path, text, kind)
    )
    guards = PyGuards(file, project) if kind == "python" else None
    context = Context(project, path, project.vendor_of(path, kind), guards)
    for rule, check in wanted(kind, text.lower()):
        if rule.fix is Fix.NONE or rule.code in ANSWERED_BY_HOME:
            continue
        if rule.fix is Fix.SUGGEST and not unsafe and rule.phase not in _COMPILED:
            continue
        loaded = find(rule.id)
        propose = loaded.edits.get(kind) if loaded is not None else None
        if propose is None:
            continue
        for hit in check(file, context):
            if (rule.id, hit.line) not in shown:
                continue
            if guards is not None and not guards.reaching(hit.node, archs)[0]:
                continue
            if kind == "cpp" and not cpp_guards.reaching(file.arm(hit.line), archs, project.macros)[0]:
                if not hit.guard_free:
                    continue
            made = propose(hit.node if guards is not None else hit, file, context)
            if isinstance(made, Edit):
                yield replace(made, rule=rule.id)
            elif isinstance(made, EditRefusal):
                yield EditRefusal(made.line, made.reason, rule.id)


def top_of(path: str) -> str:
    """The folder that a repository's paths are relative to."""
    top = os.path.realpath(path)
    return os.path.dirname(top) if os.path.isfile(top) else top


def write_all(root: str, fixes: list[FileFix]) -> list[str]:
    """Replace every changed file; where one cannot be written, those written before it get their old text back.

    Nothing outside ``root`` is written, whatever links the repository holds, and no file that is not what was read.

    Returns:
        The paths written.

    Raises:
        OSError: a file cannot be written, or was changed meanwhile.
    """
    top = top_of(root)
    changed = [f for f in fixes if f.new != f.old]
    done: list[FileFix] = []
    try:
        for f in changed:
            if _now(top, f) != f.old_bytes:
                raise OSError(errno.EBUSY, "changed since it was read; nothing was edited: run again", f.path)
            write_inside(top, f.path, _bytes(f.new), makes=True, is_executable=f.is_executable)
            done.append(f)
    except BaseException:
        restore(top, done)
        raise
    return [f.path for f in changed]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _now(top: str, f: FileFix) -> bytes | None:
    """What stands in a file's place; None where there is none."""
    try:
        return read_inside(top, f.path, MAX_READ)
    except FileNotFoundError:
        return None


def restore(root: str, fixes: list[FileFix]) -> list[str]:
    """Put the old text of every changed file back, but for files that somebody edited since.

    Returns:
        The paths of those, which stay as they are.
    """
    kept = []
    for f in fixes:
        if _now(root, f) != _bytes(f.new):
            kept.append(f.path)
        elif f.old_bytes is None:
            os.unlink(os.path.join(root, f.path))  # it was made by the fix
            folder = os.path.dirname(f.path)
            while folder:
                try:
                    os.rmdir(os.path.join(root, folder))
                except OSError:
                    break  # something else is in it
                folder = os.path.dirname(folder)
        else:
            write_inside(root, f.path, f.old_bytes)
    return kept
