"""Make an HTML page from the data of a run: graphs, memory, messages."""

from __future__ import annotations

from pathlib import Path

import click

from gfxgraph import files
from gfxgraph.cli import _contract


@click.command("report")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "--out",
    "out",
    type=_contract.OutFile(),
    default="gfxgraph-report.html",
    show_default=True,
    metavar="FILE.html",
    help="Where to write.",
)
@click.option(
    "--against",
    "before",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Compare with what another run wrote to FOLDER.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON instead of a page.")
@_contract.quiet
def command(folder: Path, out: str, before: Path | None, as_json: bool, quiet: bool) -> None:
    """Make one offline HTML page from what processes wrote to FOLDER.

    \b
    gfxgraph run --report out.html train.py   the page of one run, at once
    GFXGRAPH_REPORT=seen vllm serve ...       each process writes as it runs
    gfxgraph report seen --output out.html
    gfxgraph report seen --against last       two runs beside each other

    Exit status: 0 if the page was written, 2 if there was no data.
    """
    # lazily: help does without
    from gfxgraph.reporting import page, process_files

    found, other = (
        [table for table in process_files.read(each) if page.is_readable(table)] if each is not None else []
        for each in (folder, before)
    )
    for each, tables in ((folder, found), (before, other)):
        if each is not None and not tables:
            _contract.refuse("no_report_data", folder=each)
    if as_json:
        # lazily: likewise
        import json

        click.echo(json.dumps(found))
        return
    with _contract.working("report"):
        files.write(Path(out), page.html(found, other))
    if not quiet:
        click.echo(out)
