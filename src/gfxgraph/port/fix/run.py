"""Find what can be fixed, fix it in memory, pass the gate, and hand back a patch.

Nothing is written here but through ``write_all``, which follows no link and undoes what it began.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gfxgraph.port.archs import Arch, select
from gfxgraph.port.audit import audit, require_parsers
from gfxgraph.port.engine import Context, audit_file, wanted
from gfxgraph.port.facts import gather
from gfxgraph.port.files import read_inside, write_inside
from gfxgraph.port.fix import compat, gate, requirement_lists
from gfxgraph.port.fix.cmake import add_option
from gfxgraph.port.fix.edits import Edit, EditRefusal, apply_cpp, apply_lines, apply_python
from gfxgraph.port.guards import cpp as cpp_guards
from gfxgraph.port.guards.python import PyGuards
from gfxgraph.port.impact import rank
from gfxgraph.port.model import Fix
from gfxgraph.port.project import MAX_READ, Project, UnreadableError, discover
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.readers.python import PyFile
from gfxgraph.port.readers.text import TextFile
from gfxgraph.port.registry import find
from gfxgraph.port.rules.build import generated_hip_not_ignored

COMPAT = "cuda_to_hip.h"
FIXERS = ("python", "cpp", "cmake", "docker")


@dataclass
class FileFix:
    """What happened to one file."""

    path: str
    old: str
    new: str
    applied: list[Edit] = field(default_factory=list)
    refused: list[EditRefusal] = field(default_factory=list)
    answers: frozenset[tuple[str, str]] = frozenset()  # findings in other files: path and rule

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
    """Compute the fixes of a repository; writes nothing."""
    require_parsers()
    project = discover(path)
    gather(project)
    found = []
    translated = project.has_torch_extension or project.has_hip_build
    aliases = compat.header(project) if unsafe and not translated else ""
    if aliases:
        place = f"include/{COMPAT}" if any(p.startswith("include/") for p in project.paths("cpp")) else COMPAT
        project.compat = place if not project.has_file(place) else ""
    for source in project.sources:
        if source.kind in FIXERS:
            made = fix_file(project, source.path, source.kind, unsafe=unsafe, archs=archs or select(None))
            if made is not None:
                found.append(made)
    if project.compat and any(f'{COMPAT}"' in f.new for f in found):
        needs = "each name is HIP's in meaning too; HIP_SYMBOL and renamed constants are taken care of"
        found.append(FileFix(project.compat, "", aliases, applied=[Edit(1, 0, "", "GFX201", needs=needs)]))
    for new, text, origin, edit in requirement_lists.lists(project) if unsafe else ():
        answered = frozenset((origin, rule) for rule in requirement_lists.ANSWERED)
        found.append(FileFix(new, "", text, applied=[edit], answers=answered))
    _define_option(project, found)
    found += _gitignore(project)
    return found


def _define_option(project: Project, found: list[FileFix]) -> None:
    """The outermost project defines the option that edits of any CMake file use."""
    built = [f for f in found if f.path.endswith(("CMakeLists.txt", ".cmake"))]
    if not any("USE_HIP" in f.new and "USE_HIP" not in f.old for f in built):
        return
    for path in sorted(project.paths("cmake"), key=lambda p: (p.count("/"), p)):
        made = next((f for f in found if f.path == path), None)
        text = made.new if made is not None else project.read(path)[0]
        edit = add_option(text)
        if edit is None and "option(USE_HIP" not in text:
            continue
        if edit is not None:
            if made is None:
                made = FileFix(path, text, text)
                found.append(made)
            made.new = apply_lines(made.new, [edit])
            made.applied.append(edit)
        return


def fix_file(project: Project, path: str, kind: str, *, unsafe: bool, archs: tuple[Arch, ...]) -> FileFix | None:
    """Fix one file; None where there is nothing to say."""
    try:
        text, note = project.read(path)
    except (OSError, UnreadableError):
        return None
    if note and "Latin" in note:
        return None
    try:
        proposals = list(_proposals(project, path, kind, text, unsafe, archs))
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
    """Apply all edits at once; where the gate refuses them together, those that pass alone."""
    apply = {"python": apply_python, "cpp": apply_cpp}.get(kind, apply_lines)

    def attempt(chosen: list[Edit]) -> tuple[str, str]:
        same = [e for e in chosen if e.equivalent]
        try:
            new = apply(result.old, chosen)
            old = apply(result.old, same) if same else result.old
        except Exception as error:  # noqa: BLE001 - LibCST raises its own tree of errors for odd sources
            return "", f"could not be applied: {error}"
        if same and len(same) == len(chosen):
            return new, ""  # what the precondition says is all there is to compare
        verdict = gate.check(result.path, old, new, frozenset(e.absent for e in chosen if e.absent))
        return (new, "") if verdict.passes else ("", verdict.reason)

    new, reason = attempt(edits)
    if reason:
        passing = []
        for edit in edits:
            _, why = attempt([edit])
            if why:
                result.refused.append(EditRefusal(edit.line, why, edit.rule))
            else:
                passing.append(edit)
        edits = passing
        new, reason = attempt(edits) if edits else (result.old, "")
        if reason:
            result.refused += [EditRefusal(e.line, reason, e.rule) for e in edits]
            edits, new = [], result.old
    result.new, result.applied = new, edits


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
        if rule.fix is Fix.NONE or (rule.fix is Fix.SUGGEST and not unsafe):
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


def _gitignore(project: Project) -> list[FileFix]:
    """Patterns for the copies that torch's hipify writes."""
    if not list(generated_hip_not_ignored(project, Context(project, ""))):
        return []
    if any(path.endswith(".hip") for path in project.paths("cpp")):
        return [
            FileFix(".gitignore", "", "", refused=[EditRefusal(1, "hand-written .hip sources are here", "GFX411")])
        ]
    try:
        old = read_inside(project.root, ".gitignore", MAX_READ).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        old = ""
    except OSError as error:
        return [FileFix(".gitignore", "", "", refused=[EditRefusal(1, str(error.strerror), "GFX411")])]
    start = "" if not old or old.endswith("\n") else "\n"
    new = f"{old}{start}# copies that torch's hipify writes beside the sources\n*.hip\n*_hip.*\n"
    return [FileFix(".gitignore", old, new, applied=[Edit(1, 0, "", "GFX411")])]


