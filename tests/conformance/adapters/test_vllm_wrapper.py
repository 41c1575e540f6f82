"""The wrapper round vLLM's own: replays, captures that succeed or fail after others, and what it asks of a replay.

vLLM's files are tested as published where they can be fetched (tests/engines); here stands what they do.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import gfxgraph
from gfxgraph.adapters import vllm
from gfxgraph.types import OnUnsafe


class Key:
    """A batch descriptor that counts how often it is hashed."""

    n_hashes = 0

    def __init__(self, size):
        self.size = size

    def __hash__(self):
        Key.n_hashes += 1
        return self.size

    def __eq__(self, other):
        return self.size == other.size


class Wrapper:
    """As CUDAGraphWrapper: one entry for each batch, captured at the first call."""

    def __init__(self, runnable):
        self.runnable, self.runtime_mode, self.entries = runnable, "PIECEWISE", {}
        self.graph_pool = torch.cuda.graph_pool_handle()

    def __call__(self, x):
        key = contexts.get_forward_context().batch_descriptor
        if key not in self.entries:
            self.entries[key] = SimpleNamespace(graph=None, input_addresses=None)
        entry = self.entries[key]
        if entry.graph is None:
            entry.input_addresses, graph = [x.data_ptr()], torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.graph_pool):
                entry.output = self.runnable(x)
            entry.graph = graph
            return entry.output
        entry.graph.replay()
        return entry.output


now = SimpleNamespace(batch_descriptor=None, cudagraph_runtime_mode=SimpleNamespace(name="PIECEWISE"))
contexts = SimpleNamespace(is_forward_context_available=lambda: True, get_forward_context=lambda: now)


@pytest.fixture
def run(platform):
    """A wrapped wrapper of ``x * 2``, and the sizes at which its captures fail."""
    fails, xs = set(), {n: torch.full((n,), 3.0, device="cuda") for n in (1, 2, 4, 8)}

    def double(x):
        if x.numel() in fails and torch.cuda.is_current_stream_capturing():
            gfxgraph.process.process.active_session().policy = OnUnsafe.STRICT
            return x * x.max().item()
        return x * 2

    now.cudagraph_runtime_mode.name = "PIECEWISE"
    wrapper = Wrapper(double)
    wrapper.runtime_mode = now.cudagraph_runtime_mode
    call = vllm._surviving(Wrapper.__call__, contexts, "entries", "graph", lambda: None)

    def run(n, value):
        now.batch_descriptor = Key(n)
        xs[n].fill_(value)
        out = call(wrapper, xs[n])
        if wrapper.entries.get(Key(n)) is not None:
            wrapper.entries[Key(n)].graph.replay()  # the first call has only recorded
        return out.tolist() == [2 * value] * n

    run.fails, run.wrapper = fails, wrapper
    return run


def fallbacks():
    return gfxgraph.stats()["fallback_count"]


@pytest.mark.parametrize("failing", [8, 4, 1])
def test_a_capture_that_fails_first_between_or_last(run, failing):
    """Its size runs eagerly, right each time; the others are graphs, whenever they were captured."""
    run.fails.add(failing)
    assert all(run(n, 1.0) for n in (8, 4, 2, 1))
    assert fallbacks() == 1 and sorted(key.size for key in run.wrapper.entries) == sorted({1, 2, 4, 8} - {failing})
    assert all(run(n, value) for value in (2.0, 5.0) for n in (1, failing, 8, 2, 4))
    assert fallbacks() == 1


def test_a_replay_asks_for_nothing_of_its_own(run):
    """Once every size that there is has its graph, the batch is hashed as often as by vLLM alone."""
    assert run(8, 1.0) and run(2, 1.0)
    now.batch_descriptor = Key(8)
    x = torch.ones(8, device="cuda")
    Key.n_hashes = 0
    Wrapper.__call__(run.wrapper, x)
    alone, Key.n_hashes = Key.n_hashes, 0
    vllm._surviving(Wrapper.__call__, contexts, "entries", "graph", lambda: None)(run.wrapper, x)
    assert Key.n_hashes == alone


def test_graphs_that_were_dropped_are_captured_again(run):
    """What was counted of the graphs before does not hide that there are none."""
    assert run(8, 1.0) and run(2, 1.0)
    run.wrapper.entries.clear()
    run.fails.add(2)
    assert all(run(n, value) for value in (4.0, 6.0) for n in (8, 2))
    assert fallbacks() == 1 and [key.size for key in run.wrapper.entries] == [8]


def test_a_models_own_error_comes_out_of_a_replay(run):
    """Nothing was captured in that call, so nothing falls back."""
    assert run(8, 1.0)

    def broken(wrapper, x):
        Wrapper.__call__(wrapper, x)
        raise RuntimeError("its own")

    now.batch_descriptor = Key(8)
    with pytest.raises(RuntimeError, match="its own"):
        vllm._surviving(broken, contexts, "entries", "graph", lambda: None)(run.wrapper, torch.ones(8, device="cuda"))
    assert fallbacks() == 0
