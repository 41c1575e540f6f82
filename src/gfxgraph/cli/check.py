"""Try a capture here; or list what would break or split the capture of a function, without a GPU.

The work is done in a process of its own: a GPU that hangs or faults takes that process down, and this one
says so.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import NoReturn

import click

from gfxgraph import config
from gfxgraph.cli import _contract
from gfxgraph.diagnostics.render import visible
from gfxgraph.errors import ActivationError
from gfxgraph.startup.child_environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

PROGRAM = "import torch, gfxgraph, json; print(json.dumps(gfxgraph.health_check(), default=str))"
TIME_LIMIT_S = 120
STATUS_NOT_OK = 1
_YES_NO = {"en": ("no", "yes"), "zh": ("否", "是")}


@click.command("check", cls=_contract.Command)
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option("--arg", "expressions", multiple=True, metavar="EXPRESSION", help="An argument of FUNCTION, in Python.")
@_contract.allow_cuda
@_contract.simulate
@_contract.as_json
def command(
    target: str | None,
    expressions: tuple[str, ...],
    allow_cuda: bool,
    simulate: str,
    as_json: bool,
) -> None:
    """Try one capture and replay here; or list what would break or split a capture of MODULE:FUNCTION.

    \b
    gfxgraph check
    gfxgraph check model:step --arg "torch.randn(2, 8, device='cuda')"
    gfxgraph check path/to/model.py:step --json

    The function runs in the simulator, so no GPU is needed; make its tensors with device="cuda".

    Exit status: 0 nothing found, 1 findings, 2 gfxgraph cannot be used here or FUNCTION does not run.
    """
    if target is not None:
        _check_function(target, expressions, simulate or _contract.DEFAULT_PROFILE, as_json)
    if expressions:
        raise click.UsageError("--arg belongs to a MODULE:FUNCTION")
    asked = {"GFXGRAPH_ALLOW_CUDA": "1"} if allow_cuda else {}
    if simulate:
        asked["GFXGRAPH_SIMULATE"] = simulate
    environment, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    with _contract.working("check: a capture and a replay in a process of their own"):
        health = examine(environment)
    if simulate:  # what it imitates is no machine
        health = {"ok": health["ok"], "simulator": f"profile {simulate}", "details": health["details"]}
    if as_json:
        click.echo(json.dumps(health))
    else:
        chinese = config.language_of() == "zh"
        click.echo(("正常" if chinese else "ok") if health["ok"] else ("不正常" if chinese else "not ok"))
        for key, value in health.items():
            if key != "ok":
                click.echo(f"  {key:<16}{shown(value)}")
    sys.exit(0 if health["ok"] else STATUS_NOT_OK)


def _check_function(target: str, expressions: tuple[str, ...], profile: str, as_json: bool) -> NoReturn:
    try:
        # lazily: it needs torch
        from gfxgraph.reporting import check
    except ImportError as error:
        raise ActivationError("no_torch", python=sys.executable, quote=str(error)) from error
    # What the function prints is not our output.
    with contextlib.redirect_stdout(sys.stderr), _contract.working(f"check: {target}"):
        checked = check.run(target, expressions, profile)
    if as_json:
        click.echo(json.dumps(checked.as_dict()))
    else:
        for finding in checked.findings:
            click.echo(finding.text())
        graphs = "one graph" if checked.n_graphs == 1 else f"{checked.n_graphs} graphs"
        n = len(checked.findings)
        click.echo(f"{target}: {graphs}, {checked.n_operations} operations, {n} finding{'' if n == 1 else 's'}")
    sys.exit(STATUS_NOT_OK if checked.findings else 0)


def examine(environment: dict[str, str]) -> dict[str, object]:
    """Return ``gfxgraph.health_check()`` of a fresh process, or why it gave none."""
    line = [sys.executable, "-c", PROGRAM]
    try:
        done = _contract.run_apart(line, environment, timeout_s=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"ok": False, "details": f"capture and replay did not end within {TIME_LIMIT_S} s"}
    if done.returncode == 2:  # refused there: the reason is on stderr already
        sys.exit(2)
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        return {"ok": False, "details": f"the process that tried a capture ended by {how}"}
    health: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return health


def shown(value: object) -> str:
    """Return ``value`` as people write it."""
    if isinstance(value, bool):
        return _YES_NO[config.language_of()][value]
    return "-" if value is None else visible(str(value))
