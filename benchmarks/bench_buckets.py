"""Learned buckets against vLLM's ladder: 10,000 calls over 200 random batch sizes, one stream of calls.

    python benchmarks/bench_buckets.py [--out FILE] [--calls N] [--sizes N] [--largest N] [--seed N] [--ways NAMES]

Three ways over the same calls: the ladder, all of it captured ahead, as vLLM does; a plan learned from
the first tenth of the calls and captured ahead; and "auto", which begins knowing nothing and learns as
it goes. For each: rows computed and thrown away, device memory that its graphs take, capture time, and
every answer compared with eager's. Each way has a process of its own, for what the driver has once taken for
graphs it keeps. Without a GPU only the rows are counted, from the plans alone.

Writes one JSON object; figures are what was counted or measured in this run.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from bench_core import environment

import gfxgraph
from gfxgraph.callables.buckets import BucketSizes
from gfxgraph.core.bucket_sizes import Buckets, ladder, learn

HIDDEN, LAYERS = 256, 40  # 200 kernels: what a graph of much fewer takes, the driver hands out in larger pieces


def calls(n_calls: int, n_sizes: int, largest: int, seed: int) -> list[int]:
    """Batch sizes: ``n_sizes`` different ones, each as likely as the others."""
    rng = random.Random(seed)
    return rng.choices(rng.sample(range(1, largest + 1), n_sizes), k=n_calls)


def counted(buckets: Buckets, sizes: list[int]) -> dict:
    real = sum(sizes)
    padded = buckets.padding(Counter(sizes))
    return {"buckets": len(buckets), "rows": real, "padded_rows": padded, "padded_share": padded / real}


def as_it_goes(sizes: list[int]) -> dict:
    """What "auto" pads, learning on the way."""
    known = BucketSizes("auto")
    padded = n_plans = 0
    for n in sizes:
        picked = known["batch"].pick(n)
        padded += (picked or n) - n
        n_plans += known.count({"batch": n}) is not None
    return {
        "buckets": len(known.plan().dims["batch"]),
        "plans": n_plans,
        "rows": sum(sizes),
        "padded_rows": padded,
        "padded_share": padded / sum(sizes),
    }


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.up, self.down = torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[Block() for _ in range(LAYERS)]).cuda().eval()


def free_nbytes() -> int:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


@torch.no_grad()
def measured(name: str, buckets: object, ahead: bool, sizes: list[int], data: torch.Tensor) -> dict:
    """One way over all calls, in fresh memory."""
    net = model()
    largest = len(data) - 8
    for n in range(1, largest + 1):  # libraries load kernels and take workspaces now, not on somebody's account
        net(data[:n])
    before = free_nbytes()
    g = gfxgraph.graphed(net, dynamic={"input": {0: "batch"}}, buckets=buckets, max_graphs=128)
    begun = time.perf_counter()
    done = g.capture_all(data[:largest]) if ahead else {}
    torch.cuda.synchronize()
    capture_s = time.perf_counter() - begun
    padded, worst, wrong = 0, torch.zeros((), device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    n_replays = g.stats()["replays"]
    begun = time.perf_counter()
    for i, n in enumerate(sizes):
        x = data[i % 7 : i % 7 + n]
        plan = g.plan() if buckets == "auto" else None
        got = g(x)
        now = g.stats()["replays"]
        if now > n_replays:
            picked = plan.pick((n,)) if plan is not None else (buckets.pick(n),)
            padded += picked[0] - n
        n_replays = now
        want = net(x)
        if got.shape != want.shape:
            wrong += 1
            continue
        # As torch.allclose, but the host does not wait for each call.
        gap = (got - want).abs()
        worst = torch.maximum(worst, gap.max())
        wrong += ~(gap <= 1e-3 + 1e-3 * want.abs()).all()
    total_s = time.perf_counter() - begun
    del got, want, x, gap
    stats = g.stats()
    row = {
        "way": name,
        "captured_ahead": done,
        "capture_ahead_s": capture_s if ahead else None,
        "captures": stats["captures"],
        "graphs_at_end": sum(1 for e in g._entries.values() if e.is_captured),
        "replays": stats["replays"],
        "eager": stats["eager"],
        "rows": sum(sizes),
        "padded_rows": padded,
        "padded_share": padded / sum(sizes),
        "device_nbytes": before - free_nbytes(),
        "reported_nbytes": sum(d["graph_bytes"] for d in gfxgraph.memory_report()["devices"]),
        "largest_difference_from_eager": float(worst),
        "wrong_answers": int(wrong),
        "with_checking_s": total_s,
    }
    g.reset()
    del g, net
    free_nbytes()
    return row


def in_a_process(way: str) -> dict:
    line = [sys.executable, *sys.argv, "--way", way]
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--sizes", type=int, default=200, help="different batch sizes")
    parser.add_argument("--largest", type=int, default=512)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--ways", default="ladder,learned,auto")
    parser.add_argument("--way", help="measure this one alone, in this process")
    options = parser.parse_args()
    sizes = calls(options.calls, options.sizes, options.largest, options.seed)
    learned = learn(Counter(sizes[: len(sizes) // 10]))
    rule = ladder(options.largest)
    found: dict = {
        "calls": options.calls,
        "different_sizes": len(set(sizes)),
        "by_the_plans": {
            "ladder": counted(rule, sizes),
            "learned": counted(learned, sizes),
            "auto": as_it_goes(sizes),
        },
    }
    if torch.cuda.is_available():
        ways = {"ladder": (rule, True), "learned": (learned, True), "auto": ("auto", False)}
        if options.way:
            data = torch.randn(options.largest + 8, HIDDEN, device="cuda")
            print(json.dumps(measured(options.way, *ways[options.way], sizes, data)))
            return
        found |= environment()
        rows = {name: in_a_process(name) for name in options.ways.split(",")}
        found["measured"] = rows
        best = rows["ladder"]
        found["reached"] = {
            name: {
                "less padded work": rows[name]["padded_rows"] < best["padded_rows"],
                "less memory": rows[name]["device_nbytes"] < best["device_nbytes"],
                "same answers": rows[name]["wrong_answers"] == 0,
            }
            for name in rows
            if name != "ladder"
        }
    else:
        found["note"] = "no GPU: rows are counted from the plans; memory and answers need one"
    text = json.dumps(found, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    sys.exit(0 if all(all(row.values()) for row in found.get("reached", {}).values()) else 1)


if __name__ == "__main__":
    main()
