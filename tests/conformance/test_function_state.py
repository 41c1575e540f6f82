"""What a graphed function reads besides its arguments: never a stale answer."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.callables import worlds
from gfxgraph.callables.worlds import Promised
from tests.conformance.conftest import HAS_GPU
from tests.warm_python import warm_python

pytestmark = pytest.mark.any_platform

FACTOR = 2.0
MODEL = None


@pytest.fixture(autouse=True)
def _platform(platform):
    with torch.no_grad():
        yield


def model(n_layers=1):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(n_layers)]
    return nn.Sequential(*layers, nn.Dropout(0.5)).cuda().eval()


def agree(g, eager, *args, n=4):
    """Warm, captured and replayed, the graphed function is the eager one."""
    before = g.stats()["replays"]
    for _ in range(n):
        torch.testing.assert_close(g(*args), eager(*args), rtol=0, atol=0)
    return g.stats()["replays"] - before


X = lambda: torch.arange(8.0, device="cuda").view(2, 4)  # noqa: E731


def _assign(m):
    m[0].weight = nn.Parameter(torch.full((4, 4), 3.0, device="cuda"))


def _state_dict(m):
    m.load_state_dict({k: torch.full_like(v, 0.5) for k, v in m.state_dict().items()})


def _state_dict_assign(m):
    m.load_state_dict({k: torch.full_like(v, 0.25) for k, v in m.state_dict().items()}, assign=True)


def _submodule(m):
    m[0] = nn.Linear(4, 4).cuda()


def _move(m):
    m.double()
    m.float()
    m[0].weight.mul_(2)


def _data(m):
    m[0].weight.data = torch.full((4, 4), 7.0, device="cuda")


def _in_place(m):
    m[0].weight.mul_(3)


CHANGES = [_assign, _state_dict, _state_dict_assign, _submodule, _move, _data, _in_place]


WAYS = ["method", "closure", "partial", "global"]


@pytest.mark.parametrize(
    ("change", "way"),
    [*((change, "module") for change in CHANGES), *itertools.product([_assign, _submodule, _data], WAYS)],
)
def test_parameters(change, way):
    """Replaced, moved or rewritten parameters are noticed, however the function reaches them."""
    global MODEL
    m = MODEL = model()
    x = X()
    fn = {
        "module": m,
        "method": m.forward,
        "closure": lambda x: m(x) * 2,
        "partial": functools.partial(lambda inner, x: inner(x) + 1, m),
        "global": lambda x: MODEL(x) - 1,
    }[way]
    g = gfxgraph.graphed(fn)
    assert agree(g, fn, x) >= 3
    change(m)
    assert agree(g, fn, x) >= 2


def test_what_a_trace_returns_is_marked_as_used_on_the_callers_stream(monkeypatch):
    """A result made on the stream that captures is, also where the call is no single graph or not traced at all."""
    used = []
    monkeypatch.setattr(worlds, "used_on", lambda tensor, stream: used.append(tensor))

    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    for fn in (lambda x: x + 1, broken, torch._dynamo.disable(lambda x: x + 2)):
        made = gfxgraph.graphed(fn)(X())
        assert any(each is made for each in used), fn


def test_train_and_eval_go_back_and_forth():
    """The mode is part of the signature; going back finds the capture again."""
    m = model()
    g = gfxgraph.graphed(m)
    x = X()
    assert agree(g, m, x) == 3
    m.train()
    torch.manual_seed(3)
    outs = [g(x) for _ in range(6)]
    assert any((out == 0).any() for out in outs) and not all(torch.equal(outs[0], out) for out in outs)
    m.eval()
    assert agree(g, m, x) == 4
    m[1].train()
    assert any((g(x) == 0).any() for _ in range(6))


def test_many_parameters_are_all_watched():
    """``.data`` of one parameter among many is noticed within as many calls as it takes to go round."""
    m = model(12)
    g = gfxgraph.graphed(m)
    x = X()
    assert agree(g, m, x) == 3
    m[7].weight.data = torch.full((4, 4), 7.0, device="cuda")
    expected = m(x)
    assert torch.equal(g(x), expected)
    assert agree(g, m, x) >= 2


def test_attributes_of_many_modules_are_all_watched():
    """A number that one module among many computes with is noticed within as many calls as it takes to go round."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            return x * self.scale

    m = torch.nn.Sequential(*[Scaled() for _ in range(12)])
    g = gfxgraph.graphed(m)
    x = X()
    assert agree(g, m, x) == 3
    m[7].scale = 3.0
    expected = m(x)
    assert torch.equal(g(x), expected)
    assert agree(g, m, x) >= 2


