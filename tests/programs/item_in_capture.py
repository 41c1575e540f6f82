"""A value read inside a capture, used in arithmetic and in a branch that stays the same."""

import torch

x = torch.arange(6.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scale = x.max().item()
    y = x / scale if scale > 0 else x
    z = y + 1
for top in (10.0, 3.0, 7.5):
    x.copy_(torch.linspace(0, top, 6))
    graph.replay()
    torch.testing.assert_close(z, x / top + 1)
print("right: 3 replays")
