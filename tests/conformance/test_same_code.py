"""Instances of one class or function: each has its own weights, numbers and hooks, whichever was traced first."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph import torch_names

pytestmark = pytest.mark.any_platform


def _made(cls, *args, **kwargs):
    return cls(*args, **kwargs).cuda().eval()


class Mlp(nn.Module):
    def __init__(self, scale=1.0, p=0.0, depth=2, tied=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.norm = nn.LayerNorm(8, eps=1e-5 * scale)
        self.drop = nn.Dropout(p)
        self.scale = scale
        if tied:
            self.layers[1].weight = self.layers[0].weight

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.drop(self.norm(x)) * self.scale


def weights():
    return [_made(Mlp) for _ in range(3)]


def numbers():
    return [_made(Mlp, 1.0), _made(Mlp, 3.0), _made(Mlp, 1.0)]


def norms():
    models = [_made(Mlp), _made(Mlp), _made(Mlp)]
    models[1].norm.eps = 2.0
    return models


def depths():
    return [_made(Mlp, depth=2), _made(Mlp, depth=3), _made(Mlp, depth=2)]


def dropped():
    models = [_made(Mlp, p=0.0), _made(Mlp, p=1.0), _made(Mlp, p=1.0), _made(Mlp, p=0.0)]
    return [each.train() for each in models]


def training():
    models = [_made(Mlp, p=1.0) for _ in range(3)]
    models[1].train()
    return models


def hooks():
    models = [_made(Mlp) for _ in range(3)]
    models[1].layers[0].register_forward_hook(lambda module, args, result: result + 1)
    return models


def hooks_before():
    models = [_made(Mlp) for _ in range(3)]
    models[0].norm.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return models


def tied():
    return [_made(Mlp), _made(Mlp, tied=True), _made(Mlp)]


def tied_first():
    return [_made(Mlp, tied=True), _made(Mlp)]


def frozen():
    models = [_made(Mlp) for _ in range(3)]
    models[1].requires_grad_(False)
    return models


def own_forward():
    models = [_made(Mlp) for _ in range(3)]
    models[1].forward = lambda x: x - 1
    models[2].forward = types.MethodType(lambda self, x: x * self.scale + 5, models[2])
    return models


def own_layer():
    models = [_made(Mlp) for _ in range(3)]
    models[1].layers[0] = nn.Identity()
    models[2].norm = nn.LayerNorm(8, bias=False).cuda()
    return models


class Buffered(nn.Module):
    def __init__(self, bias, offset):
        super().__init__()
        self.register_buffer("bias", bias)
        self.register_buffer("other", torch.full((8,), offset), persistent=False)
        self.where = torch.full((8,), -offset, device="cuda")

    def forward(self, x):
        x = x + self.other + self.where * 2
        return x if self.bias is None else x + self.bias


def buffers():
    return [_made(Buffered, b, float(i)) for i, b in enumerate((torch.ones(8), None, torch.full((8,), 5.0)))]


class Options:
    def __init__(self, **given):
        vars(self).update(given)


class Configured(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.config, self.weight = Options(**given), nn.Parameter(torch.randn(8))

    def forward(self, x):
        x = x * self.weight
        if getattr(self.config, "bias", None) is not None:
            x = x + self.config.bias
        if hasattr(self.config, "square"):
            x = x * x
        return x


def configured():
    return [
        _made(Configured, **each) for each in ({}, {"bias": 2.0}, {"square": 1}, {"bias": None}, {"bias": -0.0}, {})
    ]


class Table(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.scales = OrderedDict((name, float(i)) for i, name in enumerate(names))
        self.kinds = {1, 2, len(names)}

    def forward(self, x):
        for i, (name, scale) in enumerate(self.scales.items()):
            x = x + (i + 1) * scale if name != "skip" else x * 7
        return x * 2 if 3 in self.kinds else x


def tables():
    tables = [_made(Table, names) for names in (("a", "b"), ("a", "b", "skip"), ("a", "b"), ("b", "a"))]
    tables[2].scales.move_to_end("a")
    return tables


class Marked(nn.Module):
    def __init__(self, is_same):
        super().__init__()
        self.mark = object()
        self.held = {"mark": self.mark if is_same else object()}

    def forward(self, x):
        return x + 1 if self.held["mark"] is self.mark else x - 1


def marked():
    return [_made(Marked, each) for each in (True, False, True, False)]


class Rate(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return 1 / (x * 0 + self.rate)


def zeros():
    return [_made(Rate, each) for each in (0.0, -0.0, 0.0, 1)]


def _adding(n, y):
    def add(x):
        return x * n + y

    return add


def closures():
    return [_adding(n, torch.full((8,), float(i), device="cuda")) for i, n in enumerate((2, 3, 2, 2.0, True))]


def _with_default(y, n):
    def add(x, by=y, *, times=n):
        return (x + by) * times

    return add


def defaults():
    return [_with_default(torch.full((8,), float(n), device="cuda"), n) for n in (1, 1, 2)]


def default_numbers():
    def made(n):
        return lambda x, by=n: x + by

    return [made(n) for n in (1, 2, 1, 0.0, -0.0)]


def default_containers():
    def made(numbers, table):
        return lambda x, by=numbers, *, times=table: x * times.get("n", 3) + by[-1]

    return [made(*each) for each in (([1], {}), ([2], {}), ([1, 2], {"n": 5}), ([1], {"n": 0.0}), ([1], {}))]


class _Key:
    pass


class Keyed(nn.Module):
    def __init__(self, is_there):
        super().__init__()
        self.key = _Key()
        self.table = {self.key if is_there else _Key(): 4.0, (1, "a"): 2.0}
        self.marks = {self.key if is_there else _Key()}

    def forward(self, x):
        x = x * self.table.get(self.key, 9.0) + self.table[1, "a"]
        return x + 1 if self.key in self.marks else x


def keyed():
    return [_made(Keyed, each) for each in (True, False, True)]


class Recurrent(nn.Module):
    def __init__(self, is_first, heads):
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=is_first)
        self.attention = nn.MultiheadAttention(8, heads)

    def forward(self, x):
        x = self.rnn(x[None])[0]
        return self.attention(x, x, x)[0][0]


def recurrent():  # in training, which alone has a backward on a GPU
    return [_made(Recurrent, *each).train() for each in ((True, 2), (True, 2), (False, 2), (True, 4))]


def parametrized():
    models = [_made(Mlp) for _ in range(3)]
    for model in models[:2]:
        nn.utils.parametrizations.weight_norm(model.layers[0])
    return models


def partials():
    y = torch.ones(8, device="cuda")
    return [functools.partial(torch.add, y, alpha=n) for n in (1, 2, 1)]


def _wrapped(fn):
    @functools.wraps(fn)
    def call(x):
        return fn(x) + 1

    return call


def decorated():
    return [_wrapped(each) for each in (torch.sin, torch.cos, torch.sin, lambda x: x * 4, lambda x: x * 5)]


class Methods:
    factor = 2

    def __init__(self, factor=None):
        if factor is not None:
            self.factor = factor

    def run(self, x):
        return x * self.factor

    __call__ = run


def methods():
    return [each.run for each in (Methods(), Methods(3), Methods())] + [Methods(), Methods(5)]


class _Subclass(Mlp):
    def forward(self, x):
        return super().forward(x) - 1


def subclasses():
    return [_made(Mlp), _made(_Subclass), _made(Mlp), _made(_Subclass)]


def nested():
    def block():
        return nn.Sequential(nn.Linear(8, 8), nn.ModuleDict({"a": nn.Identity()})["a"], Mlp())

    models = [nn.Sequential(block(), block()).cuda().eval() for _ in range(3)]
    models[1][1][2].scale = 9.0
    return models


def activations():
    class Net(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.act, self.linear = act, nn.Linear(8, 8)

        def forward(self, x):
            return self.act(self.linear(x))

    acts = (torch.relu, torch.sigmoid, nn.ReLU(), lambda x: x * 3, lambda x: x * 3, nn.GELU(), nn.GELU("tanh"))
    return [_made(Net, act) for act in acts]


def dtypes():
    models = [_made(Mlp) for _ in range(3)]
    models[1].register_buffer("unused", torch.zeros(3, device="cuda"))
    models[2].layers[0].weight = nn.Parameter(models[2].layers[0].weight.detach().t().contiguous().t())
    return models


def shared():
    model = _made(Mlp)
    return [model, lambda x: model(x), lambda x: model(x) + 1]


def batch_norms():
    models = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda().eval() for _ in range(3)]
    models[1][1].running_mean += 3
    models[2][1].track_running_stats = False
    return models


PROGRAMS = [
    weights, numbers, norms, depths, dropped, training, hooks, hooks_before, tied, tied_first, frozen, own_forward,
    own_layer, buffers, configured, tables, marked, zeros, closures, defaults, default_numbers, default_containers, keyed,
    recurrent, parametrized, partials, decorated,
    methods, subclasses, nested, activations, dtypes, shared, batch_norms,
]  # fmt: skip
IN_BUCKETS = [
    weights, numbers, depths, hooks, own_forward, own_layer, buffers, closures, parametrized, partials, nested,
]  # fmt: skip
"""A trace is another instance's by the same guards, whatever the sizes: one for each way in which instances differ."""


