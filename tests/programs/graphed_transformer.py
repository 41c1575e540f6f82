"""A transformer encoder behind ``gfxgraph.graphed`` with batches of many sizes, padded to buckets."""

import torch

import gfxgraph

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().eval()
encode = gfxgraph.graphed(lambda tokens: model(tokens), dynamic={"tokens": {0: "batch"}}, buckets=[2, 4, 8])
with torch.no_grad():
    for n in (3, 4, 1, 2, 7, 8, 3, 5, 1):
        tokens = torch.randn(n, 6, 32, device="cuda")
        torch.testing.assert_close(encode(tokens), model(tokens), rtol=1e-4, atol=1e-5)
stats = encode.stats()
print("right: 9 batches,", stats["replays"], "through a graph")
