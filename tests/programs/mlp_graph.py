"""Inference of an MLP, captured by hand with ``torch.cuda.CUDAGraph`` as PyTorch's documentation does."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda().eval()
static_input = torch.zeros(8, 16, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3):
        model(static_input)
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    static_output = model(static_input)

for _ in range(5):
    batch = torch.randn(8, 16, device="cuda")
    static_input.copy_(batch)
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(static_output, model(batch))
print("right: 5 batches")