def _inputs(n=3, rows=4):
    torch.manual_seed(5)
    return [torch.randn(rows, 8).cuda() for _ in range(n)]


def _near(result, expected):
    return torch.allclose(result.detach().cpu(), expected.detach().cpu(), 1e-4, 1e-5, equal_nan=True)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("is_last_first", [False, True], ids=["", "reversed"])
def test_each_instance_is_itself(platform, program, is_last_first):
    """Calls of every instance, one after another, give what that instance gives."""
    torch.manual_seed(0)
    functions = program()[:: -1 if is_last_first else 1]
    with torch.no_grad():
        given = _inputs()
        expected = [[fn(x).clone() for x in given] for fn in functions]
        graphed = [gfxgraph.graphed(fn) for fn in functions]
        for _ in range(2):
            for g, wanted in zip(graphed, expected):
                for x, result in zip(given, wanted):
                    assert _near(g(x), result)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_of_each_instance(platform, program):
    """Likewise where results need gradients."""
    torch.manual_seed(0)

    def run(fn, x):
        x = x.clone().requires_grad_()
        wanted = [x, *(p for p in fn.parameters() if p.requires_grad)] if isinstance(fn, nn.Module) else [x]
        result = fn(x)
        return result.detach(), *(
            g if g is not None else x.new_zeros(1)
            for g in torch.autograd.grad(result.sum(), wanted, allow_unused=True)
        )

    functions, given = program(), _inputs(4)
    expected = [[run(fn, x) for x in given] for fn in functions]
    for fn, wanted in zip([gfxgraph.graphed(fn) for fn in functions], expected):
        for x, results in zip(given, wanted):
            assert all(map(_near, run(fn, x), results))


