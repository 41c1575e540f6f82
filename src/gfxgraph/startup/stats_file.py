"""Write ``gfxgraph.stats()`` when a process ends, for ``gfxgraph run --stats[=FILE]``."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.diagnostics.render import without_secrets
from gfxgraph.hardware.aside import LAST_S, Aside

VARIABLE = "GFXGRAPH_STATS"
TO_STDERR = "-"


def register() -> None:
    """Arrange it for this process but not for its forked children; spawned children register themselves."""
    target = config.variables([VARIABLE]).get(VARIABLE)
    if target:
        atexit.register(_write, target, os.getpid(), None if target == TO_STDERR else Aside())


def _write(target: str, owner: int, writer: Aside | None) -> None:
    if os.getpid() != owner:  # a forked child ends with its parent's counters, not its own
        return
    # lazily: `import gfxgraph` must cost next to nothing
    from gfxgraph.process.health import stats

    line = json.dumps({"pid": owner, "argv": without_secrets(sys.argv), "stats": stats()}, default=str) + "\n"
    if writer is None:
        sys.stderr.write(f"gfxgraph stats: {line}")
        return
    try:
        # One write of one line in append mode: the lines of processes that end at the same time do not mix.
        writer.within(LAST_S, lambda: files.append(Path(target), line))
    except OSError as error:
        sys.stderr.write(f"gfxgraph: statistics not written to {target}: {error.strerror}\n")
