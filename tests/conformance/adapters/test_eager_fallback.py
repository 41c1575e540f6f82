"""What runs in place of a graph that could not be captured; and how ranks agree on it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from gfxgraph.adapters._eager_fallback import Downgraded, any_rank_failed

Pair = namedtuple("Pair", "first second")


class Holder:
    """As the engines' own result objects: tensors among other attributes."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.size = 3


def test_results_keep_their_addresses():
    """Whatever holds them, tensors of later runs are those of the first, with the new values."""
    kinds = {
        "tensor": lambda a, b: a,
        "list": lambda a, b: [a, {"x": b, "n": 1}],
        "named tuple": lambda a, b: Pair(a, (b, None)),
        "object": lambda a, b: Holder({"a": a, "b": b}),
    }
    for make in kinds.values():
        piece = Downgraded(lambda value, make=make: make(torch.full((3,), value), torch.full((2,), value + 1)))
        first, second = piece(1.0), piece(5.0)
        assert type(first) is type(second)
        for ours, theirs, wanted in zip(tensors(first), tensors(second), (5.0, 6.0)):
            assert ours.data_ptr() == theirs.data_ptr()
            assert bool((ours == wanted).all())


def tensors(tree):
    from gfxgraph.adapters._eager_fallback import tensors_of

    return list(tensors_of(tree))


def test_what_is_no_tensor_is_of_the_latest_run():
    """Numbers beside the tensors are not those of the first run."""
    piece = Downgraded(lambda n: {"y": torch.zeros(2), "n": n})
    piece(1)
    assert piece(2)["n"] == 2


def test_other_shapes_are_handed_on():
    """Results of another shape cannot be put where the first ones were."""
    piece = Downgraded(lambda n: torch.full((n,), float(n)))
    piece(2)
    assert piece(3).tolist() == [3.0, 3.0, 3.0]


def test_one_rank_needs_no_group():
    """Without a group, or with one rank, the rank's own word holds."""
    for group in (None, SimpleNamespace(world_size=1, cpu_group=None), SimpleNamespace(world_size=1, cpu_group=1)):
        assert any_rank_failed(group, True) and not any_rank_failed(group, False)


@pytest.mark.parametrize("failed", [(False, False), (True, False), (False, True)])
def test_ranks_say_the_same(failed):
    """Where one rank of two failed both hear it, and neither waits for ever."""
    store = dist.HashStore()
    said: dict[int, bool] = {}

    def rank(number):
        group = dist.ProcessGroupGloo(store, number, 2)

        class Group:
            world_size = 2
            cpu_group = group

        said[number] = any_rank_failed(Group, failed[number])

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert said == dict.fromkeys(range(2), any(failed))


@pytest.mark.parametrize("is_handlers", [True, False])
def test_a_handlers_error_downgrades_nothing(is_handlers, monkeypatch):
    """Time is up inside a capture of vLLM's: it sees the error, as without gfxgraph; a failed capture runs eagerly."""
    from gfxgraph.adapters import vllm

    def ring(number, frame):
        raise RuntimeError("time is up")

    def original(self, x):
        self.entries[context.batch_descriptor].input_addresses = []
        if is_handlers:
            signal.raise_signal(signal.SIGUSR1)
            time.sleep(0)
        raise RuntimeError("the capture failed")

    context = SimpleNamespace(cudagraph_runtime_mode=SimpleNamespace(name="FULL"), batch_descriptor="n=7")
    contexts = SimpleNamespace(is_forward_context_available=lambda: True, get_forward_context=lambda: context)
    call = vllm._surviving(original, contexts, "entries", "graph", lambda: None)
    monkeypatch.setattr(vllm, "_tp_group", lambda: None)
    entries = {"n=7": SimpleNamespace(graph=None, input_addresses=None)}
    owner = SimpleNamespace(entries=entries, graph_pool=None, runnable=lambda x: x, runtime_mode=None)
    owner.runtime_mode = context.cudagraph_runtime_mode
    saved = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(RuntimeError, match="time is up") if is_handlers else contextlib.nullcontext():
            assert call(owner, 2) == 2
    finally:
        signal.signal(signal.SIGUSR1, saved)