@pytest.mark.parametrize("program", IN_BUCKETS, ids=lambda program: program.__name__)
def test_buckets_of_each_instance(platform, program):
    """Likewise where sizes are rounded up to buckets."""
    torch.manual_seed(0)
    functions = program()
    with torch.no_grad():
        given = [_inputs(1, rows)[0] for rows in (4, 3, 8, 5, 3, 5)]
        for fn in functions:
            name = "input" if isinstance(fn, nn.Sequential) else "x"
            dynamic = {name: {0: "rows"}} if not isinstance(fn, functools.partial) else "infer"
            g = gfxgraph.graphed(fn, dynamic=dynamic, buckets=[4, 8])
            for x in given:
                assert _near(g(x), fn(x))


SCALE = 2.0


class OfGlobals(nn.Module):
    factor = 3.0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return x * self.weight * SCALE * self.factor


def test_a_global_that_changed_between(platform, monkeypatch):
    """What a later instance reads is what is there then: globals, classes' data and code."""
    x = _inputs(1)[0]
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: monkeypatch.setitem(globals(), "SCALE", 7.0),
            lambda: monkeypatch.setattr(OfGlobals, "factor", 11.0),
            lambda: monkeypatch.setattr(OfGlobals, "forward", lambda self, x: x - self.weight),
            lambda: monkeypatch.setattr(nn.Module, "added", 1, raising=False),
        ):
            change()
            for _ in range(2):
                model = _made(OfGlobals)
                g = gfxgraph.graphed(model)
                for _ in range(3):
                    assert _near(g(x), model(x))


def test_weights_of_a_later_instance_are_followed(platform):
    """Its weights are read anew by each replay, those put in their place too, and no other instance's."""
    x = _inputs(1)[0]
    with torch.no_grad():
        models = [_made(Mlp) for _ in range(3)]
        graphed = [gfxgraph.graphed(each) for each in models]
        for g in graphed:
            for _ in range(3):
                g(x)
        models[0].layers[0].weight.mul_(3)
        models[1].layers[0].weight = nn.Parameter(torch.randn(8, 8).cuda())
        models[2].scale = 4.0
        for model, g in zip(models, graphed):
            for _ in range(3):
                assert _near(g(x), model(x))


def _n_traced():
    return torch_names.dynamo_counters["frames"]["total"]


@pytest.mark.parametrize("program", [weights, buffers, dtypes], ids=lambda program: program.__name__)
def test_equal_instances_are_traced_once(platform, program):
    """An instance with equal guards takes the trace of an earlier one, dropped meanwhile or not."""
    x = _inputs(1)[0]
    with torch.no_grad():
        first = [gfxgraph.graphed(each) for each in program()]
        for g in first:
            g(x)
        del first, g
        before = _n_traced()
        for model in program():
            g = gfxgraph.graphed(model)
            for _ in range(3):
                assert _near(g(x), model(x))
            assert g.stats()["captures"] == 1
        assert _n_traced() == before


def test_closures_of_each_request_are_traced_once(platform):
    """A closure made anew, over other tensors, takes the trace of the one before."""
    x = _inputs(1)[0]
    with torch.no_grad():
        for i in range(4):
            before = _n_traced()
            fn = _adding(2, torch.full((8,), float(i), device="cuda"))
            g = gfxgraph.graphed(fn)
            for _ in range(3):
                assert _near(g(x), fn(x))
            assert i == 0 or _n_traced() == before


def test_a_trace_keeps_no_instance_alive(platform):
    """What is kept for later instances holds none of the first one's memory."""
    x = _inputs(1)[0]
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            model = _made(Mlp)
            g = gfxgraph.graphed(model)
            for _ in range(4):
                g(x)
            gone = [weakref.ref(each) for each in (model, *model.parameters())]
            del g, model
            gc.collect()
            assert not any(each() is not None for each in gone)


def test_reset_traces_again(platform):
    """After a reset nothing is taken from elsewhere."""
    x = _inputs(1)[0]
    with torch.no_grad():
        graphed = [gfxgraph.graphed(_made(Mlp)) for _ in range(2)]
        for g in graphed:
            g(x)
        before = _n_traced()
        graphed[1].reset()
        graphed[1](x)
        assert _n_traced() > before
