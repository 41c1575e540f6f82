"""Find what can be fixed, fix it in memory, pass the gate, and hand back a patch.

Nothing is written here but through ``write_all``, which follows no link and undoes what it began.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gfxgraph.port.archs import Arch, select
from gfxgraph.port.audit import require_parsers
from gfxgraph.port.engine import Context, audit_file, wanted
from gfxgraph.port.facts import gather
from gfxgraph.port.files import read_inside, write_inside
from gfxgraph.port.fix import gate
from gfxgraph.port.fix.edits import Edit, Refusal, apply_cpp, apply_python
from gfxgraph.port.guards import cpp as cpp_guards
from gfxgraph.port.guards.python import PyGuards
from gfxgraph.port.model import Fix
from gfxgraph.port.project import MAX_READ, Project, UnreadableError, discover
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.readers.python import PyFile


@dataclass
class FileFix:
    """What happened to one file."""

    path: str
    old: str
    new: str
    applied: list[Edit] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

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
    for source in project.sources:
        if source.kind in ("python", "cpp"):
            made = fix_file(project, source.path, source.kind, unsafe=unsafe, archs=archs or select(None))
            if made is not None:
                found.append(made)
    found += _gitignore(project)
    return found


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
    result.refused = [p for p in proposals if isinstance(p, Refusal)]
    edits = [p for p in proposals if isinstance(p, Edit)]
    if edits:
        _apply(result, edits, kind)
    return result if result.applied or result.refused else None


def _apply(result: FileFix, edits: list[Edit], kind: str) -> None:
    """Apply all edits at once; where the gate refuses them together, those that pass alone."""
    apply = apply_python if kind == "python" else apply_cpp

    def attempt(chosen: list[Edit]) -> tuple[str, str]:
        try:
            new = apply(result.old, chosen)
        except Exception as error:  # noqa: BLE001 - LibCST raises its own tree of errors for odd sources
            return "", f"could not be applied: {error}"
        verdict = gate.check(result.path, result.old, new)
        return (new, "") if verdict.passes else ("", verdict.reason)

    new, reason = attempt(edits)
    if reason:
        passing = []
        for edit in edits:
            _, why = attempt([edit])
            if why:
                result.refused.append(Refusal(edit.line, why, edit.rule))
            else:
                passing.append(edit)
        edits = passing
        new, reason = attempt(edits) if edits else (result.old, "")
        if reason:
            result.refused += [Refusal(e.line, reason, e.rule) for e in edits]
            edits, new = [], result.old
    result.new, result.applied = new, edits


def _proposals(
    project: Project, path: str, kind: str, text: str, unsafe: bool, archs: tuple[Arch, ...]
) -> Iterator[Edit | Refusal]:
    shown = {(f.rule, n) for f in audit_file(project, path, kind, archs).findings for n in (f.lines or (f.line,))}
    name = "fix_python" if kind == "python" else "fix_cpp"
    file: Any = PyFile(path, text) if kind == "python" else CppFile(path, text)
    guards = PyGuards(file, project) if kind == "python" else None
    context = Context(project, path, project.vendor_of(path, kind), guards)
    for rule, check in wanted(kind, text.lower()):
        if rule.fix is Fix.NONE or (rule.fix is Fix.SUGGEST and not unsafe):
            continue
        module = importlib.import_module(check.__module__)
        propose = getattr(module, name, None)
        if propose is None:
            continue
        for hit in check(file, context):
            if (rule.id, hit.line) not in shown:
                continue
            if guards is not None and not guards.reaching(hit.node, archs)[0]:
                continue
            if guards is None and not cpp_guards.reaching(file.arm(hit.line), archs, project.macros)[0]:
                if not hit.guard_free:
                    continue
            made = propose(hit.node if guards is not None else hit, file, context)
            if isinstance(made, Edit):
                yield Edit(made.line, made.column, made.text, rule.id, made.length)
            elif isinstance(made, Refusal):
                yield Refusal(made.line, made.reason, rule.id)


def _gitignore(project: Project) -> list[FileFix]:
    """Patterns for the copies that torch's hipify writes."""
    from gfxgraph.port.rules import generated_hip_not_ignored as rule

    if not list(rule.check_repo(project, Context(project, ""))):
        return []
    if any(path.endswith(".hip") for path in project.paths("cpp")):
        return [FileFix(".gitignore", "", "", refused=[Refusal(1, "hand-written .hip sources are here", "GFX411")])]
    try:
        old = read_inside(project.root, ".gitignore", MAX_READ).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        old = ""
    except OSError as error:
        return [FileFix(".gitignore", "", "", refused=[Refusal(1, str(error.strerror), "GFX411")])]
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
