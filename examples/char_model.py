"""The character model that decode.py runs and train_char_model.py trains: a small transformer.

Four layers of width 128 with rotary positions, 0.8 million weights. ``forward`` reads a whole text at
once, for training. ``step`` reads one character and keeps what it must remember in a static cache:
tensors of fixed shape and address, as a graph needs. The cache is a ring of CONTEXT positions, so that a
text may grow longer than the model's memory.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT = 4, 4, 128, 256
HEAD_WIDTH = WIDTH // HEADS
WEIGHTS = Path(__file__).with_name("char_model.pt")


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Turn pairs of channels of ``x``: [..., time, HEAD_WIDTH] by an angle that grows with the position."""
    half = HEAD_WIDTH // 2
    speed = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = position[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Layer(nn.Module):
    """Attention, then a perceptron, each behind a norm and beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def heads(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key, value: [batch, HEADS, time, HEAD_WIDTH], of ``x``: [batch, time, WIDTH]."""
        batch, time, _ = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, time, 3, HEADS, HEAD_WIDTH)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return rotate(query, position), rotate(key, position), value

    def rest(self, x: Tensor, attended: Tensor, dropout: float) -> Tensor:
        """Add what was attended to and the perceptron's word on it to ``x``."""
        x = x + F.dropout(self.out(attended.transpose(1, 2).flatten(2)), dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_mlp(x)))), dropout, self.training)


class CharModel(nn.Module):
    """Predicts the next character of a text over ``alphabet``."""

    def __init__(self, alphabet: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.alphabet = alphabet
        self.dropout = dropout
        self.embedding = nn.Embedding(len(alphabet), WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, time, alphabet] for every position of ``ids``: [batch, time]."""
        position = torch.arange(ids.shape[1], device=ids.device)
        x = self.embedding(ids)
        for layer in self.layers:
            query, key, value = layer.heads(x, position)
            x = layer.rest(x, F.scaled_dot_product_attention(query, key, value, is_causal=True), self.dropout)
        return F.linear(self.norm(x), self.embedding.weight)

    def step(self, token: Tensor, position: Tensor, cache: Tensor) -> Tensor:
        """Read one character and return the logits [alphabet] of the next; ``cache`` is updated in place.

        Args:
            token: [1] int64, the character at ``position``.
            position: [1] int64, counted from the start of the text.
            cache: [LAYERS, 2, HEADS, CONTEXT, HEAD_WIDTH], keys and values of the last CONTEXT characters.
        """
        slot = position % CONTEXT
        unwritten = torch.arange(CONTEXT, device=token.device) > position
        x = self.embedding(token)[None]
        for layer, (keys, values) in zip(self.layers, cache.unbind(0), strict=True):
            query, key, value = layer.heads(x, position)
            keys.index_copy_(1, slot, key[0])
            values.index_copy_(1, slot, value[0])
            score = query[0] @ keys.transpose(-1, -2) / HEAD_WIDTH**0.5
            weight = score.masked_fill(unwritten, float("-inf")).softmax(-1)
            x = layer.rest(x, (weight @ values)[None], 0.0)
        return F.linear(self.norm(x), self.embedding.weight)[0, 0]

    def encode(self, text: str) -> list[int]:
        """Return the index of each character of ``text``; those outside the alphabet become spaces."""
        index = {char: i for i, char in enumerate(self.alphabet)}
        return [index.get(char, index[" "]) for char in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.alphabet[i] for i in ids)


def save(model: CharModel, path: Path = WEIGHTS) -> None:
    """Write alphabet and weights, as fp16."""
    weights = {name: tensor.detach().half() for name, tensor in model.state_dict().items()}
    torch.save({"alphabet": model.alphabet, "weights": weights}, path)


def load(device: str, path: Path = WEIGHTS) -> CharModel:
    """Read what ``save`` wrote; the model computes in fp32."""
    stored = torch.load(path, map_location="cpu", weights_only=True)
    model = CharModel(stored["alphabet"])
    model.load_state_dict({name: tensor.float() for name, tensor in stored["weights"].items()})
    return model.to(device).eval()
