"""What following replaced inputs costs: at a replay where nothing has changed, at a capture, and at a reload.

    python benchmarks/bench_living.py [--reps 31] [--simulate hip | --gpu]

The replay's figure is the difference between the two classes of one graph, taken in turn; so is the capture's.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

import gfxgraph

N_INPUTS = 300


class Layer(nn.Module):
    """A decoder layer: nine weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = self.q(h), self.k(h), self.v(h)
        x = x + self.o(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)
        h = self.norm2(x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


class Step(nn.Module):
    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(n_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def captured(net: nn.Module, x: torch.Tensor, follows: bool = True) -> Any:
    graph = torch.cuda.CUDAGraph()
    graph._follows = follows
    with torch.no_grad(), torch.cuda.graph(graph):
        graph.out = net(x)
    return graph


def us(call: Any, n: int) -> float:
    begun = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - begun) / n * 1e6


def paired(one: Any, other: Any, reps: int, n: int) -> dict[str, float]:
    """Medians of both and of the difference of neighbours; and the difference of the least."""
    rows = []
    for _ in range(reps):
        rows.append((us(one, n), us(other, n)))
    return {
        "with": round(statistics.median(a for a, _ in rows), 3),
        "without": round(statistics.median(b for _, b in rows), 3),
        "difference": round(statistics.median(a - b for a, b in rows), 3),
        "least, difference": round(min(a for a, _ in rows) - min(b for _, b in rows), 3),
    }


class Launching:
    """A replay of a class with a launch that does nothing."""

    def __init__(self, graph: Any, is_asking: bool) -> None:
        from gfxgraph.capture.torchs_graph import fast_replay

        self._held, self._left = graph._held, 1 << 60
        unless = "self._held.has_changed()" if is_asking else ""
        self.call = fast_replay(lambda graph: None, unless=unless).__get__(self)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=31)
    parser.add_argument("--simulate", default="hip")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    gfxgraph.enable(validate=False, **({"allow_cuda": True} if options.gpu else {"simulate": options.simulate}))
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "device": torch.cuda.get_device_name() if options.gpu else f"simulator, {options.simulate}",
    }
    x = torch.randn(8, 64, device="cuda")
    nets: dict[int, Any] = {}
    for n in (3, 30, N_INPUTS):
        nets[n] = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(n))).cuda()
        graph = captured(nets[n], x)
        assert len([slot for slot in graph._held.slots if slot.holder.is_slot]) == n
        one, other = Launching(graph, True), Launching(graph, False)
        found[f"replay, {n} held inputs, us"] = paired(one.call, other.call, options.reps, 2000)
    step = Step(16, 64).cuda()
    gc.collect()
    captured(step, x)
    gc.disable()
    n_reps = max(3, options.reps // 3)
    found["capture of a step of 16 layers, us"] = paired(
        lambda: captured(step, x), lambda: captured(step, x, follows=False), n_reps, 1
    )
    graph, net = captured(nets[N_INPUTS], x), nets[N_INPUTS]
    state = {name: torch.randn_like(item) for name, item in net.state_dict().items()}

    def reload() -> None:
        net.load_state_dict({name: item.clone() for name, item in state.items()}, assign=True)

    def replay_after() -> None:
        reload()
        graph.replay()

    found[f"reload of {N_INPUTS} weights and a replay, us"] = paired(replay_after, reload, n_reps, 1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