def test_a_thread_looks_while_others_ask():
    """What a pure function's modules hold is looked at anew under the threads that ask whether it is the same."""
    m = model(12)
    reads = Promised(m)
    problems, until = [], time.monotonic() + 1

    def ask():
        try:
            while time.monotonic() < until:
                reads.is_same()
        except Exception as error:
            problems.append(error)

    was = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            m.append(nn.Linear(4, 4).cuda())
            assert not reads.is_same()
            reads.look()
            del m[len(m) - 1]
            reads.look()
    finally:
        sys.setswitchinterval(was)
        for thread in threads:
            thread.join()
    assert not problems


def test_variables():
    """Variables of the enclosing function and globals that the function names."""
    global FACTOR
    FACTOR = 2.0
    scale, table = 3, torch.ones(4, device="cuda")

    def f(x):
        return x * scale * FACTOR + table

    g = gfxgraph.graphed(f)
    x = X()
    assert agree(g, f, x) == 3
    scale = 5
    agree(g, f, x)
    FACTOR = 0.5
    agree(g, f, x)
    table = torch.full((4,), 9.0, device="cuda")
    agree(g, f, x)
    table.add_(1)
    assert agree(g, f, x) == 4
    scale, FACTOR = 3, 0.5
    agree(g, f, x)


