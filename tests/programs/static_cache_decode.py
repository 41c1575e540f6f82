"""Greedy decoding with a static key/value cache, one token a call, through ``gfxgraph.graphed``."""

import torch

import gfxgraph

WIDTH, HEADS, LONGEST, VOCABULARY = 32, 4, 24, 50


class Decoder(torch.nn.Module):
    """One attention layer over a cache that it updates in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("keys", torch.zeros(1, HEADS, LONGEST, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(1, HEADS, LONGEST, WIDTH // HEADS))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(1, HEADS, 1, -1) for part in self.qkv(self.embed(token)).chunk(3, -1))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        seen = torch.arange(LONGEST, device=token.device) <= position
        attended = torch.nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        return self.out(attended.reshape(1, WIDTH)).argmax(-1)


torch.manual_seed(0)
model = Decoder().cuda().eval()


def text(step) -> list[int]:
    model.keys.zero_()
    model.values.zero_()
    token, tokens = torch.tensor([7], device="cuda"), []
    with torch.no_grad():
        for at in range(16):
            token = step(token, torch.tensor([at], device="cuda"))
            tokens.append(int(token))
    return tokens


eager, graphed = text(model), gfxgraph.graphed(model)
assert text(graphed) == eager and text(graphed) == eager
print("right: 32 tokens,", graphed.stats()["replays"], "through a graph")
