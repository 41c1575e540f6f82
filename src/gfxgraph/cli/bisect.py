"""gfxgraph bisect: find the operation that cannot be captured or replays wrongly; write a script that shows it.

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

from gfxgraph import config, files
from gfxgraph.cli import _contract
from gfxgraph.diagnostics.render import LINES, visible
from gfxgraph.startup.environment import program_environment
from gfxgraph.startup.torch_build import refuse_unsuitable

STATUS_FOUND = 1


@click.command(
    "bisect",
    cls=_contract.Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@_contract.allow_cuda
@_contract.simulate
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the script's own output goes to stderr.")
@click.option(
    "-o",
    "--output",
    type=_contract.OutFile(),
    help="Where to write the script that reproduces it.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    allow_cuda: bool,
    simulate: str,
    as_json: bool,
    output: str | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Find the operation that cannot be captured or replays wrongly, and write a script that reproduces it.

    \b
    gfxgraph bisect decode.py --batch 1
    gfxgraph bisect --simulate -o small.py decode.py

    Exit status: 0 captures and replays are right, 1 something was found, 2 the script did not run to its end.
    """
    if not Path(script).is_file():
        problem = "it is a folder" if Path(script).is_dir() else "not found"
        _contract.refuse("script_not_found", script=script, problem=problem)
    target = Path(output or f"{Path(script).stem}-reproducer.py").absolute()
    _contract.can_be_written(target, program=script)
    asked = {}
    if allow_cuda:
        asked["GFXGRAPH_ALLOW_CUDA"] = "1"
    if simulate:
        asked["GFXGRAPH_SIMULATE"] = simulate
    environment, settings = program_environment(asked)
    refuse_unsuitable(settings, sys.executable)
    # The process that runs the script enables the bridge itself, in its own way.
    environment.pop("GFXGRAPH")
    with tempfile.TemporaryDirectory() as folder:
        _refuse_unreadable(Path(folder))
        runs = _Runs(Path(folder), target, [script, *arguments], environment, quiet=as_json)
        status, found = runs.first()
        if found is not None and "at" in found:
            found = runs.after_fault(found)
        is_seen = runs.n_captures() > 0
    ended = STATUS_FOUND if found is not None else _contract.OK if status == 0 and is_seen else _contract.COULD_NOT
    if as_json:
        click.echo(json.dumps({"found": found, "program_status": status, "exit_status": ended}, ensure_ascii=False))
    elif found is not None:
        _tell(found)
    elif status == 0:
        click.echo(_say("right" if is_seen else "no capture"), err=not is_seen)
    else:
        click.echo(_say("ended").format(status=status), err=True)
    sys.exit(ended)


def _refuse_unreadable(folder: Path) -> None:
    """The script's process leaves its results here; a umask may take the right to read them."""
    try:
        files.write(folder / "result-0.json", "")
        files.read(folder / "result-0.json")
    except OSError as error:
        problem = f"{error.strerror}; the umask is {files.umask():03o}"
        _contract.refuse("file_unusable", path=folder, problem=problem)


def _tell(found: dict[str, Any]) -> None:
    click.echo(visible(f"{found['op']} at {found['where']}" if found["where"] else found["op"]))
    click.echo(f"  {_say(found['kind'])}: {visible(str(found['detail']), keep=LINES)}")
    if found["script"]:
        shown = _say("shown").format(script=found["script"], n=found["n_ops"], before=found["n_ops_before"])
    else:
        shown = _say("no script")
    click.echo(f"  {visible(shown)}")


def _say(key: str) -> str:
    return _contract.words(_SAID, config.language_of())(key)


class _Runs:
    """Runs of the script: a fault ends each, so the next one is told where to look or to stop."""

    def __init__(
        self, folder: Path, target: Path, program: list[str], environment: dict[str, str], *, quiet: bool = False
    ) -> None:
        self.quiet = quiet
        self.folder = folder
        self.target = target
        self.program = program
        self.environment = environment
        self._n = 0

    def n_captures(self) -> int:
        """Graphs that the first run captured, as far as it came to its end."""
        left = self.folder / "result-1.captures"
        return int(left.read_text(encoding="utf-8")) if left.exists() else 0

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
        to = sys.stderr if self.quiet and again == "-" else output
        status = subprocess.call([*runner, *self.program], env=self.environment, stdout=to, stderr=output)
        if result.exists():
            return status, json.loads(result.read_text(encoding="utf-8"))
        progress = result.with_suffix(".progress")
        left = progress.read_text(encoding="utf-8") if progress.exists() else ""
        if left and status < 0:  # it died where it stood
            return status, {"kind": "fault", "detail": signal.Signals(-status).name, "at": json.loads(left)}
        return status, None


_SAID = {
    "differs": ("graph and eager differ from here on", "从这里开始图与 eager 的结果不同"),
    "capture": ("this operation cannot be captured", "此操作无法捕获"),
    "fault": ("this operation faults in the replay", "此操作在重放时出错"),
    "right": ("every capture and every replay was right", "所有捕获和重放均正确"),
    "no capture": (
        "the script captured no graph, so there was nothing to compare",
        "脚本没有捕获任何图，因此没有可比较的内容",
    ),
    "ended": (
        "the script ended with status {status}; nothing was found up to there",
        "脚本以状态 {status} 结束；此前没有发现问题",
    ),
    "shown": ("shown by {script} ({n} of {before} operations)", "由 {script} 重现（{before} 个操作中的 {n} 个）"),
    "no script": (
        "no script of its operations alone shows it: it depends on something outside them",
        "仅用这些操作的脚本无法重现：它取决于操作之外的因素",
    ),
}
