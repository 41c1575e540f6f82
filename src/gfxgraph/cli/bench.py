"""Compare the speed of eager, graph and compiled execution, of built-in workloads or your function."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from gfxgraph import files
from gfxgraph.cli import _contract

WAYS = ("eager", "graph", "graphed", "compiled", "reduce-overhead")


@click.command("bench", cls=_contract.Command)
@click.argument("target", required=False, metavar="[MODULE:FUNCTION | kernels]")
@click.option("--arg", "expressions", multiple=True, metavar="EXPRESSION", help="An argument of FUNCTION, in Python.")
@click.option(
    "--way",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    help="Measure only this and eager; repeatable. [default: all]",
)
@click.option("--workload", "wanted", multiple=True, metavar="NAME", help="Only this built-in workload; repeatable.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=5), help="Samples of each way.")
@click.option(
    "--report",
    "page_file",
    type=_contract.OutFile(),
    metavar="FILE.html",
    help="Also write the figures, with plots, as an HTML page.",
)
@click.option(
    "--compile-only", is_flag=True, help="For kernels: show what they compile to for AMD GPUs; needs no GPU."
)
@click.option("--arch", "archs", multiple=True, metavar="GFX", help="With --compile-only: only these. [default: all]")
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
    compile_only: bool,
    archs: tuple[str, ...],
    as_json: bool,
    allow_cuda: bool,
    simulate: str,
) -> None:
    """Compare the speed of eager, graph and compiled execution.

    \b
    gfxgraph bench
    gfxgraph bench model:step --arg "torch.randn(1, 512, device='cuda')"
    gfxgraph bench kernels
    gfxgraph bench kernels --compile-only --arch gfx1030

    "kernels" measures each operation of gfxgraph.kernels at the sizes of a decode step, beside eager, torch.compile
    and, where it is installed, Liger-Kernel.

    A difference within the spread of the samples is not shown as a number.

    Exit status: 0 if something was measured, 2 if not.
    """
    _refuse_conflicts(target, bool(expressions), bool(wanted), compile_only, bool(archs))
    if compile_only:
        _compile_only(archs, as_json)
    # lazily: it needs torch
    import gfxgraph
    from gfxgraph.reporting import bench, check, page

    # lazily: likewise
    gfxgraph.enable(allow_cuda=allow_cuda or None, simulate=simulate or None, validate=False)
    if target == "kernels":
        _kernels(rounds, as_json, bool(simulate))
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


def _refuse_conflicts(
    target: str | None, has_arguments: bool, has_workloads: bool, compile_only: bool, has_archs: bool
) -> None:
    """Options that would be accepted and then do nothing."""
    if has_archs and not compile_only:
        raise click.UsageError("--arch goes with --compile-only")
    if compile_only and target != "kernels":
        raise click.UsageError("--compile-only is for the kernels: gfxgraph bench kernels --compile-only")
    if has_workloads and target is not None:
        raise click.UsageError("--workload names built-in ones; leave out MODULE:FUNCTION")
    if has_arguments and target in (None, "kernels"):
        raise click.UsageError("--arg is for a function of yours: gfxgraph bench MODULE:FUNCTION --arg ...")


def _kernels(rounds: int, as_json: bool, simulate: bool) -> NoReturn:
    # lazily: it needs torch
    import torch

    from gfxgraph.reporting import bench, kernels

    if simulate:
        raise click.UsageError("the simulator runs no kernels; --compile-only needs no GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    copy = kernels.copy_gb_s(device)
    rows = [kernels.measure(case, rounds, device, torch.float16, copy).as_dict() for case in kernels.cases()]
    if as_json:
        click.echo(json.dumps({"provenance": bench.provenance(), "copy_gb_s": copy, "results": rows}, indent=1))
    else:
        click.echo(f"a copy moves {copy:.0f} GB/s\n{kernels.table(rows)}")
    sys.exit(_contract.OK if any(row["speedup"] for row in rows) else _contract.COULD_NOT)


def _compile_only(archs: tuple[str, ...], as_json: bool) -> NoReturn:
    # lazily: it needs torch, and Triton
    from gfxgraph.kernels import launching, objects

    if not launching.has_triton():
        _contract.refuse("module_missing", module="triton", purpose="Triton compiles the kernels")
    if unknown := [name for name in archs if name not in objects.TARGETS]:
        _contract.refuse_name("target", unknown[0], objects.TARGETS, ", ".join(objects.TARGETS))
    targets = {name: objects.TARGETS[name] for name in archs or objects.TARGETS}
    try:
        rows = list(objects.rows(targets, {"fp16": objects.DTYPES["fp16"]}))
    except RuntimeError as error:
        raise click.UsageError(f"this Triton does not compile for one of {', '.join(targets)}: {error}") from error
    click.echo(json.dumps(rows, indent=1) if as_json else objects.table(rows))
    sys.exit(_contract.OK)
