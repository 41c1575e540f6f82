"""How programs in users' manner run through ``graphed``: whole, in part, in pieces, eager; wrong, raised.

    python benchmarks/bench_users_programs.py [--out FILE] [--only WORD] [--gpu]

Each program (users_programs.py) runs eagerly and through ``graphed`` with the same seed, in the simulator unless
``--gpu``; what it returns is compared. *whole*: every call was replayed as one graph, but for traces and warm-ups,
which are at most half of them. *in part*: some calls were, others ran in pieces or eagerly. *in pieces*: only parts
of calls were replayed. *eager*: nothing was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from users_programs import PROGRAMS

import gfxgraph


def leaves(tree):
    if isinstance(tree, dict):
        return [each for key in tree for each in leaves(tree[key])]
    if dataclasses.is_dataclass(tree):
        return leaves(vars(tree))
    if isinstance(tree, (list, tuple)):
        return [each for part in tree for each in leaves(part)]
    return [tree]


def difference(one, other) -> str:
    mine, theirs = leaves(one), leaves(other)
    if len(mine) != len(theirs):
        return f"{len(mine)} values instead of {len(theirs)}"
    for i, (a, b) in enumerate(zip(mine, theirs)):
        if isinstance(b, torch.Tensor):
            if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
                return f"value {i} is another kind of tensor"
            if not torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True):
                return f"value {i} differs by {(a.double() - b.double()).abs().max().item():.3g}"
        elif not (abs(a - b) <= 1e-6 + 1e-5 * abs(b) if isinstance(b, float) else a == b):
            return f"value {i} is {a!r}, not {b!r}"
    return ""


def run(program) -> dict:
    torch.manual_seed(0)
    try:
        expected = program(lambda fn: fn)
    except Exception as error:  # noqa: BLE001  outside of what is graphed: the simulator lacks something
        return {"outcome": "raised in eager", "why": f"{type(error).__name__}: {str(error)[:200]}"}
    made = []

    def graphed(fn):
        made.append(gfxgraph.graphed(fn))
        return made[-1]

    torch.manual_seed(0)
    found = {"calls": 0, "by a graph": 0, "in pieces": 0, "eager": 0}
    try:
        result = program(graphed)
        why = difference(result, expected)
        found["outcome"] = "wrong" if why else ""
        if why:
            found["why"] = why
    except Exception as error:  # noqa: BLE001  it is what is counted
        at = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {str(error)[:300]} at {Path(at.filename).name}:{at.lineno}"
        found |= {"outcome": "raised", "why": why}
    reasons = Counter()
    n_replays = 0
    for each in made:
        stats = each.stats()
        n_replays += stats["replays"]
        each = gfxgraph.Graphed.of(each) if hasattr(each, "_gfxgraph") else each
        whole = each._n_replays() + getattr(each._worlds, "n_one_graph", 0)
        found["by a graph"] += whole
        found["in pieces"] += sum(stats["pieces"].values())
        mine = Counter(each._eager)
        found["warm-up"] = found.get("warm-up", 0) + mine.pop("warm-up", 0)
        found["eager"] += sum(mine.values())
        reasons += Counter(stats["pieces"]) + mine
    found["reasons"] = {why[:200]: n for why, n in reasons.most_common(4)}
    found["calls"] = found["by a graph"] + found["in pieces"] + found["eager"] + found.get("warm-up", 0)
    if not found["outcome"]:
        others = found["in pieces"] + found["eager"]
        whole = found["by a graph"]
        found["outcome"] = (
            "whole"
            if not others and 2 * whole >= found["calls"]
            else "in part"
            if whole
            else "in pieces"
            if n_replays
            else "eager"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    if given.gpu:
        gfxgraph.enable(allow_cuda=True, validate=False)
    else:
        gfxgraph.enable(simulate="cuda", validate=False)
    found = {}
    for name, program in PROGRAMS.items():
        if given.only in name:
            found[name] = run(program)
            print(f"{found[name]['outcome']:<10} {name}: {json.dumps(found[name])[:400]}", flush=True)
    counted = Counter(each["outcome"] for each in found.values())
    print(dict(counted))
    if given.out:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        about = {
            "what": __doc__.splitlines()[0],
            "commit": commit,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "where": "GPU" if given.gpu else "simulator as CUDA",
            "counted": dict(counted),
            "programs": found,
        }
        Path(given.out).write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
