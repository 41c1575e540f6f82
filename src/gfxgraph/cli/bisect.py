"""gfxgraph bisect: find the operation that a graph cannot hold or gets wrong, and a script that shows it.

The script runs as ever, except that captures allow nothing unsafe and every replay is compared with
eager execution, operation by operation. The first difference, refusal or fault ends it; after a fault the
script is run again, to find its node and to take the values that it was given.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
        runs = _Runs(Path(folder), target, [str(script), *arguments], environment)
        status, found = runs.first()
        if found is not None and "at" in found:
            found = runs.after_fault(found)
    if found is None:
        if status == 0:
            click.echo("every capture and every replay was right")
        sys.exit(status)
    click.echo(f"{found['op']} at {found['where']}" if found["where"] else found["op"])
    click.echo(f"  {_SAID[found['kind']]}: {found['detail']}")
    if found["script"]:
        click.echo(f"  shown by {found['script']} ({found['n_ops']} of {found['n_ops_before']} operations)")
    else:
        click.echo("  no script of its operations alone shows it: it depends on something outside them")
    sys.exit(STATUS_FOUND)


class _Runs:
    """Runs of the script: a fault ends each, so the next one is told where to look or to stop."""

    def __init__(self, folder: Path, target: Path, program: list[str], environment: dict[str, str]) -> None:
        self.folder = folder
        self.target = target
        self.program = program
        self.environment = environment
        self._n = 0

    def first(self) -> tuple[int, dict[str, Any] | None]:
        return self._run("-")

    def after_fault(self, found: dict[str, Any]) -> dict[str, Any]:
        """What there is to say of a fault: the operation, and a script if one shows it."""
        at = found["at"]
        if at["stage"] == "launch":  # in the graph: which node?
            _, walked = self._run(json.dumps(at))
            if walked is not None and "at" in walked:
                found, at = walked, walked["at"]
        known = {"op": at["op"], "where": at["where"], "script": None, "kind": "fault", "detail": found["detail"]}
        if at["position"] >= 0:  # an operation, whose inputs are known before it
            _, shown = self._run(json.dumps(at | {"detail": found["detail"]}))
            if shown is not None and "at" not in shown:
                return shown
        return known

    def _run(self, again: str) -> tuple[int, dict[str, Any] | None]:
        self._n += 1
        result = self.folder / f"result-{self._n}.json"
        runner = [sys.executable, "-m", "gfxgraph.startup.bisect_run", str(result), str(self.target), again]
        # Only the first run's words are the program's; the others say the same once more.
        output = None if again == "-" else subprocess.DEVNULL
        status = subprocess.call([*runner, *self.program], env=self.environment, stdout=output, stderr=output)
        if result.exists():
            return status, json.loads(result.read_text(encoding="utf-8"))
        progress = result.with_suffix(".progress")
        left = progress.read_text(encoding="utf-8") if progress.exists() else ""
        if left and status < 0:  # it died where it stood
            return status, {"kind": "fault", "detail": signal.Signals(-status).name, "at": json.loads(left)}
        return status, None


_SAID = {
    "differs": "graph and eager differ from here on",
    "capture": "this operation cannot be captured",
    "fault": "this operation faults in the replay",
}
