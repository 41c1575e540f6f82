"""What kills captures without being an operation: put off, done before, or done where captures do not see it."""

from __future__ import annotations

import gc
import sys
import threading
import types
from dataclasses import replace

import pytest
import torch

import gfxgraph
from gfxgraph.capture.patches import deferred_calls, patch_table
from gfxgraph.process import process


@pytest.fixture
def runtime(platform):
    """runtime("module_unload"): the call, made as a library beside torch makes it, which ends a capture."""
    if platform == "gpu":
        pytest.skip("the GPU's own calls: tests/gpu/test_threads_gpu.py")
    import gfxgraph_simulator as simulator

    return simulator.active().runtime_call


@pytest.fixture
def kernels(runtime, monkeypatch):
    """A Triton whose kernels load at their first launch and unload as they die, as from 3.7 on; and what was called."""
    calls = []

    class CompiledKernel:
        def _init_handles(self):
            runtime("module_load")
            calls.append("load")

        def __del__(self):
            runtime("module_unload")
            calls.append("unload")

    for name in ("triton", "triton.compiler", "triton.compiler.compiler"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["triton.compiler.compiler"].CompiledKernel = CompiledKernel
    return CompiledKernel, calls


def capture(body, mode="global"):
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = x + 1
        body()
        y = y * 2
    graph.replay()
    assert y.tolist() == [4.0] * 4 and graph._program.is_plain
    stats = gfxgraph.stats()
    assert not [event for event in stats["events"] if event["kind"] in ("fallback", "split", "capture_failed")]


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_kernel_dies_inside_a_capture(kernels, mode):
    """Its module is unloaded when the capture is over, by its own finalizer, once."""
    kernel, calls = kernels
    bag = [kernel(), kernel()]
    bag[1].me = bag[1]  # a cycle: the collector's

    def body():
        bag.clear()
        gc.collect()
        assert calls == []

    capture(body, mode)
    gc.collect()
    assert calls == ["unload", "unload"]
    assert kernel.__del__.__module__ == __name__


def test_a_kernel_is_loaded_inside_a_capture(kernels):
    """The first launch of a kernel that nobody warmed up loads its module, and the capture goes on."""
    kernel, calls = kernels
    kept = kernel()
    capture(lambda: kept._init_handles())
    assert calls == ["load"]


def test_the_calls_do_end_captures_without_a_shield(runtime, platform):
    """What the tests above stand on: the same calls, not shielded, end the capture; HIP 7.2.4 lets modules load."""
    for call in ("module_unload", *(["module_load"] if platform == "cuda" else [])):
        with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            runtime(call)


def test_a_pool_dies_inside_a_capture(platform):
    """A MemPool dropped inside a capture gives its memory back afterwards."""
    bag = [torch.cuda.MemPool()]
    with torch.cuda.use_mem_pool(bag[0]):
        torch.ones(1 << 20, device="cuda")
    capture(bag.clear)
    assert "__del__" not in vars(torch.cuda.MemPool)


def test_the_collector_waits(platform):
    """Switched on inside a capture, it waits until captures are over; called, it collects, and graphs wait."""
    collected = []

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            collected.append(len(patch_table.captures))

    def body():
        Cycle()
        gc.enable()
        assert not collected and not gc.isenabled()
        gc.collect()
        assert collected == [1] and not gc.isenabled()

    gc.disable()
    try:
        capture(body)
        assert collected == [1] and gc.isenabled()
        capture(lambda: gc.disable())
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_graph_is_destroyed_by_the_collector(runtime, monkeypatch, mode):
    """A graph in a cycle, dropped and collected inside a capture, is destroyed when the capture is over."""
    from gfxgraph_simulator.torch_classes import _Holdings

    destroyed, give_back = [], _Holdings.give_back

    def noting(holdings):
        destroyed.append(len(patch_table.captures))
        give_back(holdings)

    class Owner:
        def __init__(self):
            self.me, self.graph, x = self, torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
            with torch.cuda.graph(self.graph):
                self.out = x + 7
            self.graph.replay()

    Owner()
    monkeypatch.setattr(_Holdings, "give_back", noting)

    def body():
        gc.collect()
        assert destroyed == []

    gc.disable()
    try:
        capture(body, mode)
    finally:
        gc.enable()
    assert destroyed[:1] == [0]


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_memory_of_others_is_freed_by_a_finalizer(runtime, mode):
    """Nobody knows that finalizer: collected, it frees in relaxed mode; at the last reference it ends the capture,
    whose part then runs from the tape. Right both times, and the next capture is plain again."""

    class Owner:
        def __init__(self):
            self.me = self

        def __del__(self):
            try:
                runtime("free")
                freed.append(True)
            except RuntimeError:
                freed.append(False)

    freed, bag = [], [Owner(), Owner()]
    bag[1].me = None

    def collected():
        del bag[0]
        gc.collect()

    capture(collected, mode)
    assert freed == [True]
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = x + 1
        bag.clear()
        y = y * 2
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * (value + 1)] * 4
    assert freed == [True, False]
    assert [event for event in gfxgraph.stats()["events"] if event["kind"] == "fallback"]
    gfxgraph.reset_stats()
    capture(lambda: None, mode)