def write_all(root: str, fixes: list[FileFix]) -> list[str]:
    """Replace every changed file; where one cannot be written, those written before it get their old text back.

    Nothing outside ``root`` is written, whatever links the repository holds.

    Returns:
        The paths written.

    Raises:
        OSError: a file cannot be written, or is not what was read.
    """
    top = os.path.realpath(root)
    top = os.path.dirname(top) if os.path.isfile(top) else top
    changed = [f for f in fixes if f.new != f.old]
    done: list[FileFix] = []
    try:
        for f in changed:
            write_inside(top, f.path, f.new.encode("utf-8", "surrogateescape"))
            done.append(f)
    except BaseException:
        restore(top, done)
        raise
    return [f.path for f in changed]


def restore(root: str, fixes: list[FileFix]) -> None:
    """Put the old text of every changed file back."""
    for f in fixes:
        if f.old:
            write_inside(root, f.path, f.old.encode("utf-8", "surrogateescape"))
        else:
            os.unlink(os.path.join(root, f.path))  # it was made by the fix


@dataclass(frozen=True, slots=True)
class Left:
    """Findings of one rule that no edit answers, and why."""

    rule: str
    code: str
    count: int
    reason: str


def left_over(path: str, fixes: list[FileFix], archs: tuple[Arch, ...] | None = None) -> list[Left]:
    """What the fixes leave, worst first: refused edits by their reason, and rules for which there is no diff."""
    touched = {(f.path, e.rule) for f in fixes for e in f.applied} | {a for f in fixes for a in f.answers}
    refused = {(f.path, r.rule): r.reason for f in fixes for r in f.refused}
    counts: dict[tuple[str, str, str], int] = {}
    for finding in sorted(audit(path, archs=archs).findings, key=rank):
        place = (finding.path, finding.rule)
        if place in touched and place not in refused:
            continue
        loaded = find(finding.rule)
        reason = refused.get(place) or (f"no diff for this: {loaded.rule.en.do}" if loaded is not None else "")
        if place not in refused and finding.fix is Fix.SUGGEST:
            reason = "only with --unsafe, or not in this shape"
        key = (finding.rule, finding.code, reason)
        counts[key] = counts.get(key, 0) + 1
    return [Left(rule, code, n, reason) for (rule, code, reason), n in counts.items()]


def try_out(root: str, fixes: list[FileFix], command: str, timeout_s: int = 3600) -> str:
    """Run the project's tests on the edited tree; where they fail the old texts come back.

    Returns:
        "" where they pass; else the end of what they said.
    """
    top = os.path.realpath(root)
    top = os.path.dirname(top) if os.path.isfile(top) else top
    try:
        done = subprocess.run(
            shlex.split(command), cwd=top, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        said = f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}" if done.returncode else ""
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said:
        restore(top, [f for f in fixes if f.new != f.old])
    return said
