"""List what would break or split the capture of a function, without a GPU."""

from __future__ import annotations

import contextlib
import json
import sys

import click

from gfxgraph.cli import _contract
from gfxgraph.errors import ActivationError


@click.command("check", cls=_contract.Command)
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--arg", "expressions", multiple=True, metavar="EXPRESSION", help="An argument of FUNCTION, in Python.")
@_contract.simulate
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    help="How to print what is found.",
)
@_contract.as_json
@_contract.quietly
def command(target: str, expressions: tuple[str, ...], simulate: str, form: str, as_json: bool) -> None:
    """List what would break or split a capture of MODULE:FUNCTION.

    \b
    gfxgraph check model:step --arg "torch.randn(2, 8, device='cuda')"
    gfxgraph check path/to/model.py:step --json
    gfxgraph check model:step --format github   as annotations of a pull request's lines

    The function runs in the simulator, so no GPU is needed; make its tensors with device="cuda".

    Exit status: 0 nothing found, 1 findings, 2 FUNCTION does not run.
    """
    try:
        # lazily: it needs torch
        from gfxgraph.reporting import capture_check
    except ImportError as error:
        raise ActivationError("no_torch", python=sys.executable, quote=str(error)) from error
    # What the function prints is not our output.
    with contextlib.redirect_stdout(sys.stderr), _contract.working(f"check: {target}"):
        try:
            checked = capture_check.run(target, expressions, simulate or _contract.DEFAULT_PROFILE)
        except capture_check.CannotCheck as error:
            if form == "github":
                click.echo(capture_check.annotation("error", str(error), *(error.place or ())), file=sys.__stdout__)
            raise
    if as_json or form == "json":
        click.echo(json.dumps(checked.as_dict()))
    else:
        for finding in (*checked.findings, *checked.notes):
            click.echo(finding.annotation() if form == "github" else finding.text())
        if form != "github" and checked.inputs:
            click.echo(f"reads {', '.join(checked.inputs)}")
        graphs = "one graph" if checked.n_graphs == 1 else f"{checked.n_graphs} graphs"
        n = len(checked.findings)
        click.echo(f"{target}: {graphs}, {checked.n_operations} operations, {n} finding{'' if n == 1 else 's'}")
    sys.exit(_contract.FOUND if checked.findings else 0)
