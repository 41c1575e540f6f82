"""Try one capture and replay here, and print what came of it.

The work is done in a process of its own: a GPU that hangs or faults takes that process down, and this one
says so.
"""

from __future__ import annotations

import json
import subprocess
import sys

import click

from gfxgraph.cli.run import DEFAULT_PROFILE
from gfxgraph.startup.environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

PROGRAM = "import torch, gfxgraph, json; print(json.dumps(gfxgraph.health_check(), default=str))"
TIME_LIMIT_S = 120
STATUS_NOT_OK = 1


@click.command("check")
@click.option("--allow-cuda", is_flag=True, help="Also on a CUDA build of torch, with an NVIDIA GPU.")
@click.option("--simulate", is_flag=True, help="Without a GPU, in the simulator.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def command(allow_cuda: bool, simulate: bool, as_json: bool) -> None:
    """Try one capture and replay here, and print what came of it.

    Exit status: 0 if all is well, 1 if something is not, 2 if gfxgraph cannot be used here.
    """
    asked = {"GFXGRAPH_ALLOW_CUDA": "1"} if allow_cuda else {}
    if simulate:
        asked["GFXGRAPH_SIMULATE"] = DEFAULT_PROFILE
    environment, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    health = examine(environment)
    if as_json:
        click.echo(json.dumps(health))
    else:
        click.echo("ok" if health["ok"] else "not ok")
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
        return "yes" if value else "no"
    return "-" if value is None else str(value)
