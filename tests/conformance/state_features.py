"""Kinds of state that a function may read besides its arguments, each with a way to change it.

A feature is a factory: it makes fresh state and returns ``read`` (of a tensor, what the program computes),
``change`` (brings the state to one of three settings, 0 the first) and ``seen`` (what calls leave in the state).
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import os
import random
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

WIDTH = 3
VALUES = (1.0, 2.0, -0.5)
Feature = tuple[Callable[[Any], Any], Callable[[int], Any], Callable[[], Any]]
FEATURES: dict[str, Callable[[], Feature]] = {}


def feature(make: Callable[[], Any]) -> Callable[[], Any]:
    def padded() -> Feature:
        read, change, *seen = make()
        return read, change, seen[0] if seen else lambda: None

    FEATURES[make.__name__] = padded
    return make


def simple(name: str, make: Callable[[], Any], get: Callable[[Any], Any], put: Callable[[Any, float], Any]) -> None:
    """State of one object that is read as one number."""

    def made() -> Any:
        holder = make()
        return lambda x: x * get(holder), lambda i: put(holder, VALUES[i])

    made.__name__ = name
    feature(made)


def constant(value: float) -> torch.Tensor:
    return torch.full((WIDTH,), value, device="cuda")


# -- plain objects and containers -------------------------------------------------------------------


class Plain:
    shared = 1.0

    def __init__(self) -> None:
        self.k = 1.0
        self.deep = {"v": [1.0, 2.0]}

    @property
    def doubled(self) -> float:
        return self.k * 2

    def helper(self, x: Any) -> Any:
        return x * self.k + self.shared

    def __getitem__(self, name: str) -> float:
        return self.k if name == "k" else 0.0


class Slots:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 1.0


class Dynamic:
    """Answers for attributes that it does not have."""

    def __init__(self) -> None:
        self.held = {"k": 1.0}

    def __getattr__(self, name: str) -> Any:
        if name == "held":
            raise AttributeError(name)
        return self.held[name]


class Named(typing.NamedTuple):
    k: float
    other: int = 0


@dataclasses.dataclass
class Data:
    k: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float = 1.0


class Kind(enum.Enum):
    A = 1.0
    B = 2.0
    C = -0.5


class Descriptor:
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return owner.hidden

    def __set__(self, owner: Any, value: Any) -> None:
        owner.hidden = value


class Described:
    k = Descriptor()

    def __init__(self) -> None:
        self.hidden = 1.0


def own(kind: type) -> Any:
    """An object of a class of its own."""
    return type(kind.__name__, (kind,), {"__module__": __name__})()


def put_item(holder: Any, value: float) -> None:
    holder.deep["v"][0] = value


simple("attribute", Plain, lambda h: h.k, lambda h, v: setattr(h, "k", v))
simple("attribute by vars", Plain, lambda h: h.k, lambda h, v: vars(h).update(k=v))
simple("attribute by getattr", Plain, lambda h: getattr(h, "k"), lambda h, v: object.__setattr__(h, "k", v))  # noqa: B009
simple("int attribute", Plain, lambda h: int(h.k * 2) + 1, lambda h, v: setattr(h, "k", v))
simple("nested", Plain, lambda h: h.deep["v"][0], put_item)
simple("nested replaced", Plain, lambda h: h.deep["v"][0], lambda h, v: setattr(h, "deep", {"v": [v]}))
simple("property", Plain, lambda h: h.doubled, lambda h, v: setattr(h, "k", v))
simple("item of an object", Plain, lambda h: h["k"], lambda h, v: setattr(h, "k", v))
simple("slots", Slots, lambda h: h.k, lambda h, v: setattr(h, "k", v))
simple("getattr of a class", Dynamic, lambda h: h.k, lambda h, v: h.held.update(k=v))
simple("descriptor", Described, lambda h: h.k, lambda h, v: setattr(h, "k", v))
simple("dataclass", Data, lambda h: h.k, lambda h, v: setattr(h, "k", v))
simple("namespace", lambda: types.SimpleNamespace(k=1.0), lambda h: h.k, lambda h, v: setattr(h, "k", v))
simple("frozen dataclass", lambda: [Frozen()], lambda h: h[0].k, lambda h, v: h.__setitem__(0, Frozen(v)))
simple("named tuple", lambda: [Named(1.0)], lambda h: h[0].k, lambda h, v: h.__setitem__(0, Named(v)))
simple("enum", lambda: [Kind.A], lambda h: 2.0 if h[0] is Kind.B else 1.5, lambda h, v: h.__setitem__(0, Kind(v)))
simple("enum's value", lambda: [Kind.A], lambda h: h[0].value, lambda h, v: h.__setitem__(0, Kind(v)))
simple("class attribute", lambda: own(Plain), lambda h: h.shared, lambda h, v: setattr(type(h), "shared", v))
simple("numpy number", lambda: [np.float64(1.0)], lambda h: float(h[0]), lambda h, v: h.__setitem__(0, np.float64(v)))
simple("string", lambda: ["1.0"], lambda h: 2.0 if h[0] == "2.0" else 1.5, lambda h, v: h.__setitem__(0, str(v)))
simple(
    "none",
    lambda: [None],
    lambda h: 1.5 if h[0] is None else 3.0,
    lambda h, v: h.__setitem__(0, v if v != 1 else None),
)
simple(
    "type",
    lambda: [1],
    lambda h: 2.0 if isinstance(h[0], int) else 3.0,
    lambda h, v: h.__setitem__(0, v if v < 0 else int(v)),
)
simple("dict", lambda: {"k": 1.0}, lambda h: h["k"], lambda h, v: h.update(k=v))
simple("dict's get", dict, lambda h: h.get("k", 3.0), lambda h, v: h.update(k=v) if v != 1 else h.clear())
simple("dict's length", dict, lambda h: float(len(h)), lambda h, v: h.update({v: v}) if v != 1 else h.clear())
simple(
    "dict's order",
    lambda: {"a": 2.0, "b": 3.0},
    lambda h: next(iter(h.values())),
    lambda h, v: h.update(a=h.pop("a")) if v == 2 else None,
)
simple("ordered dict", lambda: collections.OrderedDict(k=1.0), lambda h: h["k"], lambda h, v: h.update(k=v))
simple("default dict", lambda: collections.defaultdict(float, k=1.0), lambda h: h["k"], lambda h, v: h.update(k=v))
simple("counter", lambda: collections.Counter(k=1), lambda h: h["k"], lambda h, v: h.update(k=1))
simple(
    "chain map", lambda: collections.ChainMap({}, {"k": 1.0}), lambda h: h["k"], lambda h, v: h.maps[1].update(k=v)
)
simple("list", lambda: [1.0, 2.0], lambda h: h[0], lambda h, v: h.__setitem__(0, v))
simple(
    "list's length",
    lambda: [1.0],
    lambda h: float(len(h)),
    lambda h, v: h.append(v) if v > 1 else h.__delitem__(slice(1, None)),
)
simple("list's order", lambda: [1.0, 2.0], lambda h: h[0], lambda h, v: h.reverse())
simple("set", lambda: {1}, lambda h: 2.0 if 7 in h else 3.0, lambda h, v: h.add(7) if v > 1 else h.discard(7))
simple(
    "frozen set",
    lambda: [frozenset({1})],
    lambda h: float(len(h[0])),
    lambda h, v: h.__setitem__(0, frozenset({1, v})),
)
simple("deque", lambda: collections.deque([1.0], 2), lambda h: h[0], lambda h, v: h.appendleft(v))
simple(
    "range", lambda: [range(2)], lambda h: sum(h[0]) + 1.0, lambda h, v: h.__setitem__(0, range(2, 3 + int(abs(v))))
)
simple(
    "environment",
    lambda: None,
    lambda h: float(os.environ.get("GFX_STATE", "1")),
    lambda h, v: os.environ.__setitem__("GFX_STATE", str(v)),
)  # noqa: TID251


@feature
def context_variable() -> Any:
    held: contextvars.ContextVar[float] = contextvars.ContextVar("held", default=1.0)
    return lambda x: x * held.get(), lambda i: held.set(VALUES[i])


@feature
def thread_local() -> Any:
    held = threading.local()
    held.k = 1.0
    return lambda x: x * held.k, lambda i: setattr(held, "k", VALUES[i])


@feature
def weak_reference() -> Any:
    objects = [Plain(), Plain()]
    objects[1].k = 2.0
    refs = [weakref.ref(objects[0])]
    return lambda x: x * refs[0]().k, lambda i: refs.__setitem__(0, weakref.ref(objects[i % 2]))


@feature
def attribute_deleted() -> Any:
    holder = own(Plain)

    def change(i: int) -> None:
        if i:
            holder.shared = VALUES[i]
        else:
            vars(holder).pop("shared", None)

    return lambda x: x + holder.shared, change


@feature
def has_attribute() -> Any:
    holder = Plain()

    def change(i: int) -> None:
        if i:
            holder.extra = VALUES[i]
        else:
            vars(holder).pop("extra", None)

    return lambda x: x * holder.extra if hasattr(holder, "extra") else x + 1, change


@feature
def base_class() -> Any:
    base = type("Base", (), {"__module__": __name__, "gain": 1.0})
    holder = type("Derived", (base,), {"__module__": __name__})()
    return lambda x: x * holder.gain, lambda i: setattr(base, "gain", VALUES[i])


@feature
def class_of_object() -> Any:
    kinds = [type("One", (Plain,), {"shared": value, "__module__": __name__}) for value in VALUES]
    holder = kinds[0]()
    return lambda x: holder.helper(x), lambda i: setattr(holder, "__class__", kinds[i])


# -- functions ------------------------------------------------------------------------------------------


@feature
def closure() -> Any:
    k = 1.0

    def change(i: int) -> None:
        nonlocal k
        k = VALUES[i]

    return lambda x: x * k, change


@feature
def defaults() -> Any:
    def read(x: Any, k: float = 1.0, *, more: float = 0.0) -> Any:
        return x * k + more

    def change(i: int) -> None:
        if i == 2:
            read.__kwdefaults__ = {"more": 3.0}
        else:
            read.__defaults__ = (VALUES[i],)

    return lambda x: read(x), change


@feature
def code() -> Any:
    def read(x: Any) -> Any:
        return x * 2

    bodies = [read.__code__, (lambda x: x * 3).__code__, (lambda x: x + 1).__code__]
    return lambda x: read(x), lambda i: setattr(read, "__code__", bodies[i])


@feature
def partial() -> Any:
    held = [functools.partial(torch.mul, other=1.0)]
    return lambda x: held[0](x), lambda i: held.__setitem__(0, functools.partial(torch.mul, other=VALUES[i]))


@feature
def kept_by_lru_cache() -> Any:
    k = 1.0

    @functools.lru_cache
    def gain() -> float:
        return k

    def change(i: int) -> None:
        nonlocal k
        k = VALUES[i]
        if i == 2:
            gain.cache_clear()

    return lambda x: x * gain(), change


@feature
def kept_by_lru_cache_of_method() -> Any:
    class Scaled:
        def __init__(self) -> None:
            self.k = 1.0

        @functools.lru_cache  # noqa: B019  as programs have it
        def gain(self, n: int) -> float:
            return self.k * n

    held = Scaled()
    return lambda x: x * held.gain(2), lambda i: setattr(held, "k", VALUES[i])


@feature
def workspace_kept_by_lru_cache() -> Any:
    @functools.lru_cache
    def workspace(n: int) -> torch.Tensor:
        return torch.zeros(n, device="cuda")

    def read(x: Any) -> Any:
        return x + workspace(WIDTH).add_(1.0)

    return read, lambda i: workspace.cache_clear() if i == 2 else None, lambda: workspace(WIDTH).clone()


@feature
def table_of_functions() -> Any:
    table = {"f": lambda x: x * 2}
    others = [table["f"], lambda x: x + 1, torch.abs]
    return lambda x: table["f"](x), lambda i: table.update(f=others[i])


@feature
def callable_object() -> Any:
    class Gain:
        def __init__(self) -> None:
            self.k = 1.0

        def __call__(self, x: Any) -> Any:
            return x * self.k

    gain = Gain()
    return lambda x: gain(x), lambda i: setattr(gain, "k", VALUES[i])


@feature
def method_of_class() -> Any:
    holder = own(Plain)
    bodies = [Plain.helper, lambda self, x: x * self.k + 5, lambda self, x: x - self.k]
    return lambda x: holder.helper(x), lambda i: setattr(type(holder), "helper", bodies[i])


@feature
def method_of_object() -> Any:
    holder: Any = own(Plain)

    def change(i: int) -> None:
        if i:
            holder.helper = lambda x: x * VALUES[i]
        else:
            vars(holder).pop("helper", None)

    return lambda x: holder.helper(x), change


@feature
def static_and_class_methods() -> Any:
    class Methods:
        k = 1.0

        @staticmethod
        def static(x: Any) -> Any:
            return x * 2

        @classmethod
        def of_class(cls, x: Any) -> Any:
            return x * cls.k

    def change(i: int) -> None:
        Methods.k = VALUES[i]
        if i == 2:
            Methods.static = staticmethod(lambda x: x * 3)  # type: ignore[method-assign,assignment]

    return lambda x: Methods.of_class(Methods.static(x)), change


SOURCE = """
import torch
gain, table, factor = 1.0, {"k": 1.0}, None
def inner(x):
    return x * gain
