"""Audit a repository: every file through the rules, then what only the whole repository can tell."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from gfxgraph.port.archs import Arch, select
from gfxgraph.port.engine import Context, FileResult, audit_file
from gfxgraph.port.guards.cpp import close_over
from gfxgraph.port.model import Finding, Severity, Skipped
from gfxgraph.port.project import MAX_BYTES, Project, UnreadableError, discover
from gfxgraph.port.readers.directives import Arm, Directive, arms_of, blank_comments, scan
from gfxgraph.port.registry import for_kind

_PARALLEL_BYTES = 400_000
# A variable, member or parameter, a function or a macro that the project itself calls cudaSomething.
_KEYWORD = r"(?!return\b|else\b|new\b|delete\b|throw\b|case\b|goto\b|typedef\b|sizeof\b|enum\b|const\b|volatile\b)"
_OWN_NAME = re.compile(
    r"^(?![ \t]*(?:typedef|using|extern|//))[^\n;(]*?"
    rf"(?:[\w>][ \t]*[&*]+[ \t]*|\b{_KEYWORD}[A-Za-z_][\w:<>]*[ \t]+)"
    r"(cuda[A-Z]\w*(?<!_t))[ \t]*(?:=(?!=)|;|\{|\[)|"
    r"^[ \t]*(?:static[ \t]+|inline[ \t]+|template[^\n]*>[ \t]+)*(?!cuda|CU|extern|return|else|new|throw)"
    r"[A-Za-z_][\w:<>]*[ \t&*]+(cuda[A-Z]\w*(?<!_t))[ \t]*\(|"
    r"^[ \t]*#[ \t]*define[ \t]+(cuda[A-Z]\w*)",
    re.M,
)
_WARP_CONSTANT = re.compile(
    r"(?im)^[ \t]*#[ \t]*define[ \t]+(\w*warp_?(?:size|threads|sz|width)\w*|threads_per_warp)[ \t]+\(?32[uU]?\)?[ \t]*(?://.*|/\*.*)?$|"
    r"\b(?:const|constexpr)\b[^;(){}]*?\b(\w*warp_?(?:size|threads|sz|width)\w*|\w*threads_?per_?warp)\s*(?:=|\{)\s*32\b"
)

_WARP_CODE = re.compile(r"(?i)__(?:shfl|ballot|any_sync|all_sync)|\blane_?id\b|warp_?size")


class AuditError(Exception):
    """The audit could not start; the message says why and what to do."""


@dataclass
class Audit:
    """The outcome of one audit."""

    root: str
    archs: tuple[Arch, ...]
    findings: list[Finding] = field(default_factory=list)
    guarded: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    baselined: list[Finding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    n_files: int = 0
    n_lines: int = 0


def audit(
    path: str,
    *,
    archs: tuple[Arch, ...] | None = None,
    rules: frozenset[str] | None = None,
    kinds: frozenset[str] | None = None,
    diff: str | None = None,
    baseline: str | None = None,
    vendored: bool = False,
    max_bytes: int = MAX_BYTES,
    jobs: int | None = None,
    min_severity: Severity = Severity.INFO,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit a folder or a file.

    Args:
        path: what to audit.
        archs: targets; None for every architecture of the table.
        rules: ids or codes to keep; None for all.
        kinds: kinds of file to audit (``docker``, ``python``, ...); None for all.
        diff: a git revision; only findings on lines changed since are kept.
        baseline: a file of known findings to leave out.
        progress: called with files done and files in all.

    Raises:
        AuditError: the path does not exist, the revision is not known, or a parser is not installed.
    """
    require_parsers()
    if not os.path.exists(path):
        raise AuditError(f"{path}: no such file or folder")
    project = discover(path, max_bytes=max_bytes, vendored=vendored)
    if diff is not None:
        project.diff = changed_lines(project.root, diff)
    gather(project)
    targets = archs or select(None)
    todo = [
        (s.path, s.kind, s.nbytes)
        for s in project.sources
        if (project.diff is None or s.path in project.diff) and (kinds is None or s.kind in kinds)
    ]
    results = _run(project, todo, targets, jobs, progress)
    report = Audit(project.root, targets, skipped=list(project.skipped), n_files=len(todo))
    _join_modules(project, results)
    for result in results:
        report.n_lines += result.n_lines
        report.findings += result.findings
        report.guarded += result.guarded
        report.suppressed += result.suppressed
        report.skipped += result.skipped
    report.findings += _whole(project, targets)
    keep = _filter(rules, min_severity, project.diff)
    for name in ("findings", "guarded", "suppressed"):
        # Named before anything is filtered out, so that a fingerprint does not depend on the options.
        setattr(report, name, [f for f in _ordered(getattr(report, name)) if keep(f)])
    if baseline is not None:
        known = read_baseline(baseline)
        report.baselined = [f for f in report.findings if f.fingerprint in known]
        report.findings = [f for f in report.findings if f.fingerprint not in known]
    return report


