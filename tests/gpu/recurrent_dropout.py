"""A recurrent layer with dropout in training, graphed against eager: the same numbers from the same seed?

    python tests/gpu/recurrent_dropout.py [LSTM | GRU | RNN]

cuDNN keeps a state of its own for this dropout, one a process, seeded from torch's generator at its first use and
advanced on the device by each forward. So eager and graphed run in a process each. Where no GPU is, the simulator
stands in, and the layer's dropout is torch's own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gfxgraph

N_STEPS = 12


def steps(kind: str, *, is_graphed: bool) -> dict[str, Any]:
    """Each step's output and gradients, and where torch's generator was after it."""
    gfxgraph.enable(**({"allow_cuda": True} if torch.cuda.is_available() else {"simulate": "hip"}))
    torch.manual_seed(0)
    net = getattr(nn, kind)(16, 32, num_layers=2, dropout=0.5, batch_first=True).cuda().train()
    run = gfxgraph.graphed(net) if is_graphed else net
    found = []
    for i in range(N_STEPS):
        net.zero_grad()
        result = run(torch.ones(4, 8, 16, device="cuda") * (i % 3 + 1))[0]
        result.square().sum().backward()
        grads = [parameter.grad.cpu().clone() for parameter in net.parameters()]
        found.append((result.detach().cpu(), grads, torch.cuda.get_rng_state()))
    return {"steps": found, "told": run.explain() if is_graphed else ""}


def main(kind: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        files = {how: Path(folder, how) for how in ("eager", "again", "graphed")}
        for how, file in files.items():
            subprocess.run([sys.executable, __file__, kind, how, str(file)], check=True)
        eager, again, graphed = (torch.load(file, weights_only=False) for file in files.values())
    print(f"{kind}, dropout 0.5, {N_STEPS} steps, torch {torch.__version__}, {torch.cuda.is_available()=}")
    print(f"  eager, a second process: {differences(eager, again)}")
    print(f"  graphed: {differences(eager, graphed)}")
    alike = [torch.equal(graphed["steps"][i][0], graphed["steps"][i + 3][0]) for i in range(N_STEPS - 3)]
    print(f"  graphed steps of one input that have one mask (wrong if any): {sum(alike)}")
    print(graphed["told"])
    return int(any(alike) or differences(eager, graphed) != differences(eager, again))


def differences(a: dict[str, Any], b: dict[str, Any]) -> str:
    parts = []
    for name, at in (("results", 0), ("gradients", 1), ("generator", 2)):
        pairs = [(x[at], y[at]) for x, y in zip(a["steps"], b["steps"], strict=True)]
        same = [all(map(torch.equal, x, y)) if at == 1 else torch.equal(x, y) for x, y in pairs]
        parts.append(f"{name} differ at steps {[i for i, one in enumerate(same) if not one]}")
    return ", ".join(parts)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        torch.save(steps(sys.argv[1], is_graphed=sys.argv[2] == "graphed"), sys.argv[3])
    else:
        sys.exit(main(*(sys.argv[1:] or ["LSTM"])))
