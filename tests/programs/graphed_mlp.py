"""An MLP made by ``gfxgraph.graphed``, called with new tensors each time."""

import torch

import gfxgraph

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda().eval()
step = gfxgraph.graphed(model)
with torch.no_grad():
    for _ in range(6):
        x = torch.randn(8, 16, device="cuda")
        torch.testing.assert_close(step(x), model(x))
stats = step.stats()
assert stats["replays"] >= 3, stats
print("right: 6 calls,", stats["replays"], "through a graph")
