"""Every call of a graphed function is counted once, in the one way in which it ran, whatever comes between calls."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from gfxgraph.process.calls import WAYS
from tests.conformance.test_account import Driver, agreed

pytestmark = pytest.mark.any_platform


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


def gan():
    """Two modules that take turns, one through the other."""
    g, d = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 1).cuda()
    return lambda z: d(torch.tanh(g(z))), [(ones(2, 4) * i,) for i in range(8)], {}


def cached_sizes():
    cache = {}

    def step(x):
        n = x.shape[0]
        if n not in cache:
            cache[n] = torch.ones(n, device="cuda")
        return x + cache[n][:, None]

    return step, [(ones(2 + i % 2, 4),) for i in range(10)], {"eager": lambda x: x + 1}


def dictionary_arguments():
    return lambda d: d["a"] * d["b"], [({"a": ones(4) * i, "b": ones(4)},) for i in range(7)], {}


def random_numbers():
    return lambda x: torch.rand_like(x).ge(0).float() * x, [(ones(4) * i,) for i in range(7)], {}


def printing():
    def step(x):
        print("step", end="")
        return x * 2

    return step, [(ones(4) * i,) for i in range(7)], {}


def views_of_arguments():
    return lambda x: (x[1:], x.t()), [(ones(4, 4) * i,) for i in range(7)], {}


def long_loop_in_python():
    def step(x, n):
        for _ in range(n):
            x = x * 1.5
        return x

    return step, [(ones(4), 2 + i // 4) for i in range(9)], {}


def in_place():
    def step(x):
        x.add_(1)
        return x * 2

    return step, [(ones(4) * i,) for i in range(7)], {"eager": lambda x: (x.clone() + 1) * 2}


def numpy_between():
    def step(x):
        y = torch.from_numpy(x.cpu().numpy() + 1)
        return y.cuda() * x

    return step, [(ones(4) * i,) for i in range(7)], {}


def generator_of_tensors():
    return lambda xs: sum(x.sum() for x in xs), [([ones(2) * i, ones(3)],) for i in range(7)], {}


def sizes_without_end():
    return lambda x: x.cumsum(0), [(ones(1 + i),) for i in range(12)], {}


def dtypes():
    kinds = [torch.float32, torch.float16, torch.int64]
    return lambda x: x + x, [(ones(4).to(kinds[i % 3]),) for i in range(12)], {}


def fails_in_the_end():
    def step(x, n):
        y = x * 2
        if n > 5:
            raise KeyError(n)
        return y

    return step, [(ones(4), i) for i in range(9)], {}


def adaptive():
    return lambda x: (x * 2 + 1).relu(), [(ones(4) * i,) for i in range(12)], {"mode": "adaptive"}


def needs_a_second_warm_up():
    return lambda x: x * 3, [(ones(4) * i,) for i in range(8)], {"warmup": 3}


def few_graphs():
    return lambda x: x - 1, [(ones(1 + i % 3),) for i in range(12)], {"max_graphs": 1}


def custom_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    w = ones(4).requires_grad_()
    return lambda x: Twice.apply(x * w).sum(), [(ones(4) * i,) for i in range(8)], {}


MAKERS = [plain, two_shapes, padded, in_pieces, on_the_host, numbers, gradients, a_module_that_changes,
          a_function_that_fails, effects, state_of_its_own, results_in_place, promised, with_and_without_gradients,
          autocast, read_on_the_host, gan, cached_sizes, dictionary_arguments, random_numbers, printing,
          views_of_arguments, long_loop_in_python, in_place, numpy_between, generator_of_tensors, sizes_without_end,
          dtypes, fails_in_the_end, adaptive, needs_a_second_warm_up, few_graphs, custom_function]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_calls_are_counted_once(platform, make):
    """In one way each, the same in every view after each call; results are eager's."""
    fn, calls, options = make()
    eager = options.pop("eager", fn)
    gfxgraph.reset_stats()
    drive = Driver()
    g = drive.graphed(fn, **options)
    with torch.enable_grad():
        for n, call in enumerate(calls):
            if callable(call[0]):
                call[0]()
                call = call[1:]
            try:
                wanted = eager(*call)
            except KeyError as error:
                wanted = error
            found = drive(g, *call)
            if not isinstance(wanted, KeyError):
                torch.testing.assert_close(found, wanted)
            assert sum(g.stats()["calls"][way] if way == "by_graph" else sum(g.stats()["calls"][way].values())
                       for way in WAYS) == n + 1, g.explain()  # fmt: skip
    agreed(drive)
    ours, everybodys = g.stats(), gfxgraph.stats()
    assert everybodys["replay_count"] == ours["replays"] and everybodys["capture_count"] >= ours["captures"]
