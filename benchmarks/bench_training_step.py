"""CPU time of a step with gradients, forward and backward, of ordinary modules.

    python benchmarks/bench_training_step.py [--simulate] [--only NAME,NAME] [--reps N] [--out FILE] [--profile NAME]
                                             [--parts]

For each module: eager, ``gfxgraph.graphed``, ``torch.cuda.make_graphed_callables``; microseconds of CPU of the whole
process (``time.process_time``: autograd runs a backward in a thread of its own), the median of the repeats. The ways
are measured in turn within each repeat. ``--parts`` prints what a step does in Python and how often it allocates (of
the forward alone, where a backward runs in a thread of its own), and what the parts of a graphed step cost, each in a
loop of its own; ``--simulate`` runs in the simulator, whose operations are Python: there a launch of a graph executes
nothing while it is timed, so that what is left is ours and torch's.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import cProfile
import json
import pstats
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from bench_core import environment

import gfxgraph

N_PROFILED = 300
N_CALLS = 20  # few enough that the device's queue never makes the CPU wait


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 32)})

    def forward(self, x):
        for part in self.parts.values():
            x = part(x).relu()
        return x


def floats(*size):
    return lambda: torch.randn(*size, device="cuda")


def ids():
    return torch.randint(0, 50, (4, 16), device="cuda")


def mlp():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))


MODULES = {
    "Linear": (lambda: nn.Linear(32, 32), floats(8, 32)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(32), floats(8, 32)),
    "GroupNorm": (lambda: nn.GroupNorm(4, 32), floats(8, 32)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), floats(8, 32)),
    "ModuleDict": (ByName, floats(8, 32)),
    "Embedding": (lambda: nn.Embedding(50, 32), ids),
    "MLP": (mlp, floats(8, 32)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        floats(2, 8, 32),
    ),
}


class Step:
    """Forward and backward of one module on one batch; gradients accumulate in ``.grad``."""

    def __init__(self, call, make):
        self.call, self.x = call, make()
        self.grad = torch.ones_like(call(self.x).detach())

    def __call__(self):
        self.call(self.x).backward(self.grad)


def ways(make, batch):
    torch.manual_seed(0)
    module = make().cuda()
    found = {"eager": Step(copy.deepcopy(module), batch)}
    graphed = gfxgraph.graphed(copy.deepcopy(module))
    found["graphed"] = Step(graphed, batch)
    with contextlib.suppress(RuntimeError, NotImplementedError):
        made = torch.cuda.make_graphed_callables(copy.deepcopy(module), (batch(),))
        found["make_graphed_callables"] = Step(made, batch)
    for step in found.values():
        for _ in range(8):
            step()
    torch.cuda.synchronize()
    return found, graphed


def cpu_us(step):
    torch.cuda.synchronize()
    begun = time.process_time()
    for _ in range(N_CALLS):
        step()
    return (time.process_time() - begun) * 1e6 / N_CALLS


def measured(found, reps):
    times = {name: [] for name in found}
    for _ in range(reps):
        for name, step in found.items():
            times[name].append(cpu_us(step))
    return times


@contextlib.contextmanager
def nothing_executes():
    """Meanwhile a launch in the simulator executes none of its graph's operations, and costs about nothing."""
    from gfxgraph_simulator.graph_nodes import GraphExec

    run = GraphExec.run
    GraphExec.run = lambda *args: None
    try:
        yield
    finally:
        GraphExec.run = run


OWNERS = (
    ("simulator", "the simulator"),
    ("gfxgraph", "ours"),
    ("<watch>", "ours"),
    ("_dynamo", "Dynamo"),
    ("torch", "torch"),
)


def profile(step):
    """Print what a step takes by whose functions they are, and the dearest, the profiler's own cost among it."""
    found = cProfile.Profile(time.thread_time)  # in the simulator a backward runs in its caller's thread
    found.enable()
    for _ in range(N_PROFILED):
        step()
    found.disable()
    stats, by_owner = pstats.Stats(found), Counter()
    for (file, _, _), (_, _, own, _, _) in stats.stats.items():
        owner = next((owner for part, owner in OWNERS if part in file), "built in")
        by_owner[owner if file != "~" else "built in"] += own * 1e6 / N_PROFILED
    print({owner: round(us, 1) for owner, us in by_owner.most_common()})
    stats.sort_stats("tottime").print_stats(25)


