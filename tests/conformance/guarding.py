"""What the guard's tests share: a guarded process on each simulated runtime, and kernels that no dispatcher sees."""

from __future__ import annotations

import contextlib
import gc

import torch

import gfxgraph_simulator as simulator
from gfxgraph.types import NodeKind

PROFILES = ["cuda", "hip"]


@contextlib.contextmanager
def guarded(profile, tier, tmp_path, monkeypatch, **options):
    """The bridge enabled at a tier, its state directory in ``tmp_path``; everything put back afterwards."""
    import gfxgraph
    from gfxgraph.guard import flight_recorder

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(flight_recorder, "_recorder", None)
    gfxgraph.enable(simulate=profile, guard=tier, validate=False, **options)
    gfxgraph.reset_stats()
    try:
        yield simulator.active()
    finally:
        gc.collect()
        gfxgraph.disable()


def triton(function, *tensors, kind=NodeKind.KERNEL):
    """A launch that torch's dispatcher does not see."""
    simulator.launch_opaque("triton_kernel", function, *tensors, kind=kind)


def graph_of(body, **options):
    """(graph, results) of a capture of ``body``."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        results = body()
    return graph, results


def write_bytes(tensor, n):
    """Write |n| bytes just past the end of a CPU twin, or just before it where n is negative."""
    raw = tensor.view(torch.uint8)
    begin = raw.storage_offset()
    at = begin + raw.numel() if n > 0 else begin + n
    if n:
        raw.as_strided((abs(n),), (1,), at).fill_(7)


def line_of(code, offset):
    """``file:line`` of a function's line at an offset from its first."""
    return f"{code.co_filename}:{code.co_firstlineno + offset}"
