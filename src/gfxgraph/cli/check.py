"""Try one capture and replay here, and print what came of it.

The work is done in a process of its own: a GPU that hangs or faults takes that process down, and this one
says so.
"""

from __future__ import annotations

import json
import subprocess
import sys

import click

from gfxgraph import config
from gfxgraph.cli import _contract
from gfxgraph.diagnostics.render import visible
from gfxgraph.startup.environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

PROGRAM = "import torch, gfxgraph, json; print(json.dumps(gfxgraph.health_check(), default=str))"
TIME_LIMIT_S = 120
STATUS_NOT_OK = 1
_YES_NO = {"en": ("no", "yes"), "zh": ("否", "是")}


@click.command("check", cls=_contract.Command)
@_contract.allow_cuda
@_contract.simulate
@_contract.as_json
def command(allow_cuda: bool, simulate: str, as_json: bool) -> None:
    """Try one capture and replay here, and print what came of it.

    Exit status: 0 all is well, 1 something is not, 2 gfxgraph cannot be used here.
    """
    asked = {"GFXGRAPH_ALLOW_CUDA": "1"} if allow_cuda else {}
    if simulate:
        asked["GFXGRAPH_SIMULATE"] = simulate
    environment, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    with _contract.working("check: a capture and a replay in a process of their own"):
        health = examine(environment)
    if as_json:
        click.echo(json.dumps(health))
    else:
        chinese = config.language_of() == "zh"
        click.echo(("正常" if chinese else "ok") if health["ok"] else ("不正常" if chinese else "not ok"))
        for key, value in health.items():
            if key != "ok":
                click.echo(f"  {key:<16}{shown(value)}")
    sys.exit(0 if health["ok"] else STATUS_NOT_OK)


def examine(environment: dict[str, str]) -> dict[str, object]:
    """Return ``gfxgraph.health_check()`` of a fresh process, or why it gave none."""
    line = [sys.executable, "-c", PROGRAM]
    try:
        done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT_S)
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
