"""Measure eager, graph and compiled side by side, on built-in workloads or a function of yours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gfxgraph import files
from gfxgraph.cli import _contract

WAYS = ("eager", "graph", "graphed", "compiled", "reduce-overhead")


@click.command("bench", cls=_contract.Command)
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option("--arg", "expressions", multiple=True, metavar="EXPRESSION", help="An argument of FUNCTION, in Python.")
@click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, help="Only these, and eager. [default: all]")
@click.option("--workload", "wanted", multiple=True, metavar="NAME", help="Only these built-in workloads.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=5), help="Samples of each way.")
@click.option(
    "--report", "page_file", metavar="FILE.html", help="Write the figures with plots as one HTML page, too."
)
@_contract.as_json
@_contract.allow_cuda
@_contract.simulate
def command(
    target: str | None,
    expressions: tuple[str, ...],
    ways: tuple[str, ...],
    wanted: tuple[str, ...],
    rounds: int,
    page_file: str | None,
    as_json: bool,
    allow_cuda: bool,
    simulate: str,
) -> None:
    """Measure eager, graph and compiled side by side.

    \b
    gfxgraph bench
    gfxgraph bench model:step --arg "torch.randn(1, 512, device='cuda')" --way graph

    A speed-up that the spread of the samples hides is not printed as one.

    Exit status: 0 if something was measured, 2 if not.
    """
    # lazily: it needs torch
    import gfxgraph
    from gfxgraph.reporting import bench, check, page

    # lazily: likewise
    gfxgraph.enable(allow_cuda=allow_cuda or None, simulate=simulate or None, validate=False)
    chosen = ways or WAYS
    if simulate:
        chosen = tuple(way for way in chosen if way in ("eager", "graph", "graphed"))
    results = []
    if target is not None:
        fn = check.load(target)
        results.append(bench.measure(target, fn, check.arguments(fn, expressions, target), chosen, rounds))
    else:
        known = {workload.name: workload for workload in bench.WORKLOADS}
        if unknown := [name for name in wanted if name not in known]:
            _contract.refuse_name("workload", unknown[0], known, ", ".join(known))
        for name in wanted or known:
            fn, args = known[name].make()
            results.append(bench.measure(name, fn, args, chosen, rounds))
    table = {"provenance": bench.provenance(), "results": [result.as_dict() for result in results]}
    if page_file is not None:
        files.write(Path(page_file), page.html([], [table]))
    if as_json:
        click.echo(json.dumps(table, indent=1))
    else:
        if simulate:
            click.echo("simulated: these times say nothing about a GPU")
        click.echo(bench.table(results))
    sys.exit(_contract.OK if any(way.ms for result in results for way in result.ways) else _contract.COULD_NOT)
