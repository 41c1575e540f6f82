"""Helpers for the port tests: a repository from a mapping of texts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gfxgraph_port.archs import select
from gfxgraph_port.audit import Audit, audit

Run = Callable[..., Audit]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Audit a repository given as {path: text or bytes}."""

    def _run(files: Mapping[str, str | bytes], arch: str | None = None, **options: object) -> Audit:
        root = tmp_path / "repo"
        shutil.rmtree(root, ignore_errors=True)
        write(root, files)
        return audit(str(root), archs=select(arch), jobs=1, **options)  # type: ignore[arg-type]

    return _run


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, body in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body if isinstance(body, bytes) else body.encode())


def codes(report: Audit) -> list[str]:
    return [f.code for f in report.findings]


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine everything takes the two seconds after which commands tell how far they are."""
    monkeypatch.setattr("gfxgraph.process.progress.QUIET_S", 1e9)
