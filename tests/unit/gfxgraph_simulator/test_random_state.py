"""Random numbers: counter-based, advanced alike by eager and replay."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

import gfxgraph_simulator as simulator


def draw() -> torch.Tensor:
    ones = torch.ones(100, device="cuda")
    return F.dropout(ones) + torch.rand(100, device="cuda") + torch.randint(0, 9, (100,), device="cuda")


def test_seeds_and_states_reproduce(sim: simulator.Simulator) -> None:
    """manual_seed, get/set_rng_state and offsets all lead back to the same numbers."""
    torch.manual_seed(3)
    first, state = draw(), torch.cuda.get_rng_state()
    second = draw()
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(), second) and not torch.equal(first, second)
    torch.cuda.manual_seed_all(3)
    assert torch.equal(draw(), first)
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16


def test_seeds_reach_the_device_though_a_machine_hides_its_own(sim: simulator.Simulator, monkeypatch) -> None:
    """torch.cuda.random has imported ``device_count`` by name; it asks the machine, not the simulator."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    torch.manual_seed(3)
    first = draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first) and torch.cuda.random.device_count() == 1


def test_device_numbers_leave_the_host_generator_alone(sim: simulator.Simulator) -> None:
    """Drawing on the device does not advance the CPU's generator."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    draw()
    assert torch.equal(torch.rand(3), expected)


def test_replays_continue_where_eager_would(sim: simulator.Simulator) -> None:
    """Each replay draws from the generator's current state and advances it as eager does."""
    torch.manual_seed(7)
    draw()
    expected = [draw() for _ in range(3)]
    torch.manual_seed(7)
    draw()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = draw()
    graph.replay()
    assert torch.equal(y, expected[0])
    assert torch.equal(draw(), expected[1])
    graph.replay()
    assert torch.equal(y, expected[2])
    torch.manual_seed(7)
    draw()
    graph.replay()
    assert torch.equal(y, expected[0])


def test_unregistered_generator_cannot_be_captured(sim: simulator.Simulator) -> None:
    """A generator of the user's needs register_generator_state first."""
    generator, graph = torch.Generator(device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(1, device="cuda").add_(1)
        with pytest.raises(RuntimeError, match="not in capture mode|not registered with the capturing graph"):
            torch.rand(3, device="cuda", generator=generator)
    registered = torch.cuda.CUDAGraph()
    registered.register_generator_state(generator)
    generator.manual_seed(5)
    expected = torch.rand(3, device="cuda", generator=generator)
    generator.manual_seed(5)
    with torch.cuda.graph(registered):
        y = torch.rand(3, device="cuda", generator=generator)
    registered.replay()
    assert torch.equal(y, expected)


def test_state_must_not_change_during_a_capture(sim: simulator.Simulator) -> None:
    """Seeding inside a capture is refused in torch's words."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(1, device="cuda").add_(1)
        with pytest.raises(RuntimeError, match="only if new seed is the same"):
            torch.cuda.default_generators[0].manual_seed(1)


def test_the_same_seed_changes_nothing_during_a_capture(sim: simulator.Simulator) -> None:
    """Of any generator: torch takes it, and the offset stays."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    torch.rand(3, device="cuda", generator=generator)
    offset = generator.get_offset()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda").add_(1)
        generator.manual_seed(3)
        with pytest.raises(RuntimeError, match="only if new seed is the same"):
            generator.manual_seed(4)
        with pytest.raises(RuntimeError, match="get_offset during CUDA graph capture"):
            generator.get_offset()
    assert generator.get_offset() == offset > 0


def test_graphsafe_states_are_shared_and_cloned(sim: simulator.Simulator) -> None:
    """graphsafe_get_state shares the state; clone_state copies it."""
    one, other = torch.Generator(device="cuda"), torch.Generator(device="cuda")
    one.manual_seed(11)
    other.graphsafe_set_state(one.graphsafe_get_state())
    torch.rand(3, device="cuda", generator=one)
    assert other.get_offset() == one.get_offset() > 0
    other.graphsafe_set_state(one.clone_state())
    torch.rand(3, device="cuda", generator=one)
    assert other.get_offset() < one.get_offset()


def test_generator_objects(sim: simulator.Simulator) -> None:
    """torch.Generator still makes CPU generators, and both are instances of it."""
    on_device, on_host = torch.Generator(device="cuda"), torch.Generator()
    assert isinstance(on_device, torch.Generator) and isinstance(on_host, torch.Generator)
    assert on_device.device.type == "cuda" and on_host.device.type == "cpu"
    on_device.manual_seed(4)
    copy = pickle.loads(pickle.dumps(on_device))
    assert copy.initial_seed() == 4
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.empty(3, device="cuda").uniform_(generator=on_host)


def test_code_that_draws_from_a_generator_compiles(sim: simulator.Simulator) -> None:
    """Dynamo hands the operation the generator itself: a stand-in for it ended the process (torch 2.14)."""
    generator = torch.Generator(device="cuda")
    weights = torch.ones(3, 10, device="cuda")

    def sample(x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x.softmax(-1), 1, generator=generator)

    generator.manual_seed(7)
    wanted = sample(weights)
    generator.manual_seed(7)
    assert torch.equal(torch.compile(sample, backend="eager")(weights), wanted)
