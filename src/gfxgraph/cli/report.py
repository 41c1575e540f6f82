"""Make an HTML page of what processes left: coverage, graphs, memory, what was reported."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gfxgraph import files

STATUS_COULD_NOT = 2


@click.command("report")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out", "-o", default="gfxgraph-report.html", show_default=True, metavar="FILE.html", help="Where to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON in place of a page.")
def command(folder: Path, out: str, as_json: bool) -> None:
    """Make one offline HTML page of what processes left in FOLDER.

    \b
    gfxgraph run --report out.html train.py     the page at once, of one run
    GFXGRAPH_REPORT=seen vllm serve ...         left by each process, every few seconds and at its end
    gfxgraph report seen -o out.html

    Exit status: 0 if the page was written, 2 if nothing was found.
    """
    # lazily: help does without
    from gfxgraph.reporting import leave, page

    found = leave.read(folder)
    if not found:
        click.echo(f"gfxgraph report: no process left anything in {folder}", err=True)
        click.echo(f"  start the program with GFXGRAPH=1 GFXGRAPH_REPORT={folder}", err=True)
        sys.exit(STATUS_COULD_NOT)
    if as_json:
        # lazily: likewise
        import json

        click.echo(json.dumps(found))
        return
    files.write(Path(out), page.html(found))
    click.echo(out)
