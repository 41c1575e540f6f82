"""The shortest programs that say device="cuda"."""

from __future__ import annotations

import pytest
import torch

import gfxgraph_simulator as simulator
from gfxgraph_simulator import kernels


def test_tensors_are_really_on_the_device(sim: simulator.Simulator) -> None:
    """A device tensor is a plain tensor that says cuda:0 in every way."""
    x = torch.ones(3, 4, device="cuda")
    assert type(x) is torch.Tensor
    assert x.device == torch.device("cuda", 0) and x.is_cuda
    assert x.untyped_storage().device == x.device
    assert x.data_ptr() in sim.arena


def test_capture_poisons_and_replay_computes(sim: simulator.Simulator) -> None:
    """A capture computes nothing; a replay computes from the inputs as they are then."""
    x = torch.randn(4, 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2).relu() + 1
    assert y.isnan().all()
    for _ in range(2):
        graph.replay()
        assert torch.equal(y, (x * 2).relu() + 1)
        x.copy_(torch.randn(4, 4))


def test_captured_in_place_op_does_not_mutate(sim: simulator.Simulator) -> None:
    """An in-place op in a capture changes memory at replays only."""
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
    assert x.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_undo_leaves_torch_as_it_was() -> None:
    """After undo there is no device, and every patched name is the old object."""
    names = {
        (owner, name): vars(owner).get(name)
        for owner in (torch, torch._C, torch.cuda, torch.cuda.graphs, torch.cuda.memory, torch.version)
        for name in list(vars(owner))
    }
    bases = [cls.__bases__ for cls in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph)]
    undo = simulator.install("hip")
    assert torch.cuda.is_available() and torch.version.hip
    undo.undo()
    assert simulator.active() is None
    for (owner, name), value in names.items():
        assert vars(owner).get(name) is value, f"{owner.__name__}.{name}"
    assert bases == [cls.__bases__ for cls in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph)]
    assert not torch.cuda.is_available()
    with pytest.raises((NotImplementedError, RuntimeError, AssertionError)):
        torch.ones(1, device="cuda:0")


def test_a_tensor_that_outlives_its_simulator_is_refused() -> None:
    """The kernels stay registered; without a simulator they compute nothing, and the next one has them at once."""
    undo = simulator.install()
    left = torch.ones(2, device="cuda")
    undo.undo()
    with pytest.raises(NotImplementedError, match="no longer installed"):
        left + 1
    registered = kernels._library
    undo = simulator.install("hip")
    try:
        assert kernels._library is registered
        assert (torch.ones(2, device="cuda") + 1).tolist() == [2, 2]
    finally:
        undo.undo()


def test_dynamo_finds_what_is_in_place_of_torchs_functions() -> None:
    """Its map of torch stays, and has by each name the rule that one made anew would have; then it is as before."""
    rules = pytest.importorskip("torch._dynamo.trace_rules")
    simulator.install().undo()  # torch's own functions may be other objects once they were called
    rules.get_torch_obj_rule_map.cache_clear()
    known = rules.get_torch_obj_rule_map()
    before = dict(known)
    undo = simulator.install()
    try:
        assert rules.get_torch_obj_rule_map() is known
        anew = rules.get_torch_obj_rule_map.__wrapped__()
        for function in (torch.tensor, torch.cuda.is_available, torch._C._cuda_isCurrentStreamCapturing):
            assert function in anew and function not in before
        assert {each for each in anew if known.get(each) is not anew[each]} == set()
    finally:
        undo.undo()
    assert rules.get_torch_obj_rule_map() is known and known == before


def test_second_simulator_is_refused(sim: simulator.Simulator) -> None:
    """Two simulators in one process are an error, not a surprise."""
    with pytest.raises(simulator.SimulatorError) as caught:
        simulator.install()
    assert caught.value.code == "simulator_unsupported"


def test_unknown_profile_lists_the_known_ones() -> None:
    """A wrong profile name is answered with the right ones, and nothing is patched."""
    with pytest.raises(simulator.SimulatorError) as caught:
        simulator.install("hip-1.0")
    assert caught.value.code == "simulator_unknown_profile"
    assert "hip-7.2" in caught.value.fields["known"]  # type: ignore[operator]
    assert simulator.active() is None
