"""Write ``gfxgraph.stats()`` when a process ends, for the line with which ``gfxgraph run`` ends."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.diagnostics.render import without_secrets

VARIABLE = "GFXGRAPH_STATS"


def register() -> None:
    """Arrange it for this process but not for its forked children; spawned children register themselves."""
    target = config.variables([VARIABLE]).get(VARIABLE)
    if target:
        atexit.register(_write, Path(target), os.getpid())


def _write(target: Path, owner: int) -> None:
    if os.getpid() != owner:  # a forked child ends with its parent's counters, not its own
        return
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph.process.health import stats

    line = json.dumps({"pid": owner, "argv": without_secrets(sys.argv), "stats": stats()}, default=str) + "\n"
    try:
        files.append(target, line)
    except OSError as error:
        sys.stderr.write(f"gfxgraph: statistics not written to {target}: {error.strerror}\n")
