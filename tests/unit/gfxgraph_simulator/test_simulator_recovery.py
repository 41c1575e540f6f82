"""What torch 2.11 leaves behind after a failed capture, and that it can be cleaned up.

Expected behaviour: a recovery script on an H200, and what torch's sources do after a failed capture.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gfxgraph_simulator as simulator

Install = Callable[..., simulator.Simulator]


def fail_a_capture(pool: object = None) -> tuple[torch.cuda.CUDAGraph, str, str]:
    """A capture killed by a synchronization; returns the graph and both error texts."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(pool=pool)
        torch.rand(8, device="cuda")
        with pytest.raises(torch.AcceleratorError) as first:
            torch.cuda.synchronize()
        with pytest.raises(torch.AcceleratorError) as second:
            graph.capture_end()
    return graph, str(first.value), str(second.value)


def test_errors_are_worded_as_torch_words_them(sim: simulator.Simulator) -> None:
    """The synchronization and the end of the capture each raise their own known text."""
    _, first, second = fail_a_capture()
    assert first.startswith("CUDA error: operation not permitted when stream is capturing\n")
    assert second.startswith("CUDA error: operation failed due to a previous error during capture\n")


def test_generator_is_stuck_until_it_gets_a_cloned_state(sim: simulator.Simulator) -> None:
    """Later random ops fail; graphsafe_set_state(clone_state()) heals them."""
    fail_a_capture()
    with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
        torch.rand(3, device="cuda")
    generator = torch.cuda.default_generators[0]
    generator.graphsafe_set_state(generator.clone_state())
    torch.rand(3, device="cuda")


def test_pool_stays_routed_until_it_is_ended_by_hand(sim: simulator.Simulator) -> None:
    """The pool's use count does not drop, and only _cuda_endAllocateToPool stops the routing."""
    pool = torch.cuda.MemPool()
    fail_a_capture(pool.id)
    assert pool.use_count() == 2
    with pytest.raises(RuntimeError, match="already recording"):
        torch._C._cuda_beginAllocateToPool(0, pool.id)
    torch._C._cuda_endAllocateToPool(0, pool.id)
    torch._C._cuda_releasePool(0, pool.id)
    assert pool.use_count() == 1
    del pool
    assert sim.crashes == []


def test_pool_that_dies_in_use_would_abort_the_process(sim: simulator.Simulator) -> None:
    """The lab's exit_abort: ~MemPool asserts its use count; the simulator notes the crash."""
    pool = torch.cuda.MemPool()
    fail_a_capture(pool.id)
    del pool
    assert [crash for crash in sim.crashes if "MemPool" in crash]
    sim.crashes.clear()


def test_next_capture_works_in_a_new_pool(sim: simulator.Simulator) -> None:
    """After the known remedies a capture in a fresh pool and stream succeeds."""
    fail_a_capture()
    generator = torch.cuda.default_generators[0]
    generator.graphsafe_set_state(generator.clone_state())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(8, device="cuda") + 1
    graph.replay()
    assert (y >= 1).all()


def test_context_manager_masks_the_original_error(sim: simulator.Simulator) -> None:
    """torch.cuda.graph raises the error of capture_end; the op's own error is behind it."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as caught:
        with torch.cuda.graph(graph):
            (x * 3).sum().item()
    assert "not permitted when stream is capturing" in str(caught.value.__context__)


@pytest.mark.parametrize("profile", ["cuda", "hip-6.4", "hip-7.14"])
def test_driver_abandons_a_dead_capture(install: Install, profile: str) -> None:
    """After abandon_capture the stream computes and captures again, on every runtime."""
    driver = simulator.SimDriver(install(profile))
    stream, graph, x = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.zeros(2, device="cuda")
    with torch.cuda.stream(stream):
        graph.capture_begin()
        with pytest.raises(torch.AcceleratorError):
            torch.cuda.synchronize()
        assert driver.capture_info(stream.cuda_stream).status == 2
        driver.abandon_capture(stream.cuda_stream)
        assert driver.capture_info(stream.cuda_stream).status == 0
        x += 1
    assert x.tolist() == [1, 1]


def test_hip_reads_stale_memory_where_torch_does_not_guard(install: Install) -> None:
    """Before 7.14 HIP lets hipMemcpyWithStream run in a capture: the number is poison, nothing is said."""
    install("hip-6.4", guards_memcpy_and_sync=False)
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        value = (x * 3).sum().item()
        y = x * 2
    assert value != value
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_torch_guards_item_on_rocm_without_killing_the_capture(install: Install) -> None:
    """2.9.1+ on ROCm < 7.14: .item() raises 900 by torch's own check, and the capture lives on."""
    install("hip-7.2")
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        with pytest.raises(torch.AcceleratorError, match="HIP error: operation not permitted"):
            x.sum().item()
        y = x * 2
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_sync_debug_error_mode_spares_the_capture(sim: simulator.Simulator) -> None:
    """In "error" mode synchronizing ops raise before the runtime sees them."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            for unsafe in (lambda: x.sum().item(), x.nonzero, lambda: x[x > 0]):
                with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                    unsafe()
            y = x * 2
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_unpinned_copy_is_refused_by_torch_itself(sim: simulator.Simulator) -> None:
    """A copy between the card and pageable memory raises torch's own error; the capture lives on."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        for copy in (x.cpu, lambda: x.copy_(torch.zeros(3)), lambda: torch.tensor([1.0], device="cuda")):
            with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
                copy()
        y = x * 2
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_pinned_copy_is_recorded_and_reads_the_host_at_replay(sim: simulator.Simulator) -> None:
    """A non-blocking copy from page-locked memory becomes a memcpy node over that memory."""
    host, x, graph = torch.zeros(3).pin_memory(), torch.empty(3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(host, non_blocking=True)
    host.fill_(5)
    graph.replay()
    assert x.tolist() == [5, 5, 5]
