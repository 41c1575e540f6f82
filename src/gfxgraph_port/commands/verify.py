"""gfxgraph port verify: golden vectors recorded on one machine and compared on another; static and build checks."""

from __future__ import annotations

import json
import os
import shlex
import sys

import click

from gfxgraph.cli import _contract
from gfxgraph.diagnostics.render import LINES, visible
from gfxgraph_port.commands.options import ARCH, JSON, PATH, archs_of, fail
from gfxgraph_port.files import write_out


@click.group("verify", cls=_contract.Group)
def verify_group() -> None:
    """Golden vectors recorded on one machine and compared on another; static and build checks."""


SHAPE = click.option("--shape", "shapes", multiple=True, metavar="BxSxH", help="Input shape; repeatable.")
DEVICE = click.option("--device", default="cuda", show_default=True, help="Where the model runs.")


def _shape(word: str) -> tuple[int, ...]:
    parts = word.split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        fail(f"--shape {word}: not sizes joined by x, e.g. 1x128x64")
    return tuple(map(int, parts))


def _command(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    try:
        words = ["unset"] if value is None else shlex.split(value)
    except ValueError as error:
        raise click.UsageError(f"--build: {error}") from error
    if not words:
        raise click.UsageError("--build names no command")
    return value


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
@PATH
@ARCH
@click.option("--golden", "golden_path", metavar="FILE", help="Golden vectors to compare with.")
@click.option("--target", metavar="FILE.py:FUNCTION", help="What the vectors were recorded from.")
@click.option(
    "--iterations", type=click.IntRange(min=1), default=100, show_default=True, help="Stability runs per shape."
)
@click.option("--build", callback=_command, metavar="COMMAND", help="Build command to run in PATH.")
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
def verify_command(
    path: str,
    arch: str | None,
    golden_path: str | None,
    target: str | None,
    iterations: int,
    build: str | None,
    json_path: str | None,
    device: str,
) -> None:
    """Check a port: static, build, and numbers where golden vectors are given."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph_port import audit as auditing
    from gfxgraph_port import verify

    numerics = None
    if (golden_path is None) != (target is None):
        raise click.UsageError("--golden and --target go together: the vectors, and what they were recorded from")
    for name, given in (("--golden", golden_path), ("--target", target and target.partition(":")[0])):
        if given is not None and not os.path.isfile(given):
            _contract.refuse("file_unusable", path=given, problem=f"{name}: no such file")
    try:
        with _contract.working("port verify: reading the tree") as shown:
            report = auditing.audit(path, archs=archs_of(arch), progress=shown.update)
        checks = [*verify.static_checks(report), verify.build_check(build, path)]
        if golden_path and target:
            # lazily: the parsers are an extra, and help must be there without them
            from gfxgraph_port.rocm import golden

            try:
                numerics = golden.compare(
                    golden.load_target(target), golden.load(golden_path), device=device, iterations=iterations
                )
            except golden.GoldenError as error:
                fail(error)
    except (auditing.AuditError, OSError) as error:
        fail(error)
    data = verify.report(checks, numerics)
    try:
        if json_path is not None and json_path != "-":
            write_out(json_path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        fail(error)
    if json_path == "-":
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        sys.exit(_contract.OK if data["passed"] else _contract.FOUND)
    for c in checks:
        click.echo(f"{c.outcome:8} {c.name}: {visible(c.detail, keep=LINES)}")
    for row in numerics["cases"] if numerics else []:
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
    for name, file in numerics["loaded"].items() if numerics else ():
        click.echo(f"loaded   {name}: {file}")
    if numerics is None:
        click.echo("skipped  numerics: no --golden and --target")
    sys.exit(0 if data["passed"] else 1)
