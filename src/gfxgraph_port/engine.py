"""Run the rules on one file and judge every hit by the guards round it."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gfxgraph_port.archs import Arch
from gfxgraph_port.budget import FILE_SECONDS, OutOfTimeError, processor_time
from gfxgraph_port.files import printable
from gfxgraph_port.guards import cpp as cpp_guards
from gfxgraph_port.guards import text as text_guards
from gfxgraph_port.guards.cpp import Macros
from gfxgraph_port.guards.python import PyGuards
from gfxgraph_port.model import Finding, Hit, Impact, Rule, Severity, SkippedFile
from gfxgraph_port.project import ANSWERED_BY_HOME, HOME, Project, UnreadableError, kind_of
from gfxgraph_port.readers.cpp import CppFile
from gfxgraph_port.readers.directives import TooDeepError
from gfxgraph_port.readers.python import PyFile
from gfxgraph_port.readers.requirements import RequirementFile
from gfxgraph_port.readers.text import LogicalLine, TextFile
from gfxgraph_port.registry import Check, for_kind, impact_of, rank

_IGNORE = re.compile(r"gfxport:\s*(?P<what>ignore(?:-next-line|-file)?)\s*(?:\[(?P<rules>[^\]]*)\])?(?P<reason>.*)")

_MAX_SPAN = 40
_CUDA_ONLY = ("cutlass", "cuda", "tensorrt", "pycuda", "numba.cuda", "deep_gemm", "cuda_core")  # no module for AMD
_CUTLASS = re.compile(r"\b(?:cutlass|cute)(?:::|/)")
_IMPORTS = frozenset({"cutlass", "cuda-python-stack", "nvidia-only-library", "cuda-only-module", "nvml-import"})
_OTHER = re.compile(
    r"(?i)(?:^|[/_.-])(?:cpu|no[-_]?gpu|mps|mac(?:os)?|xpu|npu|tpu|ascend|intel|dml|directml|ipex|openvino|vulkan|metal|sycl|musa)(?:[_.-][^/]*)?$"
)
_CI = re.compile(
    r"(?:.*/)?\.(?:github|circleci|azure[\w-]*|gitlab|ci|buildkite|jenkins)/|\.gitlab-ci\.yml|azure-pipelines|docker-compose\.(?:test|ci)"
)


@dataclass(slots=True)
class Context:
    """What a check may ask beyond its file."""

    project: Project
    path: str
    vendor: str = ""
    guards: PyGuards | None = None
    added: frozenset[int] | None = None


@dataclass(slots=True)
class FileResult:
    """Everything one file gave."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    guarded: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    n_lines: int = 0
    places: set[tuple[str, int]] = field(default_factory=set)  # rules and lines before one finding a line was kept


def audit_file(project: Project, path: str, kind: str, archs: tuple[Arch, ...]) -> FileResult:
    """Audit one file. Whatever it contains, this returns."""
    result = FileResult(path)
    try:
        text, note = project.read(path)
    except UnreadableError as error:
        result.skipped.append(SkippedFile(path, str(error)))
        return result
    except OSError as error:
        result.skipped.append(SkippedFile(path, "unreadable", str(error.strerror)))
        return result
    if note:
        result.skipped.append(SkippedFile(path, "encoding", note))
    result.n_lines = text.count("\n") + 1
    vendor = project.vendor_of(path, kind) or ("nvidia" if "NOTICE TO LICENSEE" in text[:3000] else "")
    added = project.diff.get(path, frozenset()) if project.diff is not None else None
    context = Context(project, path, vendor, added=added)
    try:
        with processor_time():
            _audit_text(result, context, kind, text, archs)
    except OutOfTimeError:
        project.forget()
        result.skipped.append(SkippedFile(path, "too slow", f"stopped after {FILE_SECONDS:g} s of processor time"))
    except TooDeepError as error:
        result.skipped.append(SkippedFile(path, "too deep", str(error)))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"line {line}: " if line else ""
        result.skipped.append(SkippedFile(path, "syntax", f"{place}{getattr(error, 'msg', None) or error}"))
    except (RecursionError, MemoryError) as error:
        result.skipped.append(SkippedFile(path, "too deep", type(error).__name__))
    _suppress(result, text)
    result.places = {(f.rule, f.line) for f in result.findings}
    result.findings, result.guarded = _distinct(result.findings), _distinct(result.guarded)
    for name in ("findings", "guarded", "suppressed"):
        changed = (f for f in getattr(result, name) if added is None or any(map(f.covers, added)))
        setattr(result, name, _grouped(list(changed)))
    return result


