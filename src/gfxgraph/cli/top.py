"""Watch a running process: how much of its work runs in graphs, and which lines run eagerly."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from gfxgraph import config
from gfxgraph.cli import _contract

VARIABLE = "GFXGRAPH_REPORT"
CLEAR = "\x1b[2J\x1b[H"


@click.command("top")
@click.argument("pid", type=int)
@click.option(
    "--every",
    default=5.0,
    show_default=True,
    type=_contract.Number(min=0.5),
    metavar="SECONDS",
    help="Time between updates.",
)
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON, once.")
def command(pid: int, every: float, once: bool, as_json: bool) -> None:
    """Watch process PID, which was started with GFXGRAPH_REPORT=FOLDER and GFXGRAPH_COVERAGE=1.

    The process itself writes its figures there every five seconds; gfxgraph top attaches to nothing.

    Exit status: 0 once the process has ended, 2 if it cannot be watched.
    """
    before: dict[str, Any] | None = None
    while True:
        try:
            table = _read(pid)
        except (OSError, ValueError) as error:
            if before is not None:
                click.echo(f"process {pid} has ended")
                return
            problem = error.strerror if isinstance(error, OSError) else error
            _contract.refuse("process_not_watched", pid=pid, problem=problem)
        if as_json:
            click.echo(json.dumps(table))
            return
        text = shown(table, before)
        click.echo(text if once else CLEAR + text)
        if once:
            return
        before = table
        time.sleep(every)


def _read(pid: int) -> dict[str, Any]:
    """What the process wrote last.

    Raises:
        ValueError: it was not started so that it writes, or has not written yet.
        OSError: there is no such process, or it is another user's.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except FileNotFoundError:
        raise ValueError("there is none") from None
    named = dict(part.decode("utf-8", "replace").partition("=")[::2] for part in variables if part)
    if not named.get(VARIABLE):
        raise ValueError(f"it was started without {VARIABLE}=FOLDER (and GFXGRAPH_COVERAGE=1 for coverage)")
    # lazily: help does without
    from gfxgraph.reporting import left

    folder = Path(f"/proc/{pid}/cwd", config.load(named).report)
    path = folder / f"gfxgraph-{pid}.json"
    if not path.exists():
        raise ValueError("it has written nothing yet: it writes every five seconds, once torch is in use")
    return left.read_one(folder, path.name)


def shown(table: dict[str, Any], before: dict[str, Any] | None) -> str:
    """One screen: counts, rates since ``before``, coverage and the dearest lines."""
    # lazily: help does without
    from gfxgraph.reporting.coverage import Coverage

    stats = table["stats"]
    rate = ""
    if before is not None and table["at"] > before["at"]:
        a_second = (stats["replay_count"] - before["stats"]["replay_count"]) / (table["at"] - before["at"])
        rate = f" ({a_second:.0f} a second)"
    counts = (
        f"{stats['capture_count']} captures, {stats['replay_count']} replays{rate}, {stats['split_count']} splits, "
    )
    counts += f"{stats['fallback_count']} fallbacks, {stats['validation_failures']} wrong replays"
    lines = [f"{table['pid']}  {' '.join(table['argv'])}", counts]
    if table.get("coverage"):
        seen = Coverage.from_dict(table["coverage"])
        lines += [str(seen), seen.table(10)]
    return "\n".join(lines)
