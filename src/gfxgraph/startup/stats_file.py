"""Write ``gfxgraph.stats()`` when a process ends, for the line with which ``gfxgraph run`` ends.

A process that is killed runs no exit handler, and no handler of ours may stand between a signal and a program. So a
thread keeps the last counts in a file of the process's own, which its end replaces by a line in the common one.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.diagnostics.render import without_secrets

VARIABLE = "GFXGRAPH_STATS"
PERIOD_S = 0.5


def register() -> None:
    """Arrange it for this process but not for its forked children; spawned children register themselves."""
    target = config.variables([VARIABLE]).get(VARIABLE)
    if target:
        given = Path(target), os.getpid(), threading.Event()
        atexit.register(_write, *given)
        threading.Thread(target=_keep, args=given, name="gfxgraph-stats", daemon=True).start()


def _line(owner: int) -> str:
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph.process.health import stats

    return json.dumps({"pid": owner, "argv": without_secrets(sys.argv), "stats": stats()}, default=str) + "\n"


def _keep(target: Path, owner: int, ended: threading.Event) -> None:
    """Keep the counts of a process that may be killed, as long as the folder of the run is there."""
    before = ""
    while not ended.wait(PERIOD_S) and os.getpid() == owner and target.parent.is_dir():
        if "gfxgraph.process.process" not in sys.modules:
            continue  # nothing to count yet
        with suppress(OSError, RuntimeError):  # a set that changes while it is read
            line = _line(owner)
            if line != before and not ended.is_set():
                before = line
                files.write(target.with_name(f"{target.name}.{owner}"), line)


def _write(target: Path, owner: int, ended: threading.Event) -> None:
    if os.getpid() != owner:  # a forked child ends with its parent's counters, not its own
        return
    ended.set()
    try:
        files.append(target, _line(owner))
    except OSError as error:
        sys.stderr.write(f"gfxgraph: statistics not written to {target}: {error.strerror}\n")
