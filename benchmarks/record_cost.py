"""What the recorder itself costs for each operation of a capture, in us of CPU: the operations' calls are stubbed.

    python benchmarks/record_cost.py [--reps 31]      runs in the simulator; compare two checkouts in turn

A no-op ``TorchDispatchMode`` has nothing of this. ``bench_core.py`` measures the whole capture on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

import gfxgraph
from gfxgraph.capture.record.overloads import OPS, identity
from gfxgraph.capture.record.recorder import Recorder, first_seen
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe

ROUNDS = 200


class Session:
    """What a recorder asks, answered as in a capture that meets nothing unsafe."""

    def __init__(self) -> None:
        self.state, self.device_index = process.require(), 0
        self.policy = OnUnsafe.SPLIT
        self.values = SimpleNamespace(tainted={}, has_given=False, has_symbols=False)
        self.moving = SimpleNamespace(operation=lambda *args: None)
        self.n_asked = 0

    def frontier_reader(self, stream: int) -> Any:
        def reader() -> int:
            self.n_asked += 1
            return self.n_asked >> 1  # another node after each operation

        return reader


def calls() -> dict[str, list[tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """Operations by kind, a language model's step in small."""
    a, w, b = (torch.randn(*size, device="cuda") for size in ((4, 4), (4, 4), (4,)))
    aten = torch.ops.aten
    return {
        "views": [(aten.view.default, (a, [2, 8]), {}), (aten.t.default, (w,), {})],
        "kernels": [
            (aten.mm.default, (a, w), {}),
            (aten.add.Tensor, (a, b), {}),
            (aten.mul.Tensor, (a, 2.0), {}),
            (aten.silu.default, (a,), {}),
            (aten.cat.default, ([a, a],), {}),
        ],
        "casts": [(aten._to_copy.default, (a,), {"dtype": torch.float16})],
        "in place": [(aten.add_.Tensor, (a, b), {}), (aten.copy_.default, (a, w), {})],
    }


def measured(rows: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> float:
    """us an operation; the stubs stay: nothing else runs in this process."""
    recorder = Recorder(Session())  # type: ignore[arg-type]
    recorder.start_segment(0)
    made = [torch.empty(4, 4, device="cuda") for _ in range(len(rows) * ROUNDS)]
    for func, _, _ in rows:
        info = OPS.get(identity(func)) or first_seen(func)
        stub = (lambda *a, **k: a[0]) if func in (torch.ops.aten.add_.Tensor, torch.ops.aten.copy_.default) else None
        info.call = info.binding = stub or (lambda *a, **k: made.pop())
    dispatch = recorder.__torch_dispatch__
    held = []
    gc.disable()
    begun = time.thread_time()
    for _ in range(ROUNDS):
        for func, args, kwargs in rows:
            held.append(dispatch(func, (), args, kwargs))
    took = time.thread_time() - begun
    gc.enable()
    return took / ROUNDS / len(rows) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=31)
    reps = parser.parse_args().reps
    gfxgraph.enable(validate=False, simulate="cuda")
    found = {}
    for kind, rows in calls().items():
        times = sorted(measured(rows) for _ in range(reps))
        found[kind] = {"us": round(statistics.median(times), 2), "least": round(times[0], 2)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