def test_a_threads_first_product(platform, monkeypatch):
    """It is captured, though it makes the thread's BLAS handle: in relaxed mode, and on HIP the handle is there."""
    if platform == "gpu":
        w, results = torch.eye(4, device="cuda"), []

        def first():
            graph, x = torch.cuda.CUDAGraph(), torch.ones(4, 4, device="cuda")
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                y = x @ w
            graph.replay()
            torch.cuda.current_stream().synchronize()
            results.append((graph._program.is_plain, y.sum().item()))

        expected = [(True, 16.0)]
    else:
        import gfxgraph_simulator as simulator

        device, results, x = simulator.active().device, [], torch.ones(4, 4, device="cuda")
        record = device.record

        def noting(*args, **kwargs):
            results.append(device.threads.mode)
            return record(*args, **kwargs)

        def first():
            def body():
                with monkeypatch.context() as patch:
                    patch.setattr(device, "record", noting)
                    x @ x
                    x @ x
                if platform == "hip":
                    torch.cuda.current_blas_handle()  # would end the capture if it had to be made

            capture(body)

        expected = ["relaxed", "global"]
    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    assert results == expected


@pytest.mark.parametrize(("name", "is_compiled"), [("bessel_j0", True), ("sinc", True), ("expit", False)])
def test_a_kernel_that_torch_compiles_itself(runtime, monkeypatch, name, is_compiled):
    """Compiled and loaded at the first launch for a dtype: in relaxed mode each time."""
    import gfxgraph_simulator as simulator

    device, modes = simulator.active().device, []
    record = device.record

    def noting(*args, **kwargs):
        modes.append(device.threads.mode)
        return record(*args, **kwargs)

    x = torch.ones(4, device="cuda")

    def body():
        with monkeypatch.context() as patch:
            patch.setattr(device, "record", noting)
            getattr(torch.special, name)(x)
            getattr(torch.special, name)(x.double())

    capture(body)
    assert (modes[0], modes[-1]) == (("relaxed",) * 2 if is_compiled else ("global",) * 2)


def test_the_watchdog_is_waited_for(platform, monkeypatch):
    """drain_watchdog: before a capture, where collectives of NCCL may be under way, and only there."""
    slept = []
    monkeypatch.setattr(deferred_calls.time, "sleep", slept.append)
    dist = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_backend=lambda: "nccl")
    for asked, has_group in ((False, True), (True, False), (True, True)):
        state = process.require()
        state.decisions = replace(state.decisions, drain_watchdog=asked)
        with monkeypatch.context() as patch:
            if has_group:
                patch.setitem(sys.modules, "torch.distributed", dist)
            deferred_calls.prepare_device(0)
        assert slept == ([deferred_calls.WATCHDOG_SLEEPS_S] if asked and has_group else [])