def require_parsers() -> None:
    """Refuse at the start where the parsers are missing.

    Raises:
        AuditError: names what is missing and how to get it.
    """
    import importlib.util

    needed = ("tree_sitter", "tree_sitter_cuda", "packaging")
    missing = [m for m in needed if importlib.util.find_spec(m) is None]
    if missing:
        raise AuditError(f"gfxgraph port needs {', '.join(missing)}: pip install 'gfxgraph[port]'")


def gather(project: Project) -> None:
    """Facts that one file cannot know: macros by platform, and which sources torch's hipify translates."""
    cpp: list[tuple[list[Directive], dict[int, Arm | None]]] = []
    warps: set[str] = set()
    own: set[str] = set()
    folders: set[str] = set()
    for path in project.paths("cpp"):
        text = _text(project, path)
        if _WARP_CODE.search(text):
            folders.add(path.rpartition("/")[0])
        if "cuda" in text and _OWN_NAME.search(text):
            own |= {name for m in _OWN_NAME.finditer(blank_comments(text)) for name in m.groups() if name}
        warps |= {m.group(1) or m.group(2) for m in _WARP_CONSTANT.finditer(text)}
        if "#" in text and "define" in text and re.search(r"^[ \t]*#[ \t]*(el)?if", text, re.M):
            code = blank_comments(text)
            directives = scan(code)
            arms = arms_of(directives, code.count("\n") + 1)
            lines = [d.line for d in directives if d.kind == "define"]
            index: dict[int, Arm | None] = {}
            for line in lines:
                index[line] = next((a for a in reversed(arms) if a.first_line <= line <= a.last_line), None)
            cpp.append(([d for d in directives if d.kind == "define"], index))
    project.macros = close_over(cpp)
    project.warp_constants, project.warp_folders = frozenset(warps), frozenset(folders)
    project.own_names = frozenset(own)
    named: set[str] = set()
    defined: set[str] = set()
    modules: set[str] = set()
    for path in project.paths("python"):
        text = _text(project, path)
        if re.search(
            r"\bCUDAExtension\b|cpp_extension\.load\b|\bload_inline\b|cpp_extension import .*\bload\b", text
        ):
            project.has_torch_extension = True
            project.asks_cuda_home |= "CUDA_HOME" in text and not re.search(r"ROCM_HOME|HIP_HOME|version\.hip", text)
            modules |= set(re.findall(r"[\"']([A-Za-z]\w*_(?:cuda|ext|kernels?)\w*)[\"']", text))
            if not re.search(r"cuda_(include|lib)_dirs?\b|get_cuda_dirs", text):  # else it also builds without torch
                defined |= set(re.findall(r"[\"'](?:-D)?(\w*CUDA\w*)[\"']", text))
            named |= {m.rpartition("/")[2] for m in re.findall(r"[\w./*-]+\.(?:cu|cpp|cc|cuh)\b", text)}
    project.extension_sources = frozenset(named)
    project.extension_names = frozenset(modules)
    project.extension_macros = frozenset(defined)
    for path in project.paths("cmake", "make", "shell"):
        if re.search(
            r"enable_language\(\s*HIP|find_package\(\s*hip\b|LANGUAGES[^)]*\bHIP\b|\bhipcc\b|hip_add_",
            _text(project, path),
            re.I,
        ):
            project.has_hip_build = True


def _text(project: Project, path: str) -> str:
    try:
        return project.read(path)[0]
    except (OSError, UnreadableError):
        return ""  # the audit of the file itself reports it


_worker: tuple[Project, tuple[Arch, ...]] | None = None


def _start_worker(project: Project, archs: tuple[str, ...]) -> None:
    global _worker
    _worker = (project, select(archs))


def _work(batch: list[tuple[str, str]]) -> list[FileResult]:
    assert _worker is not None
    return [audit_file(_worker[0], path, kind, _worker[1]) for path, kind in batch]


