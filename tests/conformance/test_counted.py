"""Every call of a graphed function is counted once, in the one way in which it ran, whatever comes between calls."""

from __future__ import annotations

import re

import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.any_platform
WAYS = re.compile(r"^  ([ \d]{6}\d)  (by a graph|in pieces|eager|a piece)\b", re.MULTILINE)  # not those of pieces


def counted(g):
    """How many calls ``explain()`` tells of; eager parts of a call in pieces are no calls."""
    return sum(int(n) for n, way in WAYS.findall(g.explain()) if way != "a piece")


def ones(*size):
    return torch.ones(*size, device="cuda")


def plain():
    w = ones(4, 4)
    return lambda x: (x @ w).relu(), [(ones(3, 4) * i,) for i in range(9)], {}


def two_shapes():
    return lambda x: x * 2 + 1, [(ones(2 + i % 2, 4),) for i in range(10)], {}


def padded():
    dynamic = {"dynamic": {"x": {0: "n"}}, "buckets": [4, 8]}
    return lambda x: x * 2, [(ones(1 + i % 9, 4),) for i in range(27)], dynamic


def in_pieces():
    def step(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    return step, [(ones(4) * i,) for i in range(8)], {}


def on_the_host():
    return lambda x: x + 1, [(torch.ones(4),) for _ in range(5)], {}


def numbers():
    return lambda x, n: x * n, [(ones(4), i % 3) for i in range(12)], {}


def gradients():
    w = ones(4).requires_grad_()
    return lambda x: (x * w).sum(), [(ones(4) * i,) for i in range(8)], {}


def a_module_that_changes():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0)).cuda()
    calls = [(ones(2, 4),) for _ in range(12)]
    return net, [(lambda net=net, i=i: net.train(i % 4 < 2), *call) for i, call in enumerate(calls)], {}


def a_function_that_fails():
    def step(x, n):
        if n % 3 == 2:
            raise KeyError(n)
        return x + n

    return step, [(ones(4), i) for i in range(9)], {}


def effects():
    seen = []

    def step(x):
        seen.append(len(seen))
        return x * len(seen)

    n = iter(range(1, 99))

    def eager(x):
        return x * next(n)

    return step, [(ones(4) * i,) for i in range(7)], {"eager": eager}


def state_of_its_own():
    mine, others = ones(4), ones(4)

    def step(x, state=mine):
        state.add_(x)
        return state * 2

    return step, [(ones(4) * i,) for i in range(8)], {"eager": lambda x: step(x, others)}


def results_in_place():
    return lambda x: {"a": x * 2, "b": [x + 1, (x - 1, 3)]}, [(ones(3, 4) * i,) for i in range(8)], {"mode": "hot"}


def promised():
    return lambda x: x.sin(), [(ones(2 + i % 3, 4),) for i in range(12)], {"assume_pure": True}


def with_and_without_gradients():
    def on(i):
        torch.set_grad_enabled(i % 2 == 0)

    w = ones(4).requires_grad_()
    return lambda x: x * w, [(lambda i=i: on(i), ones(4) * i) for i in range(12)], {}


def autocast():
    w = ones(4, 4)

    def step(x, dtype):
        with torch.autocast("cuda", dtype):
            return (x @ w).float()

    return step, [(ones(2, 4), (torch.float16, torch.bfloat16)[i % 2]) for i in range(8)], {}


def read_on_the_host():
    return lambda x: x * 2 if x.sum().item() > 4 else x, [(ones(4) * (i % 3),) for i in range(9)], {}


MAKERS = [plain, two_shapes, padded, in_pieces, on_the_host, numbers, gradients, a_module_that_changes,
          a_function_that_fails, effects, state_of_its_own, results_in_place, promised, with_and_without_gradients,
          autocast, read_on_the_host]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_calls_are_counted_once(platform, make):
    """In the table of ``explain()`` and in ``stats()``, which agree; results are eager's."""
    fn, calls, options = make()
    eager = options.pop("eager", fn)
    g = gfxgraph.graphed(fn, **options)
    with torch.enable_grad():
        for n, call in enumerate(calls, 1):
            if callable(call[0]):
                call[0]()
                call = call[1:]
            try:
                wanted = eager(*call)
            except KeyError as error:
                with pytest.raises(KeyError, match=str(error)):
                    g(*call)
            else:
                torch.testing.assert_close(g(*call), wanted)
            assert counted(g) == n, g.explain()
    ours, everybodys = g.stats(), gfxgraph.stats()
    assert everybodys["replay_count"] == ours["replays"] and everybodys["capture_count"] >= ours["captures"]
    assert everybodys["fallback_count"] == 0
