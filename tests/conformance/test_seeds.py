"""Generators that a captured program seeds, saves and sets back, by functions or by their own methods.

Each program draws in each call; replayed, its results and the states it leaves are those of eager calls.
"""

from __future__ import annotations

import pytest
import torch
from torch import manual_seed as imported_seed
from torch.random import fork_rng

import gfxgraph

pytestmark = [pytest.mark.usefixtures("nothing_compiled"), pytest.mark.any_platform]
HOST = torch.default_generator
OWN = torch.Generator()
SAVED = {"cpu": torch.Generator().manual_seed(77).get_state()}
OWN_ON_DEVICE: list[torch.Generator] = []


def device():
    return torch.cuda.default_generators[0]


def on_host(generator=None):
    return torch.rand(4, generator=generator).cuda()


def on_device(generator=None):
    return torch.rand(4, device="cuda", generator=generator)


def both():
    return on_host() + on_device()


def seeded(generator, draw):
    def program():
        first = draw()
        generator().manual_seed(5)
        second = draw()
        generator().manual_seed(5)
        return first + 2 * second + 3 * draw()

    return program


def seeded_last(generator, draw):
    def program():
        first = draw()
        generator().manual_seed(6)
        return first

    return program


def set_back(generator, draw):
    def program():
        state = generator().get_state()
        first = draw()
        generator().set_state(state)
        return first + 2 * draw()

    return program


def state_from_outside(generator, draw):
    def program():
        generator().set_state(SAVED[generator().device.type])
        return draw()

    return program


def by_function(seed):
    def program():
        first = both()
        seed(3)
        return first + both()

    return program


def set_back_by_functions(get, put):
    def program():
        state = get()
        first = both()
        put(state)
        return first + 2 * both()

    return program


def forked():
    with fork_rng(devices=[0]):
        HOST.manual_seed(4)
        device().manual_seed(4)
        first = both()
    return first + 2 * both()


def made_inside_from_a_state():
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return on_host(generator) + 2 * on_host()


OF = {
    "host": (lambda: HOST, on_host),
    "device": (device, on_device),
    "own": (lambda: OWN, lambda: on_host(OWN)),
    "own on the device": (lambda: OWN_ON_DEVICE[0], lambda: on_device(OWN_ON_DEVICE[0])),
}
PROGRAMS = {
    **{
        f"{make.__name__} of {name}": make(*of)
        for name, of in OF.items()
        for make in (seeded, seeded_last, set_back, state_from_outside)
    },
    "torch.manual_seed": by_function(torch.manual_seed),
    "torch.random.manual_seed": by_function(torch.random.manual_seed),
    "imported": by_function(imported_seed),
    "torch.cuda.manual_seed": by_function(torch.cuda.manual_seed),
    "torch.cuda.random.manual_seed_all": by_function(torch.cuda.random.manual_seed_all),
    "torch.random states": set_back_by_functions(torch.random.get_rng_state, torch.random.set_rng_state),
    "all states": set_back_by_functions(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),
    "forked": forked,
    "made inside": made_inside_from_a_state,
}


def reset():
    torch.manual_seed(11)
    OWN.manual_seed(12)
    OWN_ON_DEVICE[:] = OWN_ON_DEVICE or [torch.Generator(device="cuda")]
    OWN_ON_DEVICE[0].manual_seed(13)


def states():
    return [each.get_state().tolist() for each in (HOST, device(), OWN, OWN_ON_DEVICE[0])]


@pytest.fixture(autouse=True)
def _made_anew(platform):
    OWN_ON_DEVICE.clear()
    SAVED["cuda"] = torch.Generator(device="cuda").manual_seed(77).get_state()
    reset()
    yield
    OWN_ON_DEVICE.clear()


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(platform, name, is_warm):
    """Numbers and states are eager's, call by call, and the capture leaves every state as it was."""
    program = PROGRAMS[name]
    program()
    reset()
    eager = [(program().tolist(), states()) for _ in range(3)]
    reset()
    if is_warm:
        program()
        reset()
    before = states()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(OWN_ON_DEVICE[0])
    with torch.cuda.graph(graph):
        y = program()
    assert states() == before
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append((y.tolist(), states()))
    assert replayed == eager


def test_methods_are_torchs_own_outside_captures(platform):
    """And inside, in a thread that captures nothing, they act at once."""
    own = torch._C.Generator.manual_seed
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda")
        assert torch._C.Generator.manual_seed is not own
    assert torch._C.Generator.manual_seed is own
    assert OWN.manual_seed(3) is OWN and OWN.initial_seed() == 3


def test_a_seed_that_a_value_decides(platform):
    """It is compared at each replay, as any number that C code takes."""
    seed = torch.ones((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        HOST.manual_seed(int(seed))
        y = on_host()
    graph.replay()
    HOST.manual_seed(1)
    assert y.tolist() == on_host().tolist()
    seed.fill_(2)
    with pytest.raises(gfxgraph.GuardMismatch, match="test_seeds"):
        graph.replay()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_trace_inside_a_capture_is_no_step(platform):
    """Dynamo saves the states and sets them back around its trace, which draws nothing."""
    double = torch.compile(lambda t: t * 2, backend="eager")
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = double(x)
    graph.replay()
    assert y.tolist() == [2.0] * 4 and gfxgraph.stats()["split_count"] == 0
