"""Train the character model that decode.py runs, and write char_model.pt.

The text is alice.txt beside this file: Lewis Carroll's "Alice's Adventures in Wonderland" (1865; in the
public domain), one paragraph a line. On one CPU core this takes about a quarter of an hour. The shipped
weights end at a loss of 0.76 a character, and 1.66 on the pages kept aside: more than half learnt by heart,
which for a demonstration reads better than the best generalization (1.49, at step 900).

    python examples/train_char_model.py [--steps 2000] [--out char_model.pt]
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from char_model import CONTEXT, WEIGHTS, CharModel, save
from torch import Tensor
from torch.nn import functional as F

BATCH, PEAK_RATE, WARMUP_STEPS, DROPOUT = 16, 2e-3, 100, 0.1


def rate(step: int, steps: int) -> float:
    """Learning rate: up in a line, then down along a cosine."""
    if step < WARMUP_STEPS:
        return PEAK_RATE * (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return PEAK_RATE * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def loss_on(model: CharModel, ids: Tensor, starts: Tensor) -> Tensor:
    """Mean loss per character over the windows of ``ids`` that begin at ``starts``."""
    window = ids[starts[:, None] + torch.arange(CONTEXT + 1)]
    logits = model(window[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args()
    torch.manual_seed(0)
    text = Path(__file__).with_name("alice.txt").read_text(encoding="utf-8")
    model = CharModel("".join(sorted(set(text))), DROPOUT)
    ids = torch.tensor(model.encode(text))
    n_train = int(len(ids) * 0.95)  # the last chapter's end is kept aside, to see how well it generalizes
    kept = torch.arange(n_train, len(ids) - CONTEXT - 1, CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.98))
    began = time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.steps)
        loss = loss_on(model, ids, torch.randint(n_train - CONTEXT - 1, (BATCH,)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == args.steps - 1:
            model.eval()
            with torch.no_grad():
                unseen = loss_on(model, ids, kept).item()
            model.train()
            spent_s = time.monotonic() - began
            print(f"step {step:5d}  loss {loss.item():.3f}  unseen {unseen:.3f}  {spent_s:.0f} s", flush=True)
            save(model, args.out)


if __name__ == "__main__":
    main()
