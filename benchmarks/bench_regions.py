"""Where the CPU time of a step of ``mode="reduce-overhead"`` goes: 16 layers, compiled as one, and one by one.

    python benchmarks/bench_regions.py [--out FILE] [--reps N] [--simulate [PROFILE]]

Each part is the same call with less in it, measured in turn within each repeat: all of it (on a GPU alone, where a
launch costs what it costs); regions whose graphs do nothing; regions that do nothing; and Dynamo's guards and code
around a graph that does nothing, which is what a step costs at least (``torch.compile`` with a backend of one line).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import torch
from bench_core import environment, summary
from torch import nn

import gfxgraph
from gfxgraph.callables.pieces import region
from gfxgraph.compile import regions

LAYERS, WIDTH, CALLS = 16, 64, 30


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        y = self.before(x)
        x = x + self.b(torch.sigmoid(self.a(y)) * y)
        return x + self.d(torch.relu(self.c(self.after(x))))


class Model(nn.Module):  # Dynamo does not compile an nn.Sequential as a whole
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def remembering(graph, inputs):
    made = []

    def run(*given):
        if not made:
            made.append(graph(*given))
        return made[0]

    return run


def doing_nothing(kind, call):
    """What calls of ``kind`` return in one step, and a method that gives it again at once."""
    original, kept = kind.__call__, defaultdict(list)

    def noting(self, *given):
        made = original(self, *given)
        kept[self].append(made)
        return made

    kind.__call__ = noting
    call()
    kind.__call__ = original

    def again(self, *given):
        if kind is region.Region:
            given[0].clear()
        return list(kept[self][0])

    return again


def measured(name: str, reps: int, simulates: bool) -> dict:
    torch._dynamo.reset()
    model = Model().cuda().eval()
    x = torch.randn(1, WIDTH, device="cuda")
    parts = [model] if name == "as one" else list(model.layers)
    for part in parts:
        part.compile(mode="reduce-overhead")
    for _ in range(8):
        model(x)
    found = [each for each in regions() if each.stats()["replays"]]
    about = {"regions": len(found), "variants": sum(each.stats()["variants"] for each in found)}
    ways = {"all": (None, None)} if not simulates else {}
    for title, kind in (("graphs do nothing", region.Variant), ("regions do nothing", region.Region)):
        ways[title] = (kind, doing_nothing(kind, lambda: model(x)))
    clock = time.process_time if simulates else time.perf_counter

    def timed():
        torch.cuda.synchronize()
        begun = clock()
        for _ in range(CALLS):
            model(x)
        return (clock() - begun) / CALLS * 1e6

    took = defaultdict(list)
    for _ in range(reps):
        for title, (kind, call) in ways.items():
            original = kind.__call__ if kind else None
            if kind:
                kind.__call__ = call
            took[title].append(timed())
            if kind:
                kind.__call__ = original
    torch._dynamo.reset()
    for part in parts:
        part.compile(backend=remembering)
    for _ in range(3):
        model(x)
    took["guards alone"] = [timed() for _ in range(reps)]
    return {"figure": f"16 layers compiled {name}", "unit": "us of CPU a step", **about,
            "parts": {title: summary(values) for title, values in took.items()}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reps", type=int, default=15)
    parser.add_argument("--simulate", nargs="?", const="cuda", default="", metavar="PROFILE")
    options = parser.parse_args()
    given = {"simulate": options.simulate} if options.simulate else {"allow_cuda": True}
    gfxgraph.enable(validate=False, **given)
    with torch.no_grad():
        figures = [measured(name, options.reps, bool(options.simulate)) for name in ("as one", "one by one")]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"environment": environment(), "figures": figures}, indent=1) + "\n")
    for figure in figures:
        print(f"{figure['figure']} ({figure['unit']}): {figure['regions']} regions, {figure['variants']} variants")
        for title, part in figure["parts"].items():
            print(f"    {title:20s} {part['median']:8.1f} ({part['min']:.1f} to {part['max']:.1f})")


if __name__ == "__main__":
    import os

    os.environ.setdefault("GFXGRAPH_COMPILE", "1")  # on an NVIDIA GPU nothing changes unless asked
    main()
