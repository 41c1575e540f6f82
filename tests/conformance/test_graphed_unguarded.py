"""What Dynamo reads and does not guard, or hands on without looking inside: the answers are eager's all the same."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import functools
import math
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gfxgraph

pytestmark = pytest.mark.any_platform

STATE = {"k": 2.0}


def X() -> torch.Tensor:
    return torch.arange(8.0, device="cuda").view(2, 4)


@torch.library.custom_op("gfxgraph_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * STATE["k"]


@scaled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("gfxgraph_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, 2)


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class _Meta(type):
    k = 2.0


class _One:
    def scale(self, x: Any) -> Any:
        return x * 2


class _Two:
    def scale(self, x: Any) -> Any:
        return x * 3


def _missing_key() -> tuple[Callable[..., Any], Callable[[], Any]]:
    table: dict[str, float] = {}

    def f(x: Any) -> Any:
        try:
            return x * table["k"]
        except KeyError:
            return x + 1

    return f, lambda: table.update(k=5.0)


def _metaclass() -> tuple[Callable[..., Any], Callable[[], Any]]:
    meta = type("Meta", (_Meta,), {})
    kind: Any = meta("Kind", (), {})
    return lambda x: x * kind.k, lambda: setattr(meta, "k", 5.0)


def _bases() -> tuple[Callable[..., Any], Callable[[], Any]]:
    kind: Any = type("Kind", (type("Base", (_One,), {}),), {})
    held = kind()
    return lambda x: held.scale(x), lambda: setattr(kind, "__bases__", (type("Base", (_Two,), {}),))


def _registered() -> tuple[Callable[..., Any], Callable[[], Any]]:
    kind: Any = abc.ABCMeta("Abstract", (), {})
    held = _One()
    return lambda x: x * 2 if isinstance(held, kind) else x * 3, lambda: kind.register(_One)


def _view_of_dict() -> tuple[Callable[..., Any], Callable[[], Any]]:
    table = {"k": 2.0}
    view = types.MappingProxyType(table)
    return lambda x: x * view["k"], lambda: table.update(k=5.0)


def _custom_operation() -> tuple[Callable[..., Any], Callable[[], Any]]:
    STATE["k"] = 2.0
    return lambda x: torch.ops.gfxgraph_tests.scaled(x), lambda: STATE.update(k=5.0)


def _allowed_in_graph() -> tuple[Callable[..., Any], Callable[[], Any]]:
    state = types.SimpleNamespace(k=2.0)

    @torch.compiler.allow_in_graph
    def helper(x: Any) -> Any:
        return x * state.k

    return lambda x: helper(x) + 1, lambda: setattr(state, "k", 5.0)


def _nonstrict() -> tuple[Callable[..., Any], Callable[[], Any]]:
    state = types.SimpleNamespace(k=2.0)
    helper = torch._dynamo.nonstrict_trace(lambda x: x * state.k)
    return lambda x: helper(x) + 1, lambda: setattr(state, "k", 5.0)


def _missing_key_of_a_chain() -> tuple[Callable[..., Any], Callable[[], Any]]:
    over: dict[str, float] = {}
    table = collections.ChainMap(over, {"k": 2.0})  # catches the error in the standard library
    return lambda x: x * table["k"], lambda: over.update(k=5.0)


def _missing_key_suppressed() -> tuple[Callable[..., Any], Callable[[], Any]]:
    table: dict[str, float] = {}

    def f(x: Any) -> Any:
        with contextlib.suppress(KeyError):
            x = x + 1
            x = x * table["k"]
        return x

    return f, lambda: table.update(k=5.0)


def _order() -> tuple[Callable[..., Any], Callable[[], Any]]:
    table = collections.OrderedDict(a=2.0, b=5.0)
    return lambda x: x * next(iter(table.values())), lambda: table.move_to_end("a")


def _number_of_attributes() -> tuple[Callable[..., Any], Callable[[], Any]]:
    held = types.SimpleNamespace(a=1)
    return lambda x: x * len(vars(held)), lambda: setattr(held, "b", 1)


class _Stored:
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return owner.__dict__.get("_k", 2.0)

    def __set__(self, owner: Any, value: float) -> None:
        owner.__dict__["_k"] = value


class _Storing:
    k = _Stored()


def _descriptor() -> tuple[Callable[..., Any], Callable[[], Any]]:
    held = _Storing()
    return lambda x: x * held.k, lambda: setattr(held, "k", 5.0)


def _attribute_missed() -> tuple[Callable[..., Any], Callable[[], Any]]:
    held = types.SimpleNamespace()

    def f(x: Any) -> Any:
        try:
            return x * held.k
        except AttributeError:
            return x

    return f, lambda: setattr(held, "k", 5.0)


def _attribute_of_a_class_missed() -> tuple[Callable[..., Any], Callable[[], Any]]:
    kind: Any = type("Kind", (), {})

    def f(x: Any) -> Any:
        try:
            return x * kind.k
        except AttributeError:
            return x

    return f, lambda: setattr(kind, "k", 5.0)


def _default_for_a_base() -> tuple[Callable[..., Any], Callable[[], Any]]:
    base = type("Base", (), {})
    held: Any = type("Kind", (base,), {})()
    return lambda x: x * getattr(held, "k", 2.0), lambda: setattr(base, "k", 5.0)


class _Behind:
    def __init__(self, other: Any) -> None:
        self.other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.other, name)


def _found_by_getattr() -> tuple[Callable[..., Any], Callable[[], Any]]:
    held: Any = _Behind(types.SimpleNamespace(k=2.0))
    return lambda x: x * held.k, lambda: setattr(held, "k", 5.0)


def _classmethod_of_a_base() -> tuple[Callable[..., Any], Callable[[], Any]]:
    base: Any = type("Base", (), {"scale": classmethod(lambda cls, x: x * 2)})
    kind: Any = type("Kind", (base,), {})
    return lambda x: kind.scale(x), lambda: setattr(base, "scale", classmethod(lambda cls, x: x * 5))


def _sign_of_zero() -> tuple[Callable[..., Any], Callable[[], Any]]:
    held = types.SimpleNamespace(k=0.0)
    return lambda x: 1 / (x * 0 + held.k), lambda: setattr(held, "k", -0.0)


class _Keeping:
    k = 2.0

    @functools.lru_cache  # noqa: B019
    def scale(this) -> float:  # noqa: N805  not by the name of it
        return this.k


def _kept_by_a_method() -> tuple[Callable[..., Any], Callable[[], Any]]:
    held = _Keeping()
    return lambda x: x * held.scale(), lambda: setattr(held, "k", 5.0)


CHANGES = [
    _missing_key, _metaclass, _bases, _registered, _view_of_dict, _custom_operation, _allowed_in_graph, _nonstrict,
    _missing_key_of_a_chain, _missing_key_suppressed, _order, _number_of_attributes, _descriptor,
    _attribute_missed, _attribute_of_a_class_missed, _default_for_a_base, _found_by_getattr, _classmethod_of_a_base,
    _sign_of_zero, _kept_by_a_method,
]  # fmt: skip


@pytest.mark.parametrize("make", CHANGES)
def test_a_change_that_no_guard_sees(platform, make):
    f, change = make()
    g, x = gfxgraph.graphed(f), X()
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(g(x), f(x))
        change()
        for _ in range(3):
            assert torch.equal(g(x), f(x)), g.explain()


def test_a_method_that_a_program_gives_to_tensors(platform, monkeypatch):
    g, x = gfxgraph.graphed(lambda x: x.relu() + 1), X()
    for factor in (1, 3):
        for _ in range(3):
            assert torch.equal(g(x), x * factor + 1)
        monkeypatch.setattr(torch.Tensor, "relu", lambda self: self * 3)


def _suppressing(x: Any, table: dict[str, float]) -> Any:
    with contextlib.suppress(KeyError):
        x = x + 1
        x = x * table["k"]
    return x


def _dividing(x: Any, by: int) -> Any:
    try:
        return x * (1 / by)
    except ZeroDivisionError:
        return x + 1


@dataclasses.dataclass
class _Held:
    x: Any


def _held(k: float | None = None) -> _Held:
    held = _Held(3.0)
    if k is not None:
        held.k = k  # type: ignore[attr-defined]
    return held


def _caught(x: Any, held: Any) -> Any:
    try:
        return x * held.k
    except AttributeError:
        return x


def _root(x: Any, number: float) -> Any:
    try:
        return x * math.sqrt(number)
    except ValueError:
        return x


def _with_default(x: Any, held: Any) -> Any:
    return x * getattr(held, "k", 2.0)


def _one_by_one(x: Any, table: Any) -> Any:
    return sum((x + i) * v for i, v in enumerate(table.values()))


def _ordered(*keys: str) -> collections.OrderedDict[str, float]:
    table = collections.OrderedDict(a=2.0, b=5.0)
    for key in keys:
        table.move_to_end(key)
    return table


@pytest.mark.parametrize(
    ("f", "calls"),
    [
        (_suppressing, [((table,), {}) for table in ({"k": 2.0}, {}, {"k": 3.0}, {}, {"k": 2.0})]),
        (_caught, [((_held(),), {}), ((_held(3.0),), {}), ((_held(),), {})]),
        (_with_default, [((_held(),), {}), ((_held(3.0),), {}), ((_held(),), {})]),
        (_one_by_one, [((_ordered(),), {}), ((_ordered("a"),), {})]),
        (_root, [((number,), {}) for number in (1.0, 2.0, 3.0, -1.0, 2.0)]),
        (lambda x, y: x * (2 if y._base is None else 3), [((torch.ones(2),), {}), ((torch.ones(2, 2)[0],), {})]),
        (_dividing, [((by,), {}) for by in (1, 2, 3, 0, 2, 0)]),
        (lambda x, **more: sum((x + i) * v for i, v in enumerate(more.values())), [((), {"a": 2, "b": 3}), ((), {"b": 3, "a": 2})] * 2),
    ],
    ids=["missing key", "missing attribute", "default", "its own order", "a root", "a view", "division by zero", "order"],
)  # fmt: skip
def test_what_no_guard_sees_of_an_argument(platform, f, calls):
    g, x = gfxgraph.graphed(f), X()
    with torch.no_grad():
        for args, kwargs in calls * 2:
            assert torch.equal(g(x, *args, **kwargs), f(x, *args, **kwargs)), g.explain()


def test_a_custom_operation_that_reads_its_arguments_is_graphed(platform):
    g, x = gfxgraph.graphed(lambda x: torch.ops.gfxgraph_tests.doubled(x) + 1), X()
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(g(x), x * 2 + 1)
    assert g.stats()["replays"] == 2, g.explain()


def _draws() -> Iterator[Callable[..., Any]]:
    yield lambda x: x + torch.from_numpy(np.random.randn(4).astype("f4")).cuda()  # noqa: NPY002
    own = random.Random(5)  # noqa: S311
    yield lambda x: x * own.random()


@pytest.mark.parametrize("at", range(2))
def test_random_numbers_of_the_host_are_those_of_eager(platform, at):
    """NumPy's come from NumPy, and those of an object of one's own from that object."""
    got, want = [], []
    for found, wrap in ((got, gfxgraph.graphed), (want, lambda f: f)):
        f = wrap(list(_draws())[at])
        np.random.seed(3)  # noqa: NPY002
        with torch.no_grad():
            found += [f(X()) for _ in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(got, want))


class _Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.relu else found


class _Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_every_operation(platform):
    """Where a mode must see each operation there are no replays, and where none is there are."""
    f = lambda x: torch.relu(x) + 1  # noqa: E731
    g, x, seeing = gfxgraph.graphed(f), X(), _Seeing()
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(g(x), f(x))
        before = g.stats()["replays"]
        with _Doubling():
            assert torch.equal(g(x), f(x))
        with seeing:
            g(x)
        assert g.stats()["replays"] == before and "aten.relu.default" in seeing.seen
        assert torch.equal(g(x), f(x))
        assert g.stats()["replays"] == before + 1
        bare = gfxgraph.graphed(lambda: torch.relu(x))
        assert all(torch.equal(bare(), x) for _ in range(3))
        seeing.seen.clear()
        with seeing:
            bare()
    assert "aten.relu.default" in seeing.seen
    assert "_Seeing, a mode of torch's, must see each operation" in g.explain()


def test_forward_mode_ad_gives_tangents(platform):
    """A call under a dual level runs eagerly, of a function, a branch and a loop alike."""
    f = lambda x: (x * x).sin()  # noqa: E731
    calls = [
        gfxgraph.graphed(f),
        functools.partial(gfxgraph.Conditional({"only": f}), "only"),
        lambda x: made(x)[0],
    ]
    made = gfxgraph.WhileLoop(lambda x: x.sum() > 1e9, lambda x: x + 1, max_steps=2)
    for call in calls:
        for _ in range(3):
            with torch.no_grad():
                call(X())
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(X(), torch.ones_like(X()))
                assert forward_ad.unpack_dual(call(dual)).tangent is not None
    assert calls[0].stats()["eager"]["forward-mode AD must see each operation"] == 3


def test_a_default_device_has_replays_of_its_own(platform):
    g, x = gfxgraph.graphed(lambda x: x + torch.ones(4).to(x.device)), X()
    with torch.no_grad():
        for device in (None, "cuda", None, "cuda"):
            torch.set_default_device(device)
            try:
                for _ in range(3):
                    assert torch.equal(g(x), x + 1)
            finally:
                torch.set_default_device(None)
    assert g.stats()["replays"] == 10, g.explain()


@pytest.mark.parametrize("mode", ["standard", "hot"])
def test_results_that_share_memory_do_so_in_every_mode(platform, mode):
    """A row and a transposed view of a result are parts of it, and one result given twice is one tensor."""

    def f(x: Any) -> Any:
        y = x * 2
        return y, y[0], y.t(), y, y.shape

    g, x, kept = gfxgraph.graphed(f, mode=mode), X(), []
    with torch.no_grad():
        for _ in range(5):
            found = g(x)
            kept.append(found)
            assert found[0] is found[3] and type(found[4]) is torch.Size
            found[0].add_(1)
            assert torch.equal(found[1], x[0] * 2 + 1) and torch.equal(found[2], (x * 2 + 1).t())
    assert all(torch.equal(each[0], x * 2 + 1) for each in kept) and g.stats()["replays"] >= 3


def test_memory_read_from_where_it_begins(platform):
    """``as_strided`` counts from the beginning of the memory, which a copy of an argument does not have."""
    f = lambda x: torch.as_strided(x, (2,), (1,), 0) * 1  # noqa: E731
    g, x = gfxgraph.graphed(f), X()
    with torch.no_grad():
        for i in (0, 1, 0, 1):
            assert torch.equal(g(x[i : i + 1]), f(x[i : i + 1]))


def test_a_thread_that_draws_on_the_host_is_not_the_function(platform):
    g, x, done = gfxgraph.graphed(lambda x: (x * 2).relu()), X(), threading.Event()

    def draw() -> None:
        while not done.is_set():
            torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(g(x), x * 2)
    finally:
        done.set()
        thread.join()
    assert g.stats()["replays"] == 2, g.explain()


def test_a_hook_for_all_modules_is_noticed(platform):
    """It stands in no module; one that is registered between calls runs, and is gone again."""
    layer = torch.nn.Linear(4, 4).cuda()
    graphed, x = gfxgraph.graphed(layer), torch.ones(2, 4, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(graphed(x), layer(x))
        handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 2)
        try:
            assert torch.equal(graphed(x), layer(x))
        finally:
            handle.remove()
        assert torch.equal(graphed(x), layer(x))
