"""gfxgraph run --coverage and --report: waits for the program, then says what of it ran in graphs.

The program's own status is the status, unless it ended well and less ran in graphs than was asked for.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gfxgraph import files
from gfxgraph.cli import _contract

_LIBRARIES = re.compile(r"\S*/(?:site|dist)-packages/")
STATUS_BELOW = 1
STATUS_COULD_NOT = 2


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What to do with what was seen.

    Args:
        coverage: count what runs in graphs.
        least: the share of launches below which the status is 1.
        with_table: print the lines that ran eagerly, too.
        page: where the HTML report goes.
    """

    coverage: bool = False
    least: float | None = None
    with_table: bool = False
    page: str | None = None

    @property
    def is_any(self) -> bool:
        return bool(self.coverage or self.page)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of watched runs."""
    for option in (
        click.option(
            "--report", "report_file", metavar="FILE.html", help="Write what ran, and where, as one HTML page."
        ),
        click.option(
            "--min-coverage",
            type=_contract.Number(0.0, 1.0),
            metavar="SHARE",
            help="Exit with status 1 if less than this share of launches is in graphs, e.g. 0.9; implies --coverage.",
        ),
        click.option("--coverage-table", is_flag=True, help="Name the lines that ran eagerly; implies --coverage."),
        click.option("--coverage", is_flag=True, help="Report how much ran in graphs; a launch costs some us."),
    ):
        command = option(command)
    return command


def wanted(coverage: bool, table: bool, least: float | None, page: str | None) -> WatchOptions:
    """What the options ask for."""
    return WatchOptions(coverage or table or least is not None or bool(page), least, table, page)


def run(wait: Callable[[dict[str, str]], int], environment: Mapping[str, str], asked: WatchOptions) -> int:
    """Run the program by ``wait``, print its coverage, write its page; returns the status to exit with."""
    folder = Path(tempfile.mkdtemp(prefix="gfxgraph-report-"))
    try:
        status = wait({**environment, "GFXGRAPH_REPORT": str(folder), "GFXGRAPH_COVERAGE": str(int(asked.coverage))})
        return _say(folder, asked, status)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(folder: Path, asked: WatchOptions, status: int) -> int:
    # lazily: a run that is not watched does without
    from gfxgraph.reporting import page, process_files
    from gfxgraph.reporting.coverage import Coverage

    found = process_files.read(folder)
    if not found:
        click.echo("gfxgraph coverage: no process used torch with gfxgraph on; nothing was seen", err=True)
        if asked.page is not None:
            click.echo(f"gfxgraph report: {asked.page} was not written", err=True)
        return status or (STATUS_BELOW if asked.least is not None else STATUS_COULD_NOT if asked.page else 0)
    seen = [Coverage.from_dict(table["coverage"]) for table in found if table.get("coverage")]
    total = sum(seen[1:], seen[0]) if seen else Coverage()
    if asked.coverage:
        of = f" (of {len(seen)} processes)" if len(seen) > 1 else ""
        text = f"gfxgraph {total}{of}" + (f"\n{total.table()}" if asked.with_table else "")
        click.echo(_LIBRARIES.sub("", text).replace(f"{Path.cwd()}/", ""), err=True)
    if asked.page is not None:
        target = Path(asked.page)
        files.write(target, page.html(found))
        click.echo(f"gfxgraph report: {target}", err=True)
    if asked.least is not None and (total.share is None or total.share < asked.least):
        share = "nothing" if total.share is None else f"{total.share:.1%}"
        click.echo(f"gfxgraph coverage: {share} in graphs is less than the {asked.least:.1%} asked for", err=True)
        return status or STATUS_BELOW
    return status