def _run(
    project: Project,
    todo: list[tuple[str, str, int]],
    archs: tuple[Arch, ...],
    jobs: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[FileResult]:
    total = sum(n for _, _, n in todo)
    workers = jobs or min(os.cpu_count() or 1, 8)
    results: list[FileResult] = []
    if workers == 1 or total < _PARALLEL_BYTES:
        for path, kind, _ in todo:
            results.append(audit_file(project, path, kind, archs))
            if progress:
                progress(len(results), len(todo))
        return results
    batches: list[list[tuple[str, str]]] = [[]]
    weight = 0
    for path, kind, nbytes in sorted(todo, key=lambda t: -t[2]):  # the largest first, so that none is left last
        if weight > 150_000 or len(batches[-1]) >= 24:
            batches.append([])
            weight = 0
        batches[-1].append((path, kind))
        weight += nbytes
    names = tuple(a.name for a in archs)
    with ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(project, names)) as pool:
        for part in pool.map(_work, batches):
            results += part
            if progress:
                progress(len(results), len(todo))
    return results


def _join_modules(project: Project, results: list[FileResult]) -> None:
    """Findings in a module that is only ever imported under a guard are guarded."""
    importers: dict[str, list[bool]] = {}
    for result in results:
        reached: dict[str, bool] = {}
        for dotted, excluded in result.imports:
            found = project.module_path(result.path, dotted)
            if found is not None and found[0] != result.path:
                reached[found[0]] = reached.get(found[0], True) and excluded
        for path, excluded in reached.items():
            importers.setdefault(path, []).append(excluded)
    closed = {path for path, excluded in importers.items() if all(excluded)}
    for result in results:
        if result.path in closed:
            why = "every import of this module stands under a guard that excludes AMD"
            result.guarded += [replace(f, guarded_by=why) for f in result.findings]
            result.findings = []


def _whole(project: Project, archs: tuple[Arch, ...]) -> list[Finding]:
    """Rules about the repository as a whole."""
    found = []
    for rule, check in for_kind("repo"):
        for path, hit in check(project, Context(project, "")):
            names = tuple(a.name for a in archs if a in (hit.archs or rule.archs))
            severity = hit.severity if hit.severity is not None else rule.severity
            evidence = hit.values.get("evidence", "")
            found.append(
                Finding(
                    rule.id, rule.code, path, hit.line, hit.column, severity, rule.phase, rule.fix, rule.cost,
                    names, evidence, dict(hit.values),
                )
            )  # fmt: skip
    return found


def _filter(
    rules: frozenset[str] | None, min_severity: Severity, diff: dict[str, frozenset[int]] | None
) -> Callable[[Finding], bool]:
    wanted = None if rules is None else {r.lower() for r in rules}

    def keep(f: Finding) -> bool:
        if f.severity < min_severity:
            return False
        if wanted is not None and not (f.code in wanted or any(f.rule.lower().startswith(w) for w in wanted)):
            return False
        span = range(f.line, max(f.line, f.end_line) + 1)
        return diff is None or not diff.get(f.path, frozenset()).isdisjoint(span)

    return keep


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    ordered = sorted(findings, key=lambda f: (f.path, f.line, f.column, f.rule))
    seen: Counter[tuple[str, str, str]] = Counter()
    named = []
    for f in ordered:
        key = (f.rule, f.path, " ".join(f.evidence.split()))
        named.append(f.with_fingerprint(seen[key]))
        seen[key] += 1
    return named


def changed_lines(root: str, revision: str) -> dict[str, frozenset[int]]:
    """Lines added or changed since a revision, by path relative to the audited folder.

    Raises:
        AuditError: git is missing, this is no repository, or the revision is not known.
    """
    from unidiff.patch import PatchSet

    command = [
        "git",
        "-C",
        root,
        "diff",
        "--unified=0",
        "--relative",
        "--no-color",
        "--no-ext-diff",
        revision,
        "--",
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AuditError(f"--diff needs git: {error}") from error
    if done.returncode:
        raise AuditError(f"git diff {revision}: {done.stderr.decode(errors='replace').strip()}")
    found: dict[str, frozenset[int]] = {}
    for file in PatchSet(done.stdout.decode("utf-8", "replace")):
        lines = {line.target_line_no for hunk in file for line in hunk if line.is_added}
        found[file.path] = frozenset(n for n in lines if n is not None)
    return found


def read_baseline(path: str) -> frozenset[str]:
    """Fingerprints of a baseline file.

    Raises:
        AuditError: the file is missing or is not a baseline.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return frozenset(str(row["fingerprint"]) for row in data["findings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AuditError(f"{path}: not a baseline file ({error}); write one with --write-baseline") from error


def write_baseline(report: Audit, path: str) -> None:
    """Write today's findings as known; rows carry path and rule so that a review can read them."""
    rows = [
        {"fingerprint": f.fingerprint, "rule": f.rule, "path": f.path, "evidence": f.evidence}
        for f in (*report.findings, *report.baselined)
    ]
    text = json.dumps({"schema": "gfxgraph-port-baseline/1", "findings": rows}, indent=1, ensure_ascii=False)
    temporary = f"{path}.tmp"
    Path(temporary).write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)
