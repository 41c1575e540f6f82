"""287 programs in users' manner through ``graphed``, each against eager.

    python benchmarks/fresh_programs.py [--out FILE] [--subject FILE] [--only WORD] [--platform hip|cuda]

They stand in programs/, a file a subject. Each was written from 2026-11-26 to 2026-11-28, in five draws, before any
of its draw was run and without a look at ``callables/``. A program that returns a function and the arguments of its
calls is made twice from one seed, run eagerly and through ``graphed``, and every result and the state that it names
must be the same. A call counts as whole where one graph was replayed for it, in pieces where Python ran between
graphs, eager otherwise; such a program is whole if most of its calls after the third are. A whole script
(programs/whole_*.py) is judged as bench_users_programs.py judges, but as a user has it: with the validation of first
replays that the platform has by default. (Without it, no batch norm that is called twice before one backward raises.)
"""

from __future__ import annotations

import argparse
import collections
import importlib
import inspect
import json
import os
import platform
import random
import subprocess
import sys
import traceback
from pathlib import Path

import bench_users_programs
import torch
from programs.registry import PROGRAMS

import gfxgraph

SUBJECTS = sorted(path.stem for path in (Path(__file__).parent / "programs").glob("*.py") if path.stem != "registry")
KINDS = ("whole", "in part", "in pieces", "eager", "wrong", "raised")


def made(name):
    torch.manual_seed(1234)
    random.seed(1234)
    step, calls, *state = PROGRAMS[name]()
    return step, calls, state[0] if state else list


def kept(value):
    flat = torch.utils._pytree.tree_leaves(value)
    return [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in flat]


def same(a, b):
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, torch.Tensor):
            if (
                x.shape != y.shape
                or x.dtype != y.dtype
                or not torch.allclose(x.double(), y.double(), 1e-4, 1e-5, True)
            ):
                return False
        elif x != y:
            return False
    return True


def judge(name):
    """Verdict on one program, and how its calls ran."""
    step, calls, state = made(name)
    torch.manual_seed(99)
    eager = [(kept(step(*args)), kept(state())) for args in calls]
    step, calls, state = made(name)
    graphed = gfxgraph.graphed(step)
    torch.manual_seed(99)
    counts = []
    for i, args in enumerate(calls):
        before = graphed.stats()
        try:
            got = kept(graphed(*args)), kept(state())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the verdict
            return {
                "outcome": "raised",
                "at": i,
                "why": "".join(traceback.format_exception_only(error)).strip()[:300],
            }
        if not (same(got[0], eager[i][0]) and same(got[1], eager[i][1])):
            return {"outcome": "wrong", "at": i, "why": str(graphed.explain())[:400]}
        after = graphed.stats()
        if sum(after["pieces"].values()) > sum(before["pieces"].values()):
            counts.append("in pieces")
        elif after["replays"] > before["replays"]:
            counts.append("whole")
        else:
            counts.append("eager")
    late = collections.Counter(counts[3:])
    return {"outcome": late.most_common(1)[0][0], "calls": counts, "eager": dict(graphed.stats()["eager"])}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--subject", choices=SUBJECTS)
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--platform", default="hip", choices=("hip", "cuda"), help="where there is no GPU")
    options = parser.parse_args()
    for subject in [options.subject] if options.subject else SUBJECTS:
        importlib.import_module(f"programs.{subject}")
    if torch.cuda.is_available():
        gfxgraph.enable(allow_cuda=True)
        device = torch.cuda.get_device_name()
    else:
        gfxgraph.enable(simulate=options.platform)
        device = f"simulator ({options.platform})"
    rows = {}
    for name, make in PROGRAMS.items():
        if options.only in name:
            torch._dynamo.reset()  # a program has its process for itself
            row = bench_users_programs.run(make) if inspect.signature(make).parameters else judge(name)
            rows[name] = row = {"subject": make.__module__.rpartition(".")[2], **row}
            print(name, row["outcome"], row.get("why") or row.get("eager") or row.get("reasons") or "", flush=True)
    count = collections.Counter(row["outcome"] for row in rows.values())
    result = {
        "what": __doc__.splitlines()[0],
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": os.environ.get("BENCH_COMMIT") or subprocess.getoutput("git rev-parse --short HEAD"),
        "command": " ".join(["python", "benchmarks/fresh_programs.py", *sys.argv[1:]]),
        "programs": len(rows),
        **{kind: count[kind] for kind in KINDS},
        "rows": rows,
    }
    print({kind: result[kind] for kind in ("programs", *KINDS)})
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