def helper(x):
    return inner(x) * table["k"] + factor
"""


@feature
def helper_module() -> Any:
    module: Any = types.ModuleType("state_helper")
    exec(SOURCE, vars(module))
    module.factor = constant(1.0)

    def change(i: int) -> None:
        if i == 2:
            module.inner = lambda x: x * 4
        else:
            module.gain = VALUES[i]

    return lambda x: module.helper(x), change


@feature
def helper_modules_table() -> Any:
    module: Any = types.ModuleType("state_helper")
    exec(SOURCE, vars(module))
    module.factor = constant(1.0)

    def change(i: int) -> None:
        if i == 2:
            module.table = {"k": 3.0}
        elif i == 1:
            module.factor = constant(2.0)
        else:
            module.table["k"] = 0.5

    return lambda x: module.helper(x), change


# -- tensors ----------------------------------------------------------------------------------------------


def _put_tensor(holder: Any, i: int) -> None:
    if i == 0:
        holder.t.fill_(1.0)
    elif i == 1:
        holder.t = constant(2.0)
    else:
        holder.t.data = constant(3.0)


@feature
def tensor_of_object() -> Any:
    holder = types.SimpleNamespace(t=constant(1.0))
    return lambda x: x * holder.t, lambda i: _put_tensor(holder, i)


@feature
def tensors_shape() -> Any:
    holder = types.SimpleNamespace(t=constant(1.0))
    others = [constant(1.0), torch.ones(1, device="cuda"), torch.ones(WIDTH, device="cuda", dtype=torch.float64)]
    return lambda x: x * holder.t, lambda i: setattr(holder, "t", others[i])


@feature
def host_tensor() -> Any:
    held = [torch.tensor(1.0)]

    def change(i: int) -> None:
        if i == 2:
            held[0].fill_(3.0)
        else:
            held[0] = torch.tensor(VALUES[i])

    return lambda x: x * held[0], change


@feature
def list_of_tensors() -> Any:
    held = [constant(1.0), constant(2.0)]

    def change(i: int) -> None:
        if i == 0:
            held.reverse()
        elif i == 1:
            held.append(constant(3.0))
        else:
            held[0] = constant(-1.0)

    return lambda x: sum((x * t for t in held), x), change


@feature
def numpy_array() -> Any:
    held = np.ones(WIDTH, np.float32)
    return lambda x: x * torch.from_numpy(held).cuda(), lambda i: held.__setitem__(0, VALUES[i])


@feature
def tensor_written() -> Any:
    state = constant(0.0)

    def read(x: Any) -> Any:
        state.add_(x.detach().sum(0))
        return x + state

    return read, lambda i: state.fill_(VALUES[i]), lambda: state.clone()


@feature
def tensor_replaced() -> Any:
    holder: Any = Plain()
    holder.t = constant(0.0)

    def read(x: Any) -> Any:
        holder.t = holder.t * 0.5 + x.detach().sum(0)
        return x + holder.t

    return read, lambda i: setattr(holder, "t", constant(VALUES[i])), lambda: holder.t.clone()


# -- modules ------------------------------------------------------------------------------------------------


def linear() -> nn.Linear:
    made = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        made.weight.copy_(torch.arange(9.0).view(WIDTH, WIDTH) / 9)
        made.bias.fill_(0.5)
    return made.to("cuda").requires_grad_(False)


@feature
def parameter() -> Any:
    net = linear()

    def change(i: int) -> None:
        if i == 0:
            net.weight.copy_(torch.eye(WIDTH))
        elif i == 1:
            net.weight = nn.Parameter(torch.eye(WIDTH, device="cuda") * 2, requires_grad=False)
        else:
            net.weight.data = torch.eye(WIDTH, device="cuda") * 3

    return lambda x: net(x), change


@feature
def bias() -> Any:
    net = linear()
    biases = [net.bias, None, nn.Parameter(constant(2.0), requires_grad=False)]
    return lambda x: net(x), lambda i: setattr(net, "bias", biases[i])


@feature
def buffer() -> Any:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", constant(1.0))
            self.k = 1.0

        def forward(self, x: Any) -> Any:
            return x if self.b is None else x * self.b * self.k

    net = Buffered()
    buffers = [constant(1.0), None, constant(3.0)]

    def change(i: int) -> None:
        net.b = buffers[i]
        net.k = VALUES[i]

    return lambda x: net(x), change


@feature
def loaded_state() -> Any:
    net = linear()
    first = {name: t.clone() for name, t in net.state_dict().items()}

    def change(i: int) -> None:
        net.load_state_dict({name: t * VALUES[i] for name, t in first.items()}, assign=i == 2)

    return lambda x: net(x), change


@feature
def layer() -> Any:
    net = nn.Sequential(nn.LeakyReLU(0.1), nn.LeakyReLU(0.1))
    others = [nn.LeakyReLU(0.1), nn.Tanh(), linear()]
    return lambda x: net(x), lambda i: net.__setitem__(0, others[i])


@feature
def layers_setting() -> Any:
    net = nn.LeakyReLU(0.1)
    return lambda x: net(x), lambda i: setattr(net, "negative_slope", abs(VALUES[i]) / 10)


@feature
def layers() -> Any:
    net = nn.ModuleList([nn.Tanh()])

    def read(x: Any) -> Any:
        for each in net:
            x = each(x)
        return x

    def change(i: int) -> None:
        if i and len(net) < 4:
            net.append(nn.LeakyReLU(VALUES[i]))
        else:
            del net[1:]

    return read, change


@feature
def module_dict() -> Any:
    net = nn.ModuleDict({"a": nn.Tanh()})
    others = [nn.Tanh(), nn.LeakyReLU(0.5), linear()]
    return lambda x: net["a"](x), lambda i: net.update({"a": others[i]})


@feature
def forward_hook() -> Any:
    net, handles = nn.Tanh(), []

    def change(i: int) -> None:
        if i:
            handles.append(net.register_forward_hook(lambda module, args, out: out * VALUES[i]))
        while handles and not i:
            handles.pop().remove()

    return lambda x: net(x), change


@feature
def pre_hook() -> Any:
    net, handles = nn.Sequential(nn.Tanh()), []

    def change(i: int) -> None:
        if i:
            handles.append(net[0].register_forward_pre_hook(lambda module, args: (args[0] * VALUES[i],)))
        while handles and not i:
            handles.pop().remove()

    return lambda x: net(x), change


@feature
def hooks_state() -> Any:
    net, held = nn.Tanh(), types.SimpleNamespace(k=1.0)
    net.register_forward_hook(lambda module, args, out: out * held.k)
    return lambda x: net(x), lambda i: setattr(held, "k", VALUES[i])


@feature
def global_hook() -> Any:
    net, handles = nn.Tanh(), []

    def change(i: int) -> None:
        while handles:
            handles.pop().remove()
        if i:
            hook = lambda module, args, out: out * VALUES[i]  # noqa: E731
            handles.append(nn.modules.module.register_module_forward_hook(hook))

    return lambda x: net(x), change


@feature
def forward_patched() -> Any:
    net: Any = nn.Sequential(nn.Tanh())

    def change(i: int) -> None:
        if i:
            net[0].forward = lambda x: x * VALUES[i]
        else:
            vars(net[0]).pop("forward", None)

    return lambda x: net(x), change


@feature
def forward_of_class() -> Any:
    kind: Any = type("Act", (nn.Tanh,), {"__module__": __name__})
    net = nn.Sequential(kind())
    bodies = [nn.Tanh.forward, lambda self, x: x * 2, lambda self, x: x + 1]
    return lambda x: net(x), lambda i: setattr(kind, "forward", bodies[i])


@feature
def training() -> Any:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if self.training else x * 3

    net = nn.Sequential(Net())
    return lambda x: net(x), lambda i: net.train(i != 1)


@feature
def batch_norm() -> Any:
    net = nn.BatchNorm1d(WIDTH).to("cuda").requires_grad_(False)
    net.eval()
    return lambda x: net(x), lambda i: net.train(i == 1), lambda: [t.clone() for t in net.buffers()]


# -- what calls leave behind -----------------------------------------------------------------------------------


@feature
def counted() -> Any:
    holder: Any = Plain()
    holder.n = 0

    def read(x: Any) -> Any:
        holder.n += 1
        return x + holder.n

    return read, lambda i: setattr(holder, "n", i), lambda: holder.n


@feature
def counted_in_module() -> Any:
    class Net(nn.Module):
        n = 0

        def forward(self, x: Any) -> Any:
            self.n = self.n + 1
            return x * 2

    net = Net()
    return lambda x: net(x), lambda i: setattr(net, "n", i), lambda: net.n


@feature
def appended() -> Any:
    seen: list[float] = []

    def read(x: Any) -> Any:
        seen.append(float(len(seen)))
        return x * 2

    return read, lambda i: seen.clear(), lambda: list(seen)


@feature
def stored() -> Any:
    holder: Any = Plain()
    holder.last = 0.0

    def read(x: Any) -> Any:
        holder.last = 7.0
        return x * holder.k

    def change(i: int) -> None:
        holder.last, holder.k = 0.0, VALUES[i]

    return read, change, lambda: holder.last


@feature
def stored_in_dict() -> Any:
    cache: dict[str, Any] = {}

    def read(x: Any) -> Any:
        if "k" not in cache:
            cache["k"] = 2.0
        return x * cache["k"]

    return read, lambda i: cache.update(k=VALUES[i]) if i else cache.clear(), lambda: dict(cache)


@feature
def iterated() -> Any:
    held = [iter(range(1, 100))]
    return lambda x: x * next(held[0]), lambda i: held.__setitem__(0, iter(range(1, 100)))


# -- random numbers ---------------------------------------------------------------------------------------------


@feature
def host_random() -> Any:
    held = [0]

    def read(x: Any) -> Any:
        if held[0] == 0:
            return x * random.random()  # noqa: S311
        return x * float(np.random.rand()) if held[0] == 1 else x * torch.rand(()).item()  # noqa: NPY002

    return read, lambda i: held.__setitem__(0, i)


@feature
def device_random() -> Any:
    held = [0]

    def read(x: Any) -> Any:
        if held[0] == 0:
            return x + torch.rand_like(x)
        return nn.functional.dropout(x, 0.5) if held[0] == 1 else x

    return read, lambda i: held.__setitem__(0, i)


# -- settings of torch ------------------------------------------------------------------------------------------


@feature
def default_dtype() -> Any:
    kinds = (torch.float32, torch.float64, torch.float32)
    return lambda x: x + torch.ones(WIDTH, device="cuda"), lambda i: torch.set_default_dtype(kinds[i])


@feature
def deterministic() -> Any:
    def read(x: Any) -> Any:
        return x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3

    return read, lambda i: torch.use_deterministic_algorithms(i == 1, warn_only=True)


@feature
def matmul_precision() -> Any:
    names = ("highest", "high", "highest")
    weight = torch.eye(WIDTH, device="cuda") * 2
    read = lambda x: x @ weight if torch.get_float32_matmul_precision() == "high" else x * 3  # noqa: E731
    return read, lambda i: torch.set_float32_matmul_precision(names[i])


@feature
def flags_of_backends() -> Any:
    read = lambda x: x * 2 if torch.backends.cudnn.benchmark else x * 3  # noqa: E731
    return read, lambda i: setattr(torch.backends.cudnn, "benchmark", i == 1)
