"""Dispatch modes see a simulated program exactly as they see one on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gfxgraph_simulator as simulator


class Log(TorchDispatchMode):
    """Logs every op with the types and devices of its tensors, then calls on."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.devices: set[str] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        self.devices |= {str(arg.device) for arg in args if isinstance(arg, torch.Tensor)}
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_program_and_nothing_of_the_simulator(sim: simulator.Simulator) -> None:
    """Neither allocations nor CPU twins nor views for computing show up in a mode."""
    x = torch.ones(3, 3, device="cuda")
    with Log() as log:
        y = (x @ x).relu_()
        y.t()
    assert log.ops == ["aten.mm.default", "aten.relu_.default", "aten.t.default"]
    assert log.devices == {"cuda:0"}


def test_a_mode_is_silent_during_replays(sim: simulator.Simulator) -> None:
    """What a replay executes goes past every mode."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    with Log() as log:
        graph.replay()
    assert log.ops == [] and y.tolist() == [2, 2, 2]


def test_modes_nest_and_the_newest_comes_first(sim: simulator.Simulator) -> None:
    """Calling on from an inner mode reaches the outer one, and from there the device."""
    order: list[str] = []

    class Named(Log):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            order.append(self.name)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, device="cuda")
    with Named("outer"), Named("inner"):
        y = x + 1
    assert order == ["inner", "outer"] and y.tolist() == [2, 2]


def test_opaque_launches_are_recorded_and_unseen(sim: simulator.Simulator) -> None:
    """A launch below the dispatcher becomes a node that no mode has seen."""
    driver = simulator.SimDriver(sim)
    graph, x = torch.cuda.CUDAGraph(keep_graph=True), torch.ones(3, device="cuda")
    y = torch.zeros(3, device="cuda")

    def kernel(source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source * 3)

    with torch.cuda.graph(graph), Log() as log:
        simulator.launch_opaque("triton_add", kernel, x, y)
        z = y + 1
    assert log.ops == ["aten.add.Tensor"]
    names = [driver.kernel_name(node) for node in driver.nodes(graph.raw_cuda_graph())]
    assert names == ["triton_add", "sim::aten::add.Tensor"]
    assert y.tolist() == [0, 0, 0]
    graph.replay()
    assert y.tolist() == [3, 3, 3] and z.tolist() == [4, 4, 4]


def test_opaque_launch_outside_a_capture_runs_at_once(sim: simulator.Simulator) -> None:
    """Without a capture an opaque launch computes like any kernel."""
    x = torch.ones(3, device="cuda")
    simulator.launch_opaque("k", lambda t: t.add_(1), x)
    assert x.tolist() == [2, 2, 2]


def test_backward_is_captured_on_the_stream_of_its_forward(sim: simulator.Simulator) -> None:
    """Autograd's own threads take part in a capture: a whole training step replays."""
    model, reference = torch.nn.Linear(4, 2).cuda(), torch.nn.Linear(4, 2)
    reference.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    x, graph = torch.randn(3, 4), torch.cuda.CUDAGraph()
    static = x.cuda()
    with torch.cuda.graph(graph):
        model.zero_grad(set_to_none=True)
        model(static).square().sum().backward()
    graph.replay()
    reference(x).square().sum().backward()
    torch.testing.assert_close(model.weight.grad.cpu(), reference.weight.grad)


def test_compiled_code_falls_back_to_eager(sim: simulator.Simulator) -> None:
    """torch.compile on the simulated device runs, with and without a mode."""

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.ones(3, device="cuda")
    with Log():
        first = step(x)
    assert torch.allclose(first, step(x)) and torch.allclose(first, x.sin() + 1)
