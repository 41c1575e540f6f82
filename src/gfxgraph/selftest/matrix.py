"""Self-test reports of many machines as one table: what ran on which ROCm, architecture and torch.

A report is what ``gfxgraph doctor --selftest`` wrote, here or elsewhere; anybody may have written it. Reports of the
simulator tell nothing of a GPU and are left out, by name. Where several are of the same place, the row has them all:
what failed in one of them stays told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gfxgraph import files
from gfxgraph.errors import CommandError

KIND = "gfxgraph self-test"
SCHEMA = 1
_MAX_NBYTES = 16 << 20
UNKNOWN = "?"


@dataclass(slots=True)
class MatrixRow:
    """One place and what reports of it say.

    Attributes:
        runtime: "ROCm 7.2.4", or "CUDA 13.0".
        outcome: "pass", "fail", or "unfinished"; the worst of the reports'.
        passed, total: cases that passed and cases that were not skipped, in the newest report.
        not_passed: cases that did not pass, in any report.
    """

    runtime: str
    arch: str
    torch: str
    gpu: str
    outcome: str = "pass"
    passed: int = 0
    total: int = 0
    not_passed: list[str] = field(default_factory=list)
    gfxgraph: list[str] = field(default_factory=list)
    n_reports: int = 0
    newest: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rows, in order of runtime, architecture and torch, and what was left out with the reason."""

    rows: tuple[MatrixRow, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def is_passed(self) -> bool:
        return all(row.outcome == "pass" for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        left_out = [{"file": name, "why": why} for name, why in self.left_out]
        rows = [asdict(row) for row in self.rows]
        return {"kind": "gfxgraph matrix", "schema": SCHEMA, "rows": rows, "left_out": left_out}


def matrix(paths: Iterable[Path]) -> Matrix:
    """Merge the reports in ``paths``.

    Raises:
        CommandError: `file_unusable`, for a file that is no report of the self-test.
    """
    rows: dict[tuple[str, str, str], MatrixRow] = {}
    left_out: list[tuple[str, str]] = []
    for path in paths:
        report = read(path)
        if report.get("is_simulated"):
            left_out.append((path.name, f"made in {report.get('where', 'the simulator')}"))
            continue
        fresh = row_of(report)
        known = rows.setdefault((fresh.runtime, fresh.arch, fresh.torch), fresh)
        if known is not fresh:
            _merge(known, fresh)
    ordered = sorted(rows.values(), key=lambda row: (row.runtime, row.arch, row.torch))
    return Matrix(tuple(ordered), tuple(left_out))


def read(path: Path) -> Mapping[str, Any]:
    """One report.

    Raises:
        CommandError: `file_unusable`.
    """
    try:
        if path.exists() and not path.is_file():
            raise CommandError("file_unusable", path=path, problem="no regular file")
        data = files.read_named(path, _MAX_NBYTES)
    except OSError as error:
        raise CommandError("file_unusable", path=path, problem=error.strerror or error) from error
    try:
        found = files.parse_json(data)
    except ValueError as error:
        raise CommandError("file_unusable", path=path, problem=f"not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise CommandError("file_unusable", path=path, problem="not a report of gfxgraph doctor --selftest")
    if found.get("schema") != SCHEMA:
        problem = f"a report of schema {found.get('schema')}; this gfxgraph reads {SCHEMA}"
        raise CommandError("file_unusable", path=path, problem=problem)
    return found


def row_of(report: Mapping[str, Any]) -> MatrixRow:
    """What one report says. What it does not say is "?"."""
    environment, device, verdict = (_part(report, name) for name in ("environment", "device", "verdict"))
    counts = _part(verdict, "counts")
    numbers = {name: n for name, n in counts.items() if isinstance(n, int)}
    failed = verdict.get("not_passed")
    outcome = str(verdict.get("outcome"))
    return MatrixRow(
        runtime=_runtime(environment, device),
        arch=str(device.get("arch") or UNKNOWN).split(":")[0],
        torch=_release(device.get("torch") or environment.get("torch")),
        gpu=str(device.get("name") or report.get("where") or UNKNOWN),
        outcome=outcome if outcome in ("pass", "fail") else "unfinished",
        passed=numbers.get("pass", 0),
        total=sum(numbers.values()) - numbers.get("skip", 0),
        not_passed=[str(name) for name in failed] if isinstance(failed, list) else [],
        gfxgraph=[str(report.get("gfxgraph") or UNKNOWN)],
        n_reports=1,
        newest=str(report.get("made_at") or ""),
    )


def _merge(known: MatrixRow, fresh: MatrixRow) -> None:
    order = ("pass", "unfinished", "fail")
    known.outcome = max(known.outcome, fresh.outcome, key=order.index)
    known.n_reports += 1
    known.not_passed += [name for name in fresh.not_passed if name not in known.not_passed]
    known.gfxgraph += [version for version in fresh.gfxgraph if version not in known.gfxgraph]
    if fresh.newest >= known.newest:
        known.passed, known.total, known.newest, known.gpu = fresh.passed, fresh.total, fresh.newest, fresh.gpu


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _runtime(environment: Mapping[str, Any], device: Mapping[str, Any]) -> str:
    if environment.get("rocm"):
        return f"ROCm {environment['rocm']}"
    if device.get("hip"):
        return f"HIP {device['hip']}"
    return f"CUDA {device['cuda']}" if device.get("cuda") else UNKNOWN


def _release(version: object) -> str:
    """``2.11.0`` of ``2.11.0+rocm7.2``."""
    return str(version or UNKNOWN).partition("+")[0]
