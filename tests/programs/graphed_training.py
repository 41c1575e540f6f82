"""Training through a model made by ``gfxgraph.graphed``: forward and backward are graphs, the optimizer is not."""

import copy

import torch

import gfxgraph

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).cuda()
reference = copy.deepcopy(model)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, reference)]
graphed = gfxgraph.graphed(model)
for _ in range(8):
    x, labels = torch.randn(4, 8, device="cuda"), torch.randint(0, 2, (4,), device="cuda")
    losses = []
    for callable_, optimizer in zip((graphed, reference), optimizers):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(callable_(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)
for ours, theirs in zip(model.parameters(), reference.parameters()):
    torch.testing.assert_close(ours, theirs)
print("right: 8 steps,", graphed.stats()["replays"], "through a graph")
