"""gfxgraph bisect: find the operation that a graph cannot hold or gets wrong, and a script that shows it.

The script runs as ever, except that captures allow nothing unsafe and every replay is compared with
eager execution, operation by operation. The first difference or refusal ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from gfxgraph.errors import ActivationError
from gfxgraph.startup.environment import program_environment

STATUS_FOUND = 1
DEFAULT_PROFILE = "hip"


@click.command("bisect", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--allow-cuda", is_flag=True, help="Also on a CUDA build of torch, with an NVIDIA GPU.")
@click.option("--simulate", metavar="PROFILE", help="Without a GPU, in the simulator.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where the script that shows it goes."
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    allow_cuda: bool, simulate: str | None, output: Path | None, script: Path, arguments: tuple[str, ...]
) -> None:
    """Find the operation that a graph cannot hold or gets wrong, and write a script that shows it.

    \b
    gfxgraph bisect decode.py --batch 1
    gfxgraph bisect --simulate hip -o small.py decode.py

    Ends with status 0 where captures and replays are right, 1 where something was found.
    """
    if not script.exists():
        raise ActivationError("script_not_found", script=script)
    target = (output or Path(f"{script.stem}-reproducer.py")).absolute()
    asked = {}
    if allow_cuda:
        asked["GFXGRAPH_ALLOW_CUDA"] = "1"
    if simulate:
        asked["GFXGRAPH_SIMULATE"] = simulate
    environment, _ = program_environment(asked)
    # The process that runs the script enables the bridge itself, in its own way.
    environment.pop("GFXGRAPH")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        runner = [sys.executable, "-m", "gfxgraph.runtime.guard.bisect_run"]
        status = subprocess.call([*runner, str(result), str(target), str(script), *arguments], env=environment)
        found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    if found is None:
        if status == 0:
            click.echo("every capture and every replay was right")
        sys.exit(status)
    click.echo(f"{found['op']} at {found['where']}")
    click.echo(f"  {_SAID[found['kind']]}: {found['detail']}")
    if found["script"]:
        click.echo(f"  shown by {found['script']} ({found['n_ops']} of {found['n_ops_before']} operations)")
    else:
        click.echo("  no script of its operations alone shows it: it depends on something outside them")
    sys.exit(STATUS_FOUND)


_SAID = {
    "differs": "graph and eager differ from here on",
    "capture": "this operation cannot be captured",
    "fault": "this operation faults in the replay",
}
