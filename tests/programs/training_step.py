"""A whole training step, forward to optimizer, as ``gfxgraph.TrainingStep``; compared with an eager copy."""

import copy

import torch

import gfxgraph

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
reference = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
other = torch.optim.Adam(reference.parameters(), lr=1e-2, capturable=True)


def train(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@gfxgraph.TrainingStep
def step(x, y):
    return train(model, optimizer, x, y)


for _ in range(8):
    x, y = torch.randn(4, 8, device="cuda"), torch.randn(4, 1, device="cuda")
    torch.testing.assert_close(step(x, y), train(reference, other, x, y), rtol=1e-4, atol=1e-5)
assert step.n_captures == 1, step.why_eager
print("right: 8 steps, 1 capture")