def test_lists_and_dicts():
    """What a short list or dict of the enclosing function holds."""
    weights, options = [torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")], {"scale": 2.0}

    def f(x):
        return x * weights[0] * options["scale"] + weights[1]

    g = gfxgraph.graphed(f)
    x = X()
    assert agree(g, f, x) == 3
    weights[0] = torch.full((4,), 5.0, device="cuda")
    assert agree(g, f, x) >= 2
    options["scale"] = 3.0
    assert agree(g, f, x) >= 2


def test_keywords_of_a_partial():
    """As an activation of transformers is made: by one graph, and by another when the partial is another."""
    act = functools.partial(nn.functional.gelu, approximate="tanh")
    add = functools.partial(torch.add, other=2, alpha=0.5)

    def f(x):
        return add(act(x))

    g = gfxgraph.graphed(f)
    x = X()
    assert agree(g, f, x) == 3
    act = functools.partial(nn.functional.gelu, approximate="none")
    assert agree(g, f, x) >= 2
    add = functools.partial(torch.add, other=2, alpha=0.25)
    assert agree(g, f, x) >= 2 and not g.stats()["pieces"]


def test_a_variable_that_changes_at_each_call():
    """Captured once, as an input of the graph; never wrong, and nothing piles up."""
    step = 0

    def f(x):
        return x + step

    g = gfxgraph.graphed(f)
    x = X()
    for step in range(50):  # noqa: B007
        torch.testing.assert_close(g(x), f(x), rtol=0, atol=0)
    assert g.stats()["captures"] <= 2 and g.stats()["replays"] >= 40, g.explain()


def test_module_attributes():
    """A plain attribute of a module changes with the module's mode or another event at the latest."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self.scale = 2.0

        def forward(self, x):
            return x * self.w * self.scale

    m = Scaled().cuda()
    g = gfxgraph.graphed(m)
    x = X()
    assert agree(g, m, x) == 3
    m.scale = 5.0
    agree(g, m, x)


def test_a_copy_of_the_module_is_another_function():
    """Two modules never share captures."""
    a = model()
    b = copy.deepcopy(a)
    b[0].weight.mul_(2)
    x = X()
    agree(gfxgraph.graphed(a), a, x)
    agree(gfxgraph.graphed(b), b, x)


@pytest.mark.skipif(not hasattr(torch._C, "_set_fp32_precision_setter"), reason="torch 2.9 and later")
def test_precision_set_by_torchs_newer_names():
    """Once they are used torch's older ones raise, for the rest of the process; so in one of its own."""
    on = "allow_cuda=True" if HAS_GPU else "simulate='cuda'"
    program = f"""
import torch, gfxgraph
from gfxgraph_kernels.generation.model import kernel_settings
gfxgraph.enable(validate=False, {on})
g, x, replays = gfxgraph.graphed(lambda x: x @ x), torch.eye(4, device="cuda"), []
for precision in ("tf32", "tf32", "tf32", "ieee", "ieee"):
    torch.backends.cuda.matmul.fp32_precision = precision
    assert torch.equal(g(x), x) and precision in kernel_settings()
    replays.append(g.stats()["replays"])
print(replays, g.stats()["captures"])
"""
    run = subprocess.run([warm_python(), "-c", program], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "[0, 1, 2, 2, 3] 2", run.stdout + run.stderr


def test_a_constant_that_each_call_leaves_is_put_back():
    """An attribute that the function sets to the same value each time is set again after somebody else has set it."""

    class Box:
        last = ""

    box = Box()

    def f(x):
        box.last = "f"
        return x * 2

    g = gfxgraph.graphed(f)
    for i in range(6):
        box.last = "other" if i == 4 else box.last
        x = X()
        assert torch.equal(g(x), x * 2) and box.last == "f", i
    assert g.stats()["replays"] >= 3 and not g.stats()["pieces"], g.explain()


class _Thing:
    kind = 1.0

    @property
    def total(self):
        return self.k + self.kind

    def scaled_by(self, x):
        return x * self.k


class _Other(_Thing):
    kind = 7.0


class _Mapped:
    """Has other names for some attributes, as configurations of transformers do."""

    table = {"short": "long"}  # noqa: RUF012

    def __init__(self):
        self.long, self._given = 2.0, 3.0

    @property
    def given(self):
        return self._given

    def __getattribute__(self, name):
        if name != "table" and name in super().__getattribute__("table"):
            name = super().__getattribute__("table")[name]
        return super().__getattribute__(name)


class _Scaled(nn.Module):
    scale = 1.0

    def forward(self, x):
        return x * self.scale


class _ScaledMore(_Scaled):
    def forward(self, x):
        return x * self.scale + 100


def test_objects_in_every_way():
    """Attributes stored, added, taken away, found in the class or by another name; another class; another dict."""
    thing, mapped, module, x = _Thing(), _Mapped(), _Scaled(), X()
    thing.k = 1.0

    def f(x):
        y = x * thing.k * thing.total + (10.0 if hasattr(thing, "extra") else 0.0)
        y = y * mapped.short + mapped.given + (20.0 if hasattr(mapped, "more") else 0.0)
        return module(y)

    def store(value):
        thing.k = value

    for i in range(40):  # CPython specialises the store
        store(float(i))
    changes = [
        lambda: store(5.0),
        lambda: setattr(thing, "extra", None),
        lambda: delattr(thing, "extra"),
        lambda: setattr(thing, "kind", 9.0),
        lambda: delattr(thing, "kind"),
        lambda: setattr(thing, "__class__", _Other),
        lambda: setattr(thing, "__dict__", {"k": 11.0}),
        lambda: setattr(mapped, "long", 4.0),
        lambda: setattr(mapped, "_given", 6.0),
        lambda: setattr(mapped, "more", 1),
        lambda: setattr(_Mapped, "table", {"short": "_given"}),
        lambda: mapped.table.update(given="long"),
        lambda: setattr(module, "scale", 3.0),
        lambda: setattr(module, "__class__", _ScaledMore),
    ]
    g = gfxgraph.graphed(f)
    was = _Mapped.table
    try:
        for i, change in enumerate([lambda: None, *changes]):
            change()
            for _ in range(3):
                assert torch.equal(g(x), f(x)), f"change {i}"
    finally:
        _Mapped.table = was
    assert all(why == "warm-up" or why.startswith("traced again: ") for why in g.stats()["eager"])
    assert g.stats()["replays"] >= len(changes)


def test_arguments_in_memory_that_is_written_to():
    """Whether an argument lies where the function writes is asked again whenever it lies somewhere else."""
    cache = torch.zeros(8, 4, device="cuda")

    def f(x):
        cache[0:2].copy_(x * 2)
        return cache.sum(0) + x.sum(0)

    g = gfxgraph.graphed(f)
    a, b = torch.ones(2, 4, device="cuda"), torch.full((2, 4), 3.0, device="cuda")
    for x in (a, b, a, b, a, a, cache[0:2], a, cache[0:2], b, b, cache[4:6], a, cache[1:3]):
        before = cache.clone()
        expected, after = f(x), cache.clone()
        cache.copy_(before)
        assert torch.equal(g(x), expected) and torch.equal(cache, after)
    assert "homes" in g._fast.__globals__ and g.stats()["replays"] >= 8


def _granted_programs(monkeypatch):
    """(function, change): what Dynamo guards in none of its frames, or not where it is missing at first."""

    class Act(nn.Tanh):
        pass

    net, thing = nn.Sequential(Act()), _Thing()
    thing.k = 2.0

    def read(x, k=1.0, *, more=0.0):
        return x * k + more

    def variable(x):
        return x * float(os.environ.get("GFX_STATE_OF_A_TEST", "1"))

    monkeypatch.delenv("GFX_STATE_OF_A_TEST", raising=False)
    yield lambda x: net(x), lambda: monkeypatch.setattr(Act, "forward", lambda self, x: x + 1, raising=False)
    yield read, lambda: setattr(read, "__defaults__", (3.0,))
    yield read, lambda: setattr(read, "__kwdefaults__", {"more": 5.0})
    yield thing.scaled_by, lambda: monkeypatch.setattr(_Thing, "scaled_by", lambda self, x: x - self.k)
    yield variable, lambda: monkeypatch.setenv("GFX_STATE_OF_A_TEST", "4")


@pytest.mark.parametrize("kind", ["whole", "pieces", "unwatched"])
def test_what_dynamo_takes_for_granted(kind, monkeypatch):
    """Functions of classes, defaults and variables of the process: also in frames between which Python runs."""
    numbers = [range(2)]
    for at, (inner, change) in enumerate(_granted_programs(monkeypatch)):

        def f(x, inner=inner):
            if kind == "pieces":
                x = x * (1.0 + 0.0 * random.random())
            elif kind == "unwatched":
                x = x * float(sum(numbers[0]))
            return inner(x)

        g, x = gfxgraph.graphed(f), X()
        for _ in range(4):
            assert torch.equal(g(x), f(x)), at
        change()
        for _ in range(3):
            assert torch.equal(g(x), f(x)), at


def test_a_method_is_followed_after_a_call_that_raised():
    """A call whose graph raises has no world, and yet what it read is looked at before its trace is used."""

    class Scales:
        def by(self, x):
            return x * 1

    held = Scales()
    g = gfxgraph.graphed(lambda x: torch.linalg.cholesky(held.by(x)))
    eye = torch.eye(3, device="cuda")
    with pytest.raises(torch.linalg.LinAlgError):
        g(-eye)
    Scales.by = lambda self, x: x * 4
    for _ in range(3):
        torch.testing.assert_close(g(eye), 2 * eye)
