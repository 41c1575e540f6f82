"""gfxgraph port verify: golden vectors recorded on one machine and compared on another."""

from __future__ import annotations

import json
import os
import sys

import click

from gfxgraph.cli import _contract
from gfxgraph_port.commands.options import JSON, fail
from gfxgraph_port.files import write_out


@click.group("verify", cls=_contract.Group)
def verify_group() -> None:
    """Golden vectors recorded on one machine and compared on another."""


SCHEMA = "gfxgraph-port-verify/2"
SHAPE = click.option("--shape", "shapes", multiple=True, metavar="BxSxH", help="Input shape; repeatable.")
DEVICE = click.option("--device", default="cuda", show_default=True, help="Where the model runs.")


def _shape(word: str) -> tuple[int, ...]:
    parts = word.split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        fail(f"--shape {word}: not sizes joined by x, e.g. 1x128x64")
    return tuple(map(int, parts))


@verify_group.command("record")
@click.argument("target", metavar="FILE.py:FUNCTION")
@click.option("--out", type=_contract.OutFile(), default="golden.pt", show_default=True, help="Where to write.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Data type of the model and its inputs.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random inputs.")
@SHAPE
@DEVICE
@JSON
def record_command(
    target: str, out: str, dtype: str, seed: int, shapes: tuple[str, ...], device: str, as_json: bool
) -> None:
    """Record golden vectors of what FUNCTION builds."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port.rocm import golden

    try:
        chosen = [_shape(s) for s in shapes] or golden.SHAPES
        with _contract.working("port verify record"):
            data = golden.record(golden.load_target(target), dtype=dtype, device=device, seed=seed, shapes=chosen)
        golden.save(data, out)
    except (golden.GoldenError, RuntimeError, ValueError) as error:
        fail(str(error).partition("\n")[0])
    if as_json:
        made_on = data["made_on"]["device"]
        click.echo(json.dumps({"out": out, "n_shapes": len(data["cases"]), "dtype": dtype, "device": made_on}))
        return
    click.echo(f"wrote {out}: {len(data['cases'])} shapes in {dtype} on {data['made_on']['device']}")


@verify_group.command("run")
@click.option("--golden", "golden_path", required=True, metavar="FILE", help="Golden vectors to compare with.")
@click.option("--target", required=True, metavar="FILE.py:FUNCTION", help="What the vectors were recorded from.")
@click.option(
    "--iterations", type=click.IntRange(min=1), default=100, show_default=True, help="Stability runs per shape."
)
@click.option(
    "--json",
    "json_path",
    type=_contract.OutFile(or_stdout=True),
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Print JSON, or write it to FILE.",
)
@DEVICE
@_contract.quietly
def verify_command(golden_path: str, target: str, iterations: int, json_path: str | None, device: str) -> None:
    """Compare with golden vectors: outputs, loss and gradients, and how often bits change."""
    # lazily: torch is imported by what runs
    from gfxgraph_port.rocm import golden

    for name, given in (("--golden", golden_path), ("--target", target.partition(":")[0])):
        if not os.path.isfile(given):
            _contract.refuse("file_unusable", path=given, problem=f"{name}: no such file")
    try:
        numerics = golden.compare(
            golden.load_target(target), golden.load(golden_path), device=device, iterations=iterations
        )
    except (golden.GoldenError, OSError) as error:
        fail(error)
    data = {"schema": SCHEMA, "passed": numerics["passed"], "numerics": numerics}
    try:
        if json_path is not None and json_path != "-":
            write_out(json_path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        fail(error)
    if json_path == "-":
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        sys.exit(_contract.OK if data["passed"] else _contract.FOUND)
    for row in numerics["cases"]:
        shape = "x".join(map(str, row["shape"]))
        state = "passed" if row["passed"] else "failed"
        layer = f", first layer that differs: {row['first_layer']}" if row["first_layer"] else ""
        steady = row["stability"]
        runs = f"; bits changed in {steady['n_changed']} of {steady['iterations']} runs"
        click.echo(f"{state:8} numerics {shape}: largest error {row['max_abs_error']:.3g}{layer}{runs}")
        trained = row["training"]
        said = trained["reason"] or f"loss off by {trained['loss_error']:.2g}"
        first = f", first gradient that differs: {trained['first_gradient']}" if trained["first_gradient"] else ""
        click.echo(f"{trained['outcome']:8} loss and gradients {shape}: {said}{first}")
        times = f"first run {row['first_run_s']:g} s (compiling and tuning), next {row['next_run_s']:g} s"
        click.echo(f"{'':8} {times}")
    for name, file in numerics["loaded"].items():
        click.echo(f"loaded   {name}: {file}")
    sys.exit(0 if data["passed"] else 1)
