"""Models of the libraries that users install, through ``graphed``, each against eager.

    python benchmarks/bench_models.py [--out FILE] [--only WORD] [--processes N] [--gpu]

Each model of library_models.py runs seven calls of inference and seven training steps (SGD, dropout at zero), in the
simulator unless ``--gpu``, beside the same eagerly. *whole*: all but the first two calls by one graph. *wrong*: a
result, a loss or a weight after the last step differs from eager's by more than one in a hundred, and by three times
what a second eager run does: batch norm over two images of one pixel makes rounding grow. A model whose library is
missing is left out.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import copy
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import library_models
import torch
from bench_core import environment
from torch import Tensor, nn

import gfxgraph

N, KINDS = 7, ("whole", "in pieces", "in part", "eager", "wrong", "raised", "eager raised")


def tensors(out):
    return [each for each in torch.utils._pytree.tree_leaves(dict(out) if hasattr(out, "keys") else out)
            if isinstance(each, Tensor)]  # fmt: skip


def distance(mine, theirs) -> float:
    """The largest difference of two lists of tensors, each over the tensor's largest element."""
    if [(t.shape, t.dtype) for t in mine] != [(t.shape, t.dtype) for t in theirs]:
        return float("inf")
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(mine, theirs) if a.numel()]
    return max((float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs), default=0.0)


def inferred(model, call, inputs):
    model.eval()
    results = []
    with torch.no_grad():
        for i in range(N):
            torch.manual_seed(i)
            results.append([each.clone() for each in tensors(call(**inputs(i)))])
    return [each for result in results for each in result]


def trained(model, call, inputs):
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    optimizer, losses = torch.optim.SGD(model.parameters(), 1e-3), []
    for i in range(N):
        torch.manual_seed(i)
        optimizer.zero_grad()
        out = next(each for each in tensors(call(**inputs(i))) if each.requires_grad).float()
        # No sum of squares: of what a norm made that is a constant, and its gradients are rounding.
        loss = (out * torch.arange(out.numel(), device=out.device).view_as(out).sin()).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + [each for each in model.state_dict().values() if each.is_floating_point()]


def judged(model, inputs, run):
    eager, again, mine = (copy.deepcopy(model) for _ in range(3))
    try:
        wanted, noise = run(eager, eager, inputs), run(again, again, inputs)
    except Exception as error:  # noqa: BLE001  e.g. a detector wants targets in training
        return {"outcome": "eager raised", "why": f"{type(error).__name__}: {str(error)[:200]}"}
    graphed = gfxgraph.graphed(mine)
    try:
        found = run(mine, graphed, inputs)
    except Exception:  # noqa: BLE001  a program that raises is what is looked for
        return {"outcome": "raised", "why": traceback.format_exc(limit=-3)[-800:]}
    off, least = distance(found, wanted), distance(noise, wanted)
    stats = gfxgraph.Graphed.of(graphed).stats()
    row = {"eager": stats["eager"], "pieces": stats["pieces"], "off": off, "of_noise": least}
    n_whole, n_pieces = stats["calls"]["by_graph"], sum(stats["pieces"].values())
    kind = "whole" if n_whole >= N - 2 else "in part" if n_whole else "in pieces" if n_pieces else "eager"
    return {"outcome": "wrong" if off > max(0.01, 3 * least) else kind, **row}


def one(name, on_gpu):
    torch.set_num_threads(1)
    gfxgraph.enable(**({"allow_cuda": True} if on_gpu else {"simulate": "cuda"}))
    torch.manual_seed(0)
    try:
        model, inputs = library_models.made(name)
    except ImportError as error:
        return {"missing": str(error)}
    if "bfloat16" in name:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return {"inference": judged(model, inputs, inferred), "training": judged(model, inputs, trained)}


def started(name, on_gpu):
    line = [sys.executable, __file__, "--one", name, *["--gpu"] * on_gpu]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=600)
        return name, json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return name, dict.fromkeys(("inference", "training"), {"outcome": "raised", "why": f"{error!r}"[:200]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="words, separated by commas")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.gpu), default=str), flush=True)
        os._exit(0)
    wanted = [name for name in library_models.names() if any(word in name for word in options.only.split(","))]
    rows: dict[str, dict] = {}
    about = environment() if options.gpu else {"torch": torch.__version__, "device": "simulator"}
    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        for name, row in pool.map(lambda name: started(name, options.gpu), wanted):
            rows[name] = row
            for way, found in row.items():
                if way == "missing" or found["outcome"] not in ("whole", "eager raised"):
                    print(f"{name}, {way}: {found}", flush=True)
            counted = {
                way: dict(collections.Counter(row[way]["outcome"] for row in rows.values() if way in row))
                for way in ("inference", "training")
            }
            if options.out:  # after each, for a run that is cut off
                found = {"environment": about, "asked": len(wanted), "counted": counted, "models": rows}
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(counted)


if __name__ == "__main__":
    main()
