"""Training with ``torch.cuda.make_graphed_callables``; the same steps as an ungraphed copy of the model."""

import copy

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).cuda()
reference = copy.deepcopy(model)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),))
for _ in range(6):
    x, y = torch.randn(4, 8, device="cuda"), torch.randn(4, 2, device="cuda")
    losses = []
    for callable_, optimizer in zip((graphed, reference), optimizers):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(callable_(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)
for ours, theirs in zip(model.parameters(), reference.parameters()):
    torch.testing.assert_close(ours, theirs)
print("right: 6 steps")
