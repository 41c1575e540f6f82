"""Values that Python reads inside a plain capture: each replay gives eager's answer, or GuardMismatch."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from tests.conformance.conftest import PLATFORMS
from tests.conformance.host_value_programs import GUARDED, REFUSED, RIGHT, STATEFUL

pytestmark = pytest.mark.usefixtures("nothing_compiled")
INPUTS = [
    [0.0, 1.0, 2.0, 3.0, 0.5, -1.0],
    [0.0, 1.0, 2.0, 3.0, 0.5, -1.0],
    [0.25, 1.0, 2.5, 3.0, 0.5, -1.0],
    [3.0, 3.0, 3.0, 3.0, 3.0, 3.0],
    [-1.0, -2.0, -0.5, -4.0, -1.0, -0.25],
    [10.0, -20.0, 0.0, 7.5, 1.5, 0.125],
]


def outcomes(body, others, states=((), ()), inputs=INPUTS, warm=True):
    """What each replay of ``body`` gives, compared with ``others``, its eager twin: "right" or "guarded"."""
    x = torch.tensor(inputs[0], device="cuda")
    graph = torch.cuda.CUDAGraph()
    if warm:
        body(x)
        others(x)
    with torch.cuda.graph(graph):
        got = body(x)
    found = []
    for values in inputs:
        x.copy_(torch.tensor(values))
        before = [t.detach().clone() for t in states[0]]
        try:
            graph.replay()
            found.append("right")
        except gfxgraph.GuardMismatch as error:
            assert "host_value_programs.py" in str(error) or "test_host_values.py" in str(error), error
            found.append("guarded")
            with torch.no_grad():
                for mine, saved in zip(states[0], before):
                    mine.copy_(saved)
            continue
        want = others(x)
        got_all = [*leaves(got), *states[0]]
        want_all = [*leaves(want), *states[1]]
        assert len(got_all) == len(want_all)
        for a, b in zip(got_all, want_all):
            assert a.shape == b.shape and a.dtype == b.dtype, (a, b)
            assert torch.allclose(a, b, equal_nan=True, rtol=1e-5, atol=1e-6), (values, a, b)
    return found


def leaves(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.fixture(scope="module")
def switched():
    """switched(platform) switches the bridge to it, where it is not on there yet."""
    on = []

    def switch(platform):
        if on[-1:] != [platform]:
            gfxgraph.disable()
            gfxgraph.enable(validate=False, **({"allow_cuda": True} if platform == "gpu" else {"simulate": platform}))
            on.append(platform)

    yield switch
    gfxgraph.disable()


@pytest.fixture(params=PLATFORMS)
def bridge(request, switched):
    """The bridge, enabled once for all programs of the tables that run on one platform."""
    switched(request.param)


def programs(table):
    """Each program on one platform, as which one matters to few; those of one together, to switch between them once."""
    names, n = sorted(table), len(PLATFORMS)
    return [pytest.param(PLATFORMS[first], name, id=name) for first in range(n) for name in names[first::n]]


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0:UserWarning")  # of what no element passed
@pytest.mark.parametrize(("bridge", "name"), programs(RIGHT), indirect=["bridge"])
def test_program_is_right(bridge, name):
    """The value flows: every replay agrees with eager."""
    assert outcomes(RIGHT[name], RIGHT[name]) == ["right"] * len(INPUTS)


@pytest.mark.parametrize(("bridge", "name"), programs(GUARDED), indirect=["bridge"])
def test_program_is_right_or_guarded(bridge, name):
    """The same value replays; another is right or GuardMismatch with its line."""
    found = outcomes(GUARDED[name], GUARDED[name])
    assert found[:2] == ["right", "right"]


@pytest.mark.parametrize(("bridge", "name"), programs(REFUSED), indirect=["bridge"])
def test_program_is_refused_at_the_capture(bridge, name):
    """C code that takes only Python's own numbers, and operations that fail, raise there; the process is as before."""
    x = torch.tensor(INPUTS[0], device="cuda")
    with pytest.raises((TypeError, KeyError, ValueError, RuntimeError)), torch.cuda.graph(torch.cuda.CUDAGraph()):
        REFUSED[name](x)
    assert outcomes(lambda x: x + 1, lambda x: x + 1) == ["right"] * len(INPUTS)


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_program_with_state_is_right(bridge, name):
    """A training step's state follows eager through every replay; where a GradScaler finds an overflow, it is guarded."""
    (body, mine), (twin, others) = STATEFUL[name](), STATEFUL[name]()
    *found, last = outcomes(body, twin, (mine, others))
    assert found == ["right"] * (len(INPUTS) - 1)
    assert last == ("guarded" if name == "grad_scaler" else "right")
