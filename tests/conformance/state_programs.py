"""Random sequences of calls with state changed at random between them, beside eager.

    python -m tests.conformance.state_programs FIRST LAST     on whatever device torch has

Two equal worlds are built from one seed: one is called through ``gfxgraph.graphed``, one eagerly. Between calls the
same random change is made to both: attributes, containers, hooks, modules, parameters, classes, globals, closures,
settings. Every answer, and the state that the calls leave, must be eager's.
"""

from __future__ import annotations

import random
import sys
import types

import torch
from torch import nn

import gfxgraph

ROWS = (2, 3)
WIDTH = 4


class Inner(nn.Module):
    """A layer with state of every kind that a model's layer has."""

    gain = 1.0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("offset", torch.zeros(WIDTH))
        self.act = nn.LeakyReLU(0.1)
        self.scale = 1.0
        self.extra = None

    def helper(self, x):
        return x * self.gain

    def forward(self, x):
        x = self.helper(self.act(self.linear(x)) * self.scale + self.offset)
        return x if self.extra is None else self.extra(x)


class Net(nn.Module):
    """A model whose forward reads configuration of every shape, and keeps some state of its own."""

    def __init__(self, keeps: str):
        super().__init__()
        self.layers = nn.ModuleList(Inner() for _ in range(2))
        self.cfg = types.SimpleNamespace(k=1.0, deep={"v": [1.0, 2.0]})
        self.names = {"a": 1.0}
        self.factors = [1.0]
        self.flag = True
        self.keeps = keeps
        self.n_calls = 0
        self.seen = []
        self.state = torch.zeros(WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = x * self.cfg.k * self.cfg.deep["v"][0] * self.names["a"]
        for factor in self.factors:
            x = x * factor
        if self.keeps == "count":
            self.n_calls += 1
        elif self.keeps == "list":
            self.seen.append(float(len(self.seen)))
        elif self.keeps == "tensor":
            self.state = self.state * 0.5 + x.detach().sum(0)
            x = x + self.state
        return x if self.flag else -x


class World:
    """A net with what stands around it: a closure, a global, a plain object, a class of its own."""

    def __init__(self, seed: int, keeps: str, kind: str) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        made = type("Made", (Net,), {"__module__": __name__})
        self.inner_class = type("MadeInner", (Inner,), {"__module__": __name__})
        self.net = made(keeps).to("cuda").requires_grad_(False)
        self.net.state = self.net.state.to("cuda")
        for layer in self.net.layers:
            layer.__class__ = self.inner_class
        self.holder = types.SimpleNamespace(weight=torch.ones(WIDTH, device="cuda"), bias=0.0)
        self.handles: list = []
        closure, holder, net = [1.0], self.holder, self.net

        def around(x, shift=0.0):
            return net(x) * closure[0] * holder.weight + holder.bias + shift

        self.closure = closure
        self.around = around
        self.fn = {"module": self.net, "closure": around, "method": self.net.forward}[kind]


def _hook(module, args, out):
    return out * 2


def _pre_hook(module, args):
    return (args[0] + 1,)


def _change(world: World, which: str, rng: random.Random) -> None:
    """One change, drawn from ``rng``, which both worlds' copies of draw alike."""
    net, layer = world.net, world.net.layers[rng.randrange(len(world.net.layers))]
    value = float(rng.choice((0.5, 1.0, 2.0, 3.0)))
    torch.manual_seed(rng.randrange(1 << 20))
    fresh = torch.randn(WIDTH, WIDTH)
    if which == "attribute":
        layer.scale = value
    elif which == "namespace":
        net.cfg.k = value
    elif which == "nested":
        net.cfg.deep["v"][0] = value
    elif which == "dict":
        net.names["a"] = value
    elif which == "list grows":
        net.factors.append(value)
    elif which == "flag":
        net.flag = not net.flag
    elif which == "hook":
        world.handles.append(layer.register_forward_hook(_hook))
    elif which == "pre-hook":
        world.handles.append(layer.linear.register_forward_pre_hook(_pre_hook))
    elif which == "unhook" and world.handles:
        world.handles.pop().remove()
    elif which == "weight replaced":
        layer.linear.weight = nn.Parameter(fresh.to("cuda"), requires_grad=False)
    elif which == "weight data":
        layer.linear.weight.data = fresh.to("cuda")
    elif which == "weight in place":
        layer.linear.weight.copy_(fresh)
    elif which == "buffer":
        layer.offset = fresh[0].to("cuda")
    elif which == "no bias":
        layer.linear.bias = None
    elif which == "layer":
        layer.act = nn.Tanh() if rng.random() < 0.5 else nn.LeakyReLU(value)
    elif which == "slope":
        layer.act = nn.LeakyReLU(0.1)
        layer.act.negative_slope = value
    elif which == "extra":
        layer.extra = nn.Linear(WIDTH, WIDTH).to("cuda").requires_grad_(False)
    elif which == "forward patched":
        layer.act.forward = lambda x: x * value
    elif which == "class attribute":
        world.inner_class.gain = value
    elif which == "class method":
        world.inner_class.helper = lambda self, x: x * self.gain + value
    elif which == "closure":
        world.closure[0] = value
    elif which == "object":
        world.holder.bias = value
    elif which == "object's tensor":
        world.holder.weight = fresh[0].to("cuda")
    elif which == "append":
        added = world.inner_class().to("cuda").requires_grad_(False)
        net.layers.append(added)
    elif which == "state":
        net.state = torch.full((WIDTH,), value, device="cuda")
    elif which == "load":
        net.load_state_dict({k: v * value for k, v in net.state_dict().items()}, assign=rng.random() < 0.5)
    elif which == "train":
        net.train(not net.training)
    elif which == "defaults":
        world.around.__defaults__ = (value,)


CHANGES = (
    "attribute", "namespace", "nested", "dict", "list grows", "flag", "hook", "pre-hook", "unhook", "weight replaced",
    "weight data", "weight in place", "buffer", "no bias", "layer", "slope", "extra", "forward patched",
    "class attribute", "class method", "closure", "object", "object's tensor", "append", "state", "load", "train",
    "defaults",
)  # fmt: skip


def play(seed: int, n_calls: int = 14) -> dict:
    """One sequence; returns the callable's statistics.

    Raises:
        AssertionError: an answer or a state was not eager's; the text says after which changes.
    """
    rng = random.Random(seed)
    keeps = rng.choice(("nothing", "nothing", "count", "list", "tensor"))
    kind = rng.choice(("module", "closure", "method"))
    mine, eager = World(seed, keeps, kind), World(seed, keeps, kind)
    options = rng.choice(({}, {}, {"mode": "hot"}))
    call = gfxgraph.graphed(mine.fn, **options)
    done: list[str] = []
    with torch.no_grad():
        for i in range(n_calls):
            if i > 2 and rng.random() < 0.45:
                which, drawn = rng.choice(CHANGES), rng.randrange(1 << 30)
                done.append(f"{i}: {which}")
                for world in (mine, eager):
                    _change(world, which, random.Random(drawn))
            torch.manual_seed(seed * 100 + i)
            x = torch.randn(rng.choice(ROWS), WIDTH).to("cuda")
            got, want = call(x.clone()), eager.fn(x.clone())
            story = f"seed {seed}, {kind}, keeps {keeps}, {options}, call {i}, after {done}"
            assert torch.equal(got, want), f"{story}: {got} is not {want}"
            assert torch.equal(mine.net.state, eager.net.state), f"{story}: the state differs"
            assert (mine.net.n_calls, mine.net.seen) == (eager.net.n_calls, eager.net.seen), story
            del got
    return call.stats()


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[2])
    wrong, replays, calls = 0, 0, 0
    for seed in range(first, last):
        try:
            found = play(seed)
        except AssertionError as error:
            wrong += 1
            print("WRONG", str(error)[:600], flush=True)
            continue
        except Exception as error:  # noqa: BLE001  a crash is a finding like a wrong answer
            wrong += 1
            print("CRASH", seed, type(error).__name__, str(error)[:600], flush=True)
            continue
        replays += found["replays"]
        calls += 14
    print(f"{last - first} sequences, {wrong} wrong, {replays} replays for {calls} calls", flush=True)


if __name__ == "__main__":
    main()
