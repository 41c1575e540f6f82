"""Cases that end in every way a case can end; run by test_suite.py through the real suite."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path

import torch

from gfxgraph.selftest.bench import Bench, case, expect, skip


@case()
def right(bench: Bench) -> None:
    """A case that holds."""
    x = bench.randn(8)
    bench.follows_eager(lambda: x * 2, [x])
    bench.figures["n"] = 3


@case()
def wrong(bench: Bench) -> None:
    """A case that does not hold."""
    print(f"looked into {Path.home() / 'project'}", file=sys.stderr)
    expect(False, f"seen in {Path.home()}/project")


@case()
def crashing(bench: Bench) -> None:
    """A case that a signal ends."""
    print("Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f00", file=sys.stderr, flush=True)
    os.abort()


@case()
def dying_at_exit(bench: Bench) -> None:
    """A case that is right in a process that aborts as it ends."""
    atexit.register(os.abort)


@case(limit_s=4)
def hanging(bench: Bench) -> None:
    """A case that never ends."""
    time.sleep(600)


@case()
def skipping(bench: Bench) -> None:
    """A case that does not apply."""
    skip("not here")


@case()
def falling_back(bench: Bench) -> None:
    """A case that is right because eager execution stood in for the graph."""
    x = bench.randn(8)

    def body() -> torch.Tensor:
        y = x + 1
        if torch.cuda.is_current_stream_capturing():
            bench.unseen_wait()
        return y * 2

    bench.follows_eager(body, [x])