def _distinct(findings: list[Finding]) -> list[Finding]:
    """One finding of a rule a line, the worst; what is slow or a name alone gives way to what does more harm."""
    best: dict[tuple[int, str], Finding] = {}
    for f in sorted(findings, key=rank):
        best.setdefault((f.line, f.rule), f)
    harmed = {f.line for f in findings if impact_of(f.code) in (Impact.BREAKS, Impact.SILENT)}
    return [
        f for f in findings
        if best[f.line, f.rule] is f and (f.line not in harmed or impact_of(f.code) in (Impact.BREAKS, Impact.SILENT))
    ]  # fmt: skip


def _grouped(findings: list[Finding]) -> list[Finding]:
    """One finding for each rule, with all of its lines, at the first of its worst."""
    groups: dict[str, list[Finding]] = {}
    for f in sorted(findings, key=lambda f: (f.line, f.column)):
        groups.setdefault(f.rule, []).append(f)
    made = []
    for members in groups.values():
        lines = {n for f in members for n in range(f.line, max(f.line, f.end_line) + 1)}
        worst = max(members, key=lambda f: f.severity)
        end = worst.end_line if len(members) == 1 else 0
        # By rule, path and texts, not by line, so that edits elsewhere in the file do not move it.
        texts = (" ".join(f.evidence.split()) for f in members)
        name = hashlib.sha256("\0".join((worst.rule, worst.path, *texts)).encode()).hexdigest()[:16]
        made.append(replace(worst, lines=tuple(sorted(lines)), end_line=end, fingerprint=name))
    return made


def guarded_run(rule: Rule, check: Check, file: object, context: Context, result: FileResult) -> list[Hit]:
    """A check's hits. A check that fails on odd input loses its own hits, not the file's, and is reported."""
    try:
        return list(check(file, context))
    except Exception as error:  # noqa: BLE001 - reported with the file, never silent
        result.skipped.append(SkippedFile(result.path, "rule failed", f"{rule.id}: {type(error).__name__}: {error}"))
        return []


def wanted(kind: str, lowered: str) -> list[tuple[Rule, Check]]:
    """Rules of a kind whose needed words occur in a text; each word is looked for once."""
    rules, words = _needed(kind)
    there = {word for word in words if word in lowered}
    return [(rule, check) for rule, check, needs in rules if not needs or not there.isdisjoint(needs)]


@lru_cache(maxsize=32)
def _needed(kind: str) -> tuple[list[tuple[Rule, Check, frozenset[str]]], frozenset[str]]:
    rules = [(rule, check, frozenset(rule.needs)) for rule, check in for_kind(kind)]
    return rules, frozenset().union(*(needs for _, _, needs in rules))


def _audit_text(result: FileResult, context: Context, kind: str, text: str, archs: tuple[Arch, ...]) -> None:
    rules = wanted(kind, text.lower())
    if not rules:
        return
    if kind == "python":
        _audit_python(result, context, text, rules, archs)
    elif kind == "cpp":
        _run_cpp(result, context, CppFile(result.path, text), rules, archs)
    elif kind == "requirements":
        needs = RequirementFile(result.path, text)
        for rule, check in rules:
            for hit in guarded_run(rule, check, needs, context, result):
                if needs.is_lock:  # it is made anew as a whole, from what is reported in the list behind it
                    hit = replace(hit, severity=Severity.LOW)
                _record(context, result, rule, hit, needs.lines, archs, "")
        if needs.is_lock:
            return
        rest = "ini" if not result.path.endswith((".yml", ".yaml")) else "yaml"
        _run_lines(result, context, TextFile(result.path, text, rest), rest, text, archs)
    else:
        _run_lines(result, context, TextFile(result.path, text, kind), kind, text, archs)