def counted(step):
    """What one step does in Python: frames of ours, calls of C from anywhere, allocations on the device."""
    found = Counter()

    def note(frame, event, function):
        file = frame.f_code.co_filename
        found["frames of ours"] += event == "call" and ("/gfxgraph/" in file or file == "<gfxgraph fast path>")
        found["calls of C"] += event == "c_call"

    allocated = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]  # noqa: E731
    before = allocated()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return dict(found) | {"allocations": allocated() - before}


def parts(graphed, batch, reps):
    """What the parts of a graphed step cost, in microseconds, each timed in a loop of its own."""
    from gfxgraph.callables.graphed import Graphed
    from gfxgraph.callables.training import gradients

    worlds = Graphed.of(graphed)._worlds
    pair = worlds.with_gradients[0]._pair
    x = batch()
    given = [t if t.requires_grad else x for t in pair.statics]
    out = graphed(x)
    seed = torch.ones_like(out)
    node = out.grad_fn
    before, results = pair.run_forward(given)
    saved = [t for t, is_saved in zip(given, pair.is_saved) if is_saved]
    grads = [torch.ones_like(t) for t in results]
    has_run = lambda: pair.run_backward(before, saved, grads)  # noqa: E731

    def step(way):
        for p in graphed.parameters():
            p.grad = None
        way(x).backward(seed)

    timed = {
        "step, gradients None before": lambda: step(graphed),
        "forward": lambda: graphed(x),
        "forward: fast path": lambda: worlds.fast((x,), {}),
        "forward: autograd's function": lambda: gradients._apply(pair, *given),
        "forward: inside it": lambda: pair.run_forward(given),
        "forward: fill": lambda: pair._run._into(pair._moved(given)),
        "forward: allocate": pair._run._allocate,
        "backward: inside it": has_run,
        "backward: run": lambda: pair._whole(grads, True),
        "copy_ of one": lambda: seed.copy_(out.detach()),
        "saved tensors": lambda: node.saved_tensors,
    }
    for name, way in timed.items():
        with torch.no_grad() if "inside" in name or "copy" in name or "fill" in name else contextlib.nullcontext():
            before, results = pair.run_forward(given)  # the last one: no other has to be restored
            print(f"  {name:32} {statistics.median(cpu_us(way) for _ in range(4 * reps)):8.1f}", flush=True)
    found = pair.run_backward(before, saved, grads)
    print(
        "  strides of gradients and inputs",
        [(g.stride(), t.stride()) for g, t in zip(found[1:], given) if g is not None],
    )


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--simulate", action="store_true")
    ask.add_argument("--only", default="")
    ask.add_argument("--reps", type=int, default=9)
    ask.add_argument("--out")
    ask.add_argument("--profile", default="")
    ask.add_argument("--parts", action="store_true")
    asked = ask.parse_args()
    if asked.simulate:
        torch.set_num_threads(1)  # threads of OpenMP spin
    gfxgraph.enable(**({"simulate": "cuda"} if asked.simulate else {"allow_cuda": True}), validate=False)
    rows = {}
    for name in asked.only.split(",") if asked.only else MODULES:
        found, graphed = ways(*MODULES[name])
        stats = graphed.stats()
        with nothing_executes() if asked.simulate else contextlib.nullcontext():
            times = measured(found, asked.reps)
            if asked.profile:
                profile(found[asked.profile])
            if asked.parts:
                for way, each in found.items():
                    each.call.zero_grad()
                    print(f"  {way:32} {counted(each)}", flush=True)
                parts(graphed, MODULES[name][1], asked.reps)
        rows[name] = {way: {"us": round(statistics.median(each), 1), "all": each} for way, each in times.items()}
        rows[name]["stats"] = {"replays": stats["replays"], "eager": stats["eager"], "pieces": stats["pieces"]}
        print(name, {way: rows[name][way]["us"] for way in times}, rows[name]["stats"], flush=True)
    if asked.out:
        Path(asked.out).write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
