"""A case that holds and one that never ends; for the self-test that is stopped from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gfxgraph.selftest.bench import Bench, case


@case()
def right(bench: Bench) -> None:
    """A case that holds."""


@case(limit_s=100)
def endless(bench: Bench) -> None:
    """A case that never ends."""
    path = Path(os.environ["PLANTED_PID"])
    new = path.with_suffix(".new")
    new.write_text(str(os.getpid()))
    new.replace(path)
    time.sleep(600)


@case()
def never_begun(bench: Bench) -> None:
    """A case that waits for the one that never ends."""
