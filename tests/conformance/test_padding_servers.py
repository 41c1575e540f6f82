"""Padding: the programs of servers, of which every size runs in a bucket's graph with eager's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gfxgraph
from tests.conformance.conftest import PLATFORMS

ON_ONE = pytest.mark.parametrize("platform", PLATFORMS[:1], indirect=True)
WIDTH, N_HEADS, LENGTH, VOCABULARY = 16, 4, 6, 30
SIZES = (5, 5, 3, 1, 3, 7, 5, 8, 1, 3, 5)


def ids(n: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (n, LENGTH), device="cuda")


def rows(n: int) -> Tensor:
    return torch.randn(n, WIDTH, device="cuda")


def mask_of(n: int) -> Tensor:
    lengths = torch.randint(1, LENGTH + 1, (n,), device="cuda")
    return torch.arange(LENGTH, device="cuda")[None] < lengths[:, None]


class Mlp(nn.Module):
    """Layers with a gate, a norm, and probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(self.norm(x))) * self.up(x)).softmax(-1)


class Tagger(nn.Module):
    """Tokens with positions through torch's own encoder, with a padding mask, to a label for each token."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, N_HEADS, 32, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.encoder(x, src_key_padding_mask=~mask)).argmax(-1)


class Ranker(nn.Module):
    """Attention written by hand with an additive mask; the mean of the real tokens; a score for each text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.out = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens)
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, N_HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (WIDTH // N_HEADS) ** 0.5
        weights = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, WIDTH)
        n_real = mask.sum(1, keepdim=True).clamp(min=1)
        return self.out((mixed * mask[..., None]).sum(1) / n_real).squeeze(-1).sigmoid()


class Decoder(nn.Module):
    """A causal layer with rotary positions and RMS norm; the next token's logits, and the best three."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        angles = torch.arange(LENGTH)[:, None] / 10 ** (torch.arange(2) / 2)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], N_HEADS, -1).transpose(1, 2)

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens)
        y = self.norm(x)
        q, k, v = self.turned(self.heads(self.q(y))), self.turned(self.heads(self.k(y))), self.heads(self.v(y))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        logits = x[:, -1] @ self.words.weight.T
        return logits, logits.topk(3, -1).indices


class Vision(nn.Module):
    """Convolutions with batch norm in evaluation, pooled to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.LogSoftmax(-1))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stem(images))


class Recommender(nn.Module):
    """Two towers, a table for each feature, and their cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, user: Tensor, item: Tensor, dense: Tensor) -> Tensor:
        left = self.mix(torch.cat([self.users(user), dense], -1))
        return F.cosine_similarity(left, self.items(item), dim=-1) * 5


class LastToken(nn.Module):
    """The hidden state of each text's last real token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        last = mask.sum(1) - 1
        x = self.words(tokens).cumsum(1)
        picked = x.gather(1, last[:, None, None].expand(-1, 1, WIDTH)).squeeze(1)
        return self.head(picked)


class Speech(nn.Module):
    """A recurrent net over features, and the best class of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 4)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.rnn(frames)[0]).log_softmax(-1)


def policy_of(w: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """An actor: normalised observations, an action's mean within bounds, and its log probability."""

    def policy(observation: Tensor) -> tuple[Tensor, Tensor]:
        x = (observation - observation.mean(-1, keepdim=True)) / (observation.std(-1, keepdim=True) + 1e-5)
        mean = torch.tanh(x @ w)
        return mean, (-0.5 * (mean**2 + 1.8379)).sum(-1)

    return policy


def sampled(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Top-p of each text's own temperature; what is left of the probabilities."""
    ordered, order = (logits / temperature[:, None]).sort(-1, descending=True)
    weights = ordered.softmax(-1)
    weights = weights.masked_fill(weights.cumsum(-1) - weights > top_p[:, None], 0.0)
    return torch.zeros_like(logits).scatter(-1, order, weights / weights.sum(-1, keepdim=True))


Made = tuple[Callable[..., Any], Callable[[int], tuple[Tensor, ...]]]
PROGRAMS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (Mlp(), lambda n: (rows(n),)),
    "encoder with mask": lambda: (Tagger(), lambda n: (ids(n), mask_of(n))),
    "encoder, norm first": lambda: (Tagger(norm_first=True), lambda n: (ids(n), mask_of(n))),
    "attention by hand": lambda: (Ranker(), lambda n: (ids(n), mask_of(n))),
    "decoder": lambda: (Decoder(), lambda n: (ids(n),)),
    "vision": lambda: (Vision(), lambda n: (torch.randn(n, 3, 8, 8, device="cuda"),)),
    "recommender": lambda: (Recommender(), lambda n: (ids(n)[:, 0].clone(), ids(n)[:, 1].clone(), rows(n))),
    "last token": lambda: (LastToken(), lambda n: (ids(n), mask_of(n))),
    "recurrent": lambda: (Speech(), lambda n: (torch.randn(n, LENGTH, WIDTH, device="cuda"),)),
    "policy": lambda: (policy_of(torch.randn(WIDTH, 3, device="cuda")), lambda n: (rows(n),)),
    "top p": lambda: (sampled, lambda n: (rows(n), torch.rand(n, device="cuda") + 0.5, torch.rand(n, device="cuda"))),
}


@pytest.mark.parametrize(
    ("name", "pure"), [*((name, False) for name in PROGRAMS), ("decoder", True), ("recurrent", True), ("top p", True)]
)
@ON_ONE
def test_a_servers_program_is_padded(name: str, pure: bool, platform: str) -> None:
    """Sizes between the buckets are replays once they were compared, and each row is eager's."""
    torch.manual_seed(0)
    step, make = PROGRAMS[name]()
    if isinstance(step, nn.Module):
        step = step.cuda().eval().requires_grad_(False)
    given = make(2)
    names = list(step.forward.__code__.co_varnames[1:] if isinstance(step, nn.Module) else step.__code__.co_varnames)
    dynamic = {each: {0: "batch"} for each in names[: len(given)]}
    g = gfxgraph.graphed(step, dynamic=dynamic, buckets=[4, 8], assume_pure=pure)
    with torch.no_grad():
        # For one sequence torch gives cuDNN another program than for several.
        for n in SIZES if name != "recurrent" else [each for each in SIZES if each > 1]:
            args = make(n)
            got, want = g(*args), step(*args)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert not getattr(g, "_gfxgraph", g)._padding.refusals, g.explain()
    assert g.stats()["replays"] >= 4, g.explain()
