"""Measure eager, graph and compiled side by side, on built-in workloads or a function of yours."""

from __future__ import annotations

import json
import sys

import click

from gfxgraph.cli._contract import DEFAULT_PROFILE

WAYS = ("eager", "graph", "graphed", "compiled", "reduce-overhead")
STATUS_COULD_NOT = 2


@click.command("bench")
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option("--arg", "expressions", multiple=True, metavar="EXPRESSION", help="An argument of FUNCTION, in Python.")
@click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, help="Only these, and eager. [default: all]")
@click.option("--workload", "wanted", multiple=True, metavar="NAME", help="Only these built-in workloads.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=5), help="Samples of each way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every sample.")
@click.option("--allow-cuda", is_flag=True, help="Also on a CUDA build of torch, with an NVIDIA GPU.")
@click.option("--simulate", is_flag=True, help="Without a GPU: whether it runs, not how fast.")
def command(
    target: str | None,
    expressions: tuple[str, ...],
    ways: tuple[str, ...],
    wanted: tuple[str, ...],
    rounds: int,
    as_json: bool,
    allow_cuda: bool,
    simulate: bool,
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
    from gfxgraph.reporting import bench, check

    # lazily: likewise
    gfxgraph.enable(allow_cuda=allow_cuda or None, simulate=DEFAULT_PROFILE if simulate else None, validate=False)
    chosen = ways or WAYS
    if simulate:
        chosen = tuple(way for way in chosen if way in ("eager", "graph", "graphed"))
    results = []
    if target is not None:
        try:
            fn = check.load(target)
            made = fn() if isinstance(fn, type) else fn
            args = check.arguments(made, expressions)
        except check.CannotCheck as error:
            click.echo(f"gfxgraph bench: {error}", err=True)
            sys.exit(STATUS_COULD_NOT)
        results.append(bench.measure(target, made, args, chosen, rounds))
    else:
        known = {workload.name: workload for workload in bench.WORKLOADS}
        if unknown := [name for name in wanted if name not in known]:
            raise click.UsageError(f"no workload {unknown[0]}; there are {', '.join(known)}")
        for name in wanted or known:
            fn, args = known[name].make()
            results.append(bench.measure(name, fn, args, chosen, rounds))
    if as_json:
        table = {"provenance": bench.provenance(), "results": [result.as_dict() for result in results]}
        click.echo(json.dumps(table, indent=1))
    else:
        if simulate:
            click.echo("simulated: these times say nothing about a GPU")
        click.echo(bench.table(results))
    sys.exit(0 if any(way.ms for result in results for way in result.ways) else STATUS_COULD_NOT)