def _run_lines(
    result: FileResult, context: Context, file: TextFile, kind: str, text: str, archs: tuple[Arch, ...]
) -> None:
    for rule, check in wanted(kind, text.lower()):
        for hit in guarded_run(rule, check, file, context, result):
            reached, reason = archs, ""
            if isinstance(hit.node, LogicalLine):
                reached, reason = text_guards.reaching(hit.node, archs)
            _record(context, result, rule, hit, file.lines, reached, reason)


def _audit_python(
    result: FileResult, context: Context, text: str, rules: list[tuple[Rule, Check]], archs: tuple[Arch, ...]
) -> None:
    file = PyFile(result.path, text)
    guards = PyGuards(file, context.project)
    context.guards = guards
    needed = _cuda_only(file, context.project)
    for rule, check in rules:
        for hit in guarded_run(rule, check, file, context, result):
            node = hit.node
            if needed and rule.code not in _IMPORTS and not hit.guarded_by:
                hit = replace(hit, guarded_by=f"this module needs {needed}; its import is the finding")
            if isinstance(node, ast.AST):
                if is_said(file, node):
                    continue
                reached, reason = guards.reaching(node, archs)
            else:
                reached, reason = archs, ""
            _record(context, result, rule, hit, file.lines, reached, reason)


def _cuda_only(file: PyFile, project: Project) -> str:
    """The package for NVIDIA alone that a module cannot be imported without, or ""."""
    for node, module, level, _ in file.import_sites:
        if (
            level
            or not any(module == n or module.startswith(f"{n}.") for n in _CUDA_ONLY)
            or not file.at_import(node)
        ):
            continue
        if file.caught(node, "ImportError", "ModuleNotFoundError") or project.module_path(file.path, module):
            continue
        if not any(isinstance(up, ast.If) for up in file.ancestors(node)):
            return module
    return ""


_SAYS = frozenset(
    "print warn warning warn_once warning_once info info_once debug error critical exception log skip fail exit "
    "echo secho Exception".split()
)
_SAID_BY = frozenset({"help", "description", "epilog", "reason", "msg", "message", "doc", "title", "usage"})


def is_said(file: PyFile, node: ast.AST) -> bool:
    """Whether a text is part of a message: printed, logged, raised, or shown as help."""
    if not isinstance(node, ast.Constant | ast.JoinedStr):
        return False
    child: ast.AST = node
    for up in file.ancestors(node):
        if isinstance(up, ast.keyword) and up.arg in _SAID_BY:
            return True
        if isinstance(up, ast.Call):
            name = file.call_name(up).rpartition(".")[2]
            return child is not up.func and (name in _SAYS or name.endswith(("Error", "Warning", "Exception")))
        if isinstance(up, ast.stmt):
            return isinstance(up, ast.Raise) or (isinstance(up, ast.Assert) and child is up.msg)
        child = up
    return False


def _cpp_reach(file: CppFile, hit: Hit, macros: Macros, archs: tuple[Arch, ...]) -> tuple[tuple[Arch, ...], str]:
    arm = file.arm(hit.line)
    if hit.guard_free and arm is not None:
        arm = arm.parent if arm.line == hit.line else arm
    if arm is None:
        return archs, ""
    key = (arm.index, *(a.name for a in archs))
    if key not in file.reached:  # names of one arm come by the thousand
        file.reached[key] = cpp_guards.reaching(arm, archs, macros)
    return file.reached[key]


