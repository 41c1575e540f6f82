"""Planted failures strike exactly where they were planted."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import gfxgraph_simulator as simulator


def capture() -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        y = (x + 1) * 2
    return graph, x, y


@pytest.mark.parametrize("call", ["begin", "end", "instantiate", "op"])
def test_nth_call_fails_with_the_code(sim: simulator.Simulator, call: str) -> None:
    """The second call fails with the planted code; the first and third do not."""
    sim.faults.fail_nth(call, 2 if call != "op" else 5, 719 if call == "op" else 1)
    capture()
    text = "unspecified launch failure" if call == "op" else "invalid argument"
    with pytest.raises(torch.AcceleratorError, match=text) as caught:
        capture()
    assert caught.value.error_code == (719 if call == "op" else 1)


def test_launch_fails_once(sim: simulator.Simulator) -> None:
    """The failed replay raises; the next one works."""
    graph, _, y = capture()
    sim.faults.fail_nth("launch", 1, 1)
    with pytest.raises(torch.AcceleratorError, match="invalid argument"):
        graph.replay()
    graph.replay()
    assert y.tolist() == [4, 4, 4]


def test_sticky_error_stays(sim: simulator.Simulator) -> None:
    """After an illegal address every later call gives the same code."""
    graph, x, _ = capture()
    sim.faults.fail_nth("launch", 1, 700)
    for call in (graph.replay, torch.cuda.synchronize, lambda: x + 1, lambda: x.sum().item()):
        with pytest.raises(torch.AcceleratorError, match="an illegal memory access was encountered"):
            call()


def test_out_of_memory_at_the_nth_allocation(sim: simulator.Simulator) -> None:
    """The planned allocation fails and only that one."""
    sim.faults.oom_nth(2)
    kept = torch.ones(3, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.ones(3, device="cuda")
    assert torch.ones(3, device="cuda").tolist() == kept.tolist()


@pytest.mark.parametrize("node", [0, 1, -1])
def test_wrong_replay_corrupts_the_chosen_node(sim: simulator.Simulator, node: int) -> None:
    """The second replay is wrong by what the chosen node's error makes of the result."""
    graph, _, y = capture()
    sim.faults.wrong_replays.append(simulator.WrongReplay(node=node, replay=2))
    graph.replay()
    assert y.tolist() == [4, 4, 4]
    graph.replay()
    assert y.tolist() == [6 if node == 0 else 5, 4, 4]
    graph.replay()
    assert y.tolist() == [4, 4, 4]


def test_wrong_replay_reaches_in_place_ops(sim: simulator.Simulator) -> None:
    """A node that only changes its input is corrupted there."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        x.add_(1)
    sim.faults.wrong_replays.append(simulator.WrongReplay(add=10))
    graph.replay()
    assert x.tolist() == [12, 2, 2]


def test_slow_launches(sim: simulator.Simulator) -> None:
    """A planted delay shows in the time of a replay."""
    graph, _, _ = capture()
    sim.faults = simulator.Faults(slow_launch_s=0.05)
    begun = time.perf_counter()
    graph.replay()
    assert time.perf_counter() - begun >= 0.05


def test_a_node_that_never_ends_holds_its_stream(sim: simulator.Simulator) -> None:
    """As on a GPU: the launch returns, nothing after it on the stream runs, and who waits for the stream waits on."""
    graph, _, y = capture()
    graph.replay()
    sim.faults.plant("hang=aten::mul")
    before, after = torch.cuda.Event(), torch.cuda.Event()
    before.record()
    graph.replay()
    after.record()
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()
    assert before.query() and not after.query() and not here.query() and other.query()
    y.add_(1)
    with torch.cuda.stream(other):
        assert torch.ones(2, device="cuda").sum().item() == 2
    other.wait_event(after)
    assert not other.query()
    sim.faults.at_nodes.clear()
    waiter = threading.Thread(target=torch.cuda.synchronize, daemon=True)
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    for stream in sim.device.streams.values():
        stream.hangs = False
    waiter.join(60)
    assert not waiter.is_alive() and y.tolist() == [4, 4, 4]
