"""Statistics of a running process, and a check that graphs work at all."""

from __future__ import annotations

from typing import Any

from gfxgraph import _native
from gfxgraph.core.counters import Counters
from gfxgraph.process import bridge, calls, process


def stats() -> dict[str, Any]:
    """Counters of this process since ``enable``.

    Returns:
        ``enabled_at`` (seconds since the epoch, None before enable), ``capture_count``,
        ``replay_count``, ``fallback_count``, ``validation_failures``, ``avg_replay_us`` (CPU microseconds of the
        timed replays, None before the first) and more; ``fallbacks``
        counts by reason, ``events`` lists every split, fallback and skipped validation with the
        operation and source line. ``calls`` says how every call and replay ran: ``by_graph``, ``in_pieces``,
        ``eager``, ``raised``, and ``of`` the same for each callable, by reason.
    """
    state = process.current()
    if state is None:
        return {"enabled_at": None, "platform": None, **Counters().snapshot(), "calls": calls.summed(calls.tables())}
    counted = state.counters.snapshot(lambda: [graph.n_replays for graph in list(state.graphs)])
    counted["calls"] = calls.summed(calls.tables())
    return {"enabled_at": state.enabled_at, "platform": state.platform, **counted}


def reset_stats() -> None:
    """Set every counter to zero; ``enabled_at`` stays."""
    state = process.current()
    if state is not None:
        state.counters.reset()
        for graph in list(state.graphs):
            graph._pop_n_replays()
            graph._choose_path()
    calls.reset()


def health_check() -> dict[str, Any]:
    """Capture and replay a small graph and compare it with eager execution.

    What an interrupt has left of this thread's captures is repaired first; a capture under way is ended.

    Returns:
        ``ok``, ``gpu``, ``rocm`` (the architecture, or None), ``native_bridge`` (the companion's library exists and
        loads; ``gfxgraph.native.state()`` says why not), ``vram_total_mb``,
        ``vram_free_mb``, ``details``; never raises.
    """
    report: dict[str, Any] = {
        "ok": False,
        "gpu": None,
        "rocm": None,
        "native_bridge": _native.state().loads,
        "vram_total_mb": None,
        "vram_free_mb": None,
        "details": "",
    }
    try:
        # lazily: if torch is missing, that is the answer
        import torch
    except ImportError as error:
        report["details"] = f"torch cannot be imported: {error}"
        return report
    if not torch.cuda.is_available():
        report["details"] = "torch sees no GPU; gfxgraph doctor says why"
        return report
    try:
        for repair in process.repairs:
            repair()
        _smoke_test(torch, report)
    except RuntimeError as error:
        report["details"] = f"graph capture or replay failed: {error}"
    return report


def _smoke_test(torch: Any, report: dict[str, Any]) -> None:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info()
    report.update(
        gpu=properties.name,
        rocm=getattr(properties, "gcnArchName", "").split(":")[0] or None if torch.version.hip else None,
        vram_total_mb=total >> 20,
        vram_free_mb=free >> 20,
    )
    x = torch.arange(64, device="cuda", dtype=torch.float32)
    graph = torch.cuda.CUDAGraph()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        (x * 2 + 1).relu()
    torch.cuda.current_stream().wait_stream(warm)
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).relu()
    x.add_(3)
    graph.replay()
    if bool(torch.equal(y, (x * 2 + 1).relu())):
        off = "" if bridge.is_enabled() else " (the bridge is not enabled)"
        report.update(ok=True, details=f"Graph capture/replay OK, output verified{off}")
    else:
        report["details"] = "the replay gave a different result than eager execution; gfxgraph doctor --why"