def _run_cpp(
    result: FileResult, context: Context, file: CppFile, rules: list[tuple[Rule, Check]], archs: tuple[Arch, ...]
) -> None:
    needed = _CUTLASS.search(file.code) if "cut" in file.code else None
    for rule, check in rules:
        for hit in guarded_run(rule, check, file, context, result):
            if needed and rule.code != "cutlass":
                hit = replace(hit, guarded_by="this file needs CUTLASS, which is the finding")
            reached, reason = _cpp_reach(file, hit, context.project.macros, archs)
            _record(context, result, rule, hit, file.lines, reached, reason)


def _record(
    context: Context,
    result: FileResult,
    rule: Rule,
    hit: Hit,
    lines: list[str],
    reached: tuple[Arch, ...],
    reason: str,
) -> None:
    vendor = context.vendor
    affected = hit.archs or rule.archs
    archs = tuple(a.name for a in reached if a in affected)
    evidence = printable(lines[hit.line - 1].strip()[:240]) if 0 < hit.line <= len(lines) else ""
    guarded = hit.guarded_by or ("" if reached else reason or "guarded")
    other = rule.phase == 0 or kind_of(result.path) in ("docker", "requirements", "shell")
    if not guarded and other and _OTHER.search(result.path):
        guarded = "a list for another platform, by its name"
    if not guarded and vendor == "named":
        guarded = "this recipe is named for CUDA: it is NVIDIA's; an AMD one stands beside it or is still to write"
    if not guarded and rule.phase in (0, 4) and _CI.match(result.path):
        guarded = "a continuous-integration recipe for one platform"
    if not guarded and vendor == "nvidia":
        guarded = "this file is the NVIDIA side: an AMD twin stands beside it, or it is a copy of the toolkit's"
    if not guarded and context.project.has_home and rule.code in ANSWERED_BY_HOME:
        guarded = f"{HOME} stands in for CUDA's toolkit in the HIP build"
    if not guarded and not archs:
        return  # no architecture asked for is affected
    finding = Finding(
        rule=rule.id,
        code=rule.code,
        path=result.path,
        line=hit.line,
        column=hit.column,
        severity=hit.severity if hit.severity is not None else rule.severity,
        phase=rule.phase,
        fix=rule.fix,
        archs=archs,
        evidence=evidence,
        values={k: printable(v) for k, v in hit.values.items()},
        end_line=_end(hit),
        guarded_by=printable(guarded),
    )
    (result.guarded if guarded else result.findings).append(finding)


def _end(hit: Hit) -> int:
    """The last line of what a hit names: a statement or an expression, never a whole body."""
    node = hit.node
    last = hit.end_line or hit.line
    if isinstance(node, ast.AST):
        is_whole = isinstance(node, ast.expr | ast.keyword) or not hasattr(node, "body")
        last = getattr(node, "end_lineno", None) or hit.line if is_whole else hit.line
    return min(last, hit.line + _MAX_SPAN)


def _suppress(result: FileResult, text: str) -> None:
    """Apply inline ignores. One without a reason is not honoured, and said so."""
    if "gfxport:" not in text:
        return
    rules_at: dict[int, list[str]] = {}
    whole: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _IGNORE.search(line)
        if not match:
            continue
        if not re.search(r"\w", match["reason"]):
            result.skipped.append(
                SkippedFile(result.path, "ignore", f"line {number}: an ignore needs a reason; not applied")
            )
            continue
        names = [r.strip().lower() for r in (match["rules"] or "*").split(",")]
        if match["what"] == "ignore-file":
            whole += names
        else:
            target = number + 1 if match["what"] == "ignore-next-line" else number
            rules_at.setdefault(target, []).extend(names)

    def hidden(finding: Finding) -> bool:
        names = [*whole, *rules_at.get(finding.line, ())]
        return any(n in ("*", finding.rule.lower(), finding.code) for n in names)

    result.suppressed = [f for f in result.findings if hidden(f)]
    result.findings = [f for f in result.findings if not hidden(f)]
