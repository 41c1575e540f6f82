"""What ``gfxgraph doctor --matrix`` shows: self-test reports as one table."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gfxgraph import config
from gfxgraph.cli import _contract
from gfxgraph.diagnostics.render import visible
from gfxgraph.selftest.matrix import Matrix, MatrixRow, matrix

_WORDS = {
    "runtime": ("runtime", "运行时"),
    "arch": ("arch", "架构"),
    "torch": ("torch", "torch"),
    "gfxgraph": ("gfxgraph", "gfxgraph"),
    "result": ("result", "结果"),
    "reports": ("reports", "报告数"),
    "newest": ("newest", "最新"),
    "not_passed": ("not passed", "未通过"),
    "left_out": ("left out", "未计入"),
    "none": ("no report of a GPU", "没有来自 GPU 的报告"),
}
_COLUMNS = ("runtime", "arch", "torch", "gfxgraph", "result", "reports", "newest", "not_passed")


def run(paths: tuple[Path, ...], *, as_json: bool) -> int:
    """Print the table; the exit status: 0 where every report passed, 1 where one did not."""
    found = matrix(paths)
    if as_json:
        click.echo(json.dumps(found.as_dict(), ensure_ascii=False, indent=1))
    else:
        _show(found, config.language_of())
    return _contract.OK if found.is_passed else _contract.FOUND


def _show(found: Matrix, language: str) -> None:
    word = _contract.words(_WORDS, language)
    if found.rows:
        table = [tuple(map(word, _COLUMNS)), *map(_cells, found.rows)]
        for at, cells in enumerate(table):
            click.echo(f"| {' | '.join(visible(cell).replace('|', '/') for cell in cells)} |")
            if at == 0:
                click.echo("|" + " --- |" * len(cells))
    else:
        click.echo(word("none"))
    for name, why in found.left_out:
        click.echo(f"{word('left_out')}: {visible(name)}: {visible(why)}", err=True)


def _cells(row: MatrixRow) -> tuple[str, ...]:
    """A row of the table, which is Markdown: it goes into documents and issues as it is."""
    result = f"{row.outcome}, {row.passed} of {row.total}"
    versions = ", ".join(row.gfxgraph)
    failed = ", ".join(row.not_passed) or "-"
    return row.runtime, row.arch, row.torch, versions, result, str(row.n_reports), row.newest[:10], failed
