"""Audit a repository: every file through the rules, then what only the whole repository can tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from gfxgraph_port.archs import Arch, select
from gfxgraph_port.changes import RevisionError, changed_lines
from gfxgraph_port.engine import FileResult, audit_file
from gfxgraph_port.facts import gather
from gfxgraph_port.model import Finding, Severity, SkippedFile
from gfxgraph_port.project import MAX_BYTES, Project, discover
from gfxgraph_port.registry import for_kind

_PARALLEL_BYTES = 400_000


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
    skipped: list[SkippedFile] = field(default_factory=list)
    n_files: int = 0
    n_lines: int = 0
    n_milder: int = 0  # left out by ``min_severity``


def audit(
    path: str,
    *,
    archs: tuple[Arch, ...] | None = None,
    rules: frozenset[str] | None = None,
    kinds: frozenset[str] | None = None,
    diff: str | None = None,
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
        progress: called with files done and files in all.

    Raises:
        AuditError: the path does not exist, or the revision is not known.
    """
    if not os.path.exists(path):
        raise AuditError(f"{path}: no such file or folder")
    project = discover(path, max_bytes=max_bytes, vendored=vendored)
    if diff is not None:
        try:
            project.diff = changed_lines(project, diff)
        except RevisionError as error:
            raise AuditError(str(error)) from error
    gather(project)
    targets = archs or select(None)
    todo = [
        (s.path, s.kind, s.nbytes)
        for s in project.sources
        if (project.diff is None or s.path in project.diff) and (kinds is None or s.kind in kinds)
    ]
    results = _run(project, todo, targets, jobs, progress)
    report = Audit(project.root, targets, skipped=list(project.skipped), n_files=len(todo))
    for result in results:
        report.n_lines += result.n_lines
        report.findings += result.findings
        report.guarded += result.guarded
        report.suppressed += result.suppressed
        report.skipped += result.skipped
    report.n_milder = sum(f.severity < min_severity for f in report.findings)
    keep = _filter(rules, min_severity)
    for name in ("findings", "guarded", "suppressed"):
        ordered = sorted(getattr(report, name), key=lambda f: (f.path, f.line, f.column, f.rule))
        setattr(report, name, [f for f in ordered if keep(f)])
    return report


_worker: tuple[Project, tuple[Arch, ...]] | None = None


def _start_worker(project: Project, archs: tuple[str, ...]) -> None:
    global _worker
    _worker = (project, select(archs))


def _work(item: tuple[str, str, int]) -> FileResult:
    assert _worker is not None
    return audit_file(_worker[0], item[0], item[1], _worker[1])


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
    names = tuple(a.name for a in archs)
    for kind in {kind for _, kind, _ in todo}:
        for_kind(kind)  # once, before the workers are made
    ordered = sorted(todo, key=lambda t: -t[2])  # the largest first, so that none is left last
    with ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(project, names)) as pool:
        for result in pool.map(_work, ordered, chunksize=4):
            results.append(result)
            if progress:
                progress(len(results), len(todo))
    return results


def _filter(rules: frozenset[str] | None, min_severity: Severity) -> Callable[[Finding], bool]:
    wanted = None if rules is None else {r.lower() for r in rules}

    def keep(f: Finding) -> bool:
        if f.severity < min_severity:
            return False
        return wanted is None or f.code in wanted or any(f.rule.lower().startswith(w) for w in wanted)

    return keep
