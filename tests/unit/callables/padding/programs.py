"""Small programs, and whether their rows may be padded: what ``test_dependence`` judges and then runs.

A program is a function of tensors; ``like`` makes its arguments for any number of rows. ``dynamic`` gives the
dim that holds them. ``refused`` is the operation that a refusal must name; None where padding does no harm.
"""

# ruff: noqa: E501 - a program a line

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

H = 6


@dataclass
class Program:
    step: Callable[..., Any]
    like: Callable[[int], tuple[Any, ...]]
    dynamic: dict[int, dict[int, str]]
    refused: str | None = None


PROGRAMS: dict[str, Program] = {}


def fine(name: str, step: Any, like: Any, dynamic: Any) -> None:
    assert name not in PROGRAMS
    PROGRAMS[name] = Program(step, like, dynamic)


def refused(name: str, op: str, step: Any, like: Any, dynamic: Any) -> None:
    assert name not in PROGRAMS
    PROGRAMS[name] = Program(step, like, dynamic, op)


def rows(n: int) -> tuple[Any, ...]:
    return (torch.randn(n, H),)


def two(n: int) -> tuple[Any, ...]:
    return torch.randn(n, H), torch.randn(n, H)


def cube(n: int) -> tuple[Any, ...]:
    return (torch.randn(n, 4, H),)


def images(n: int) -> tuple[Any, ...]:
    return (torch.randn(n, 4, 8, 8),)


def ids(n: int) -> tuple[Any, ...]:
    return (torch.randint(0, 9, (n,)),)


def tokens(n: int) -> tuple[Any, ...]:
    return (torch.randint(0, 9, (n, 5)),)


def seeded(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make()


X: Any = {0: {0: "n"}}
XY: Any = {0: {0: "n"}, 1: {0: "n"}}
XYZ: Any = {0: {0: "n"}, 1: {0: "n"}, 2: {0: "n"}}
W = seeded(lambda: torch.randn(H, H))
TABLE = seeded(lambda: torch.randn(10, H))


def module(make: Callable[[], nn.Module]) -> nn.Module:
    return seeded(make).eval().requires_grad_(False)


# -- rows on their own ----------------------------------------------------------------------------------
for _name, _step in {
    "relu": lambda x: x.relu(),
    "linear": lambda x: F.linear(x, W, W[0]),
    "matmul": lambda x: x @ W,
    "addmm": lambda x: torch.addmm(W[0], x, W),
    "addmm with rows added": lambda x: torch.addmm(x, x, W),
    "mlp": lambda x: F.gelu(x @ W) @ W + x,
    "layer norm": lambda x: F.layer_norm(x, (H,), W[0], W[1]),
    "rms norm": lambda x: F.rms_norm(x, (H,), W[0]),
    "softmax of features": lambda x: x.softmax(-1),
    "log softmax of features": lambda x: x.log_softmax(1),
    "sort of features": lambda x: x.sort(1).values,
    "argsort of features": lambda x: x.argsort(1),
    "topk of features": lambda x: x.topk(2).values,
    "argmax of features": lambda x: x.argmax(1),
    "max of features": lambda x: x.max(1).values + x.min(1)[0],
    "median of features": lambda x: x.median(1).values,
    "mean of features": lambda x: x - x.mean(1, keepdim=True),
    "variance of features": lambda x: x.var(1) + x.std(-1),
    "var_mean of features": lambda x: torch.var_mean(x, 1)[0],
    "norm of features": lambda x: x / x.norm(dim=1, keepdim=True),
    "normalize": lambda x: F.normalize(x, dim=1),
    "logsumexp of features": lambda x: x.logsumexp(1),
    "any of features": lambda x: (x > 0).any(1),
    "cumsum of features": lambda x: x.cumsum(1),
    "flip of features": lambda x: x.flip(1),
    "roll of features": lambda x: x.roll(2, 1),
    "transposed": lambda x: x.t() * 2,
    "flattened": lambda x: x.reshape(-1) + 1,
    "flattened and back": lambda x: (x.reshape(-1) * 2).view(-1, 3, 2).transpose(1, 2).reshape(-1, H),
    "column": lambda x: x[:, 1] * 2,
    "split of features": lambda x: x.split(3, 1)[1] * x.chunk(2, -1)[0],
    "unbind of features": lambda x: x.unbind(1)[2] + 1,
    "cat of features": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "stack in front": lambda x: torch.stack([x, x + 1]),
    "repeat of features": lambda x: x.repeat(1, 2),
    "repeat in a new dim": lambda x: x.repeat(2, 1, 1),
    "repeat_interleave of rows": lambda x: x.repeat_interleave(2, 0),
    "expand": lambda x: x[:, None].expand(-1, 3, -1) * 2,
    "pad of features": lambda x: F.pad(x, (1, 2)),
    "one hot": lambda x: F.one_hot(x.argmax(1), H),
    "where": lambda x: torch.where(x > 0, x, 0 * x),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "positions": lambda x: x + torch.arange(x.shape[0])[:, None],
    "ones of its size": lambda x: x + torch.ones(x.shape[0], 1),
    "zeros like": lambda x: torch.zeros_like(x),
    "full of its size": lambda x: torch.full((x.shape[0], 2), 3.0),
    "written in place": lambda x: x.add_(1) * 2,
    "column written": lambda x: x[:, 0].mul_(3),
    "diagonal of a product": lambda x: torch.einsum("ni,ni->n", x, x),
    "einsum": lambda x: torch.einsum("ni,ij->nj", x, W),
    "outer product of each row": lambda x: torch.einsum("ni,nj->nij", x, x),
    "fft": lambda x: torch.fft.fft(x, dim=1).abs(),
    "glu": lambda x: F.glu(x, 1),
    "clamp": lambda x: x.clamp(-1, 1).pow(2).rsqrt(),
    "prelu": lambda x: F.prelu(x, W[0, :1]),
    "half precision": lambda x: (x.half() @ W.half()).float(),
    "to and back": lambda x: x.to(torch.float64).sin().to(torch.float32),
    "a result that does not scale": lambda x: (W * 2, x * 2),
    "mean of rows that nobody uses": lambda x: (x.mean(0), x * 2)[1],
    "mask written": lambda x: x.index_put((x > 0,), torch.tensor(0.0)),
    "log probability of the best": lambda x: x.log_softmax(1).gather(1, x.argmax(1, keepdim=True)),
    "cosine similarity": lambda x: F.cosine_similarity(x, x.flip(1), dim=1),
    "scatter in a row": lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0),
    "top p": lambda x: x.softmax(1).sort(1, descending=True).values.cumsum(1) < 0.8,
    "autocast": lambda x: _autocast(x),
    "mse without reduction": lambda x: F.mse_loss(x, torch.zeros_like(x), reduction="none").mean(1),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, False),
}.items():
    fine(_name, _step, rows, X)


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, W).float()


# -- rows that meet -----------------------------------------------------------------------------------------
for _name, (_op, _step) in {
    "mean of rows": ("mean", lambda x: (x * 2).mean(0)),
    "centred": ("mean", lambda x: x - x.mean(0)),
    "sum of rows": ("sum", lambda x: x.sum(0)),
    "sum of all": ("sum", lambda x: (x * x).sum()),
    "sum over the size": ("sum|div", lambda x: x + x.sum(0) / x.shape[0]),
    "standard deviation of rows": ("std", lambda x: x.std(0)),
    "softmax of rows": ("_softmax", lambda x: x.softmax(0)),
    "sort of rows": ("sort", lambda x: x.sort(0)[0]),
    "topk of rows": ("topk", lambda x: x.topk(2, 0)[0]),
    "median of rows": ("median", lambda x: x.median(0).values),
    "argmax of rows": ("argmax", lambda x: x.argmax(0)),
    "maximum of computed positions": ("amax", lambda x: (x + torch.arange(x.shape[0])[:, None]).amax(0)),
    "mse": ("mse_loss", lambda x: F.mse_loss(x, torch.zeros_like(x))),
    "gram of features": ("matmul", lambda x: x.T @ x),
    "attention among rows": ("matmul", lambda x: torch.softmax(x @ x.T, -1) @ x),
    "masked causal by hand": (
        "matmul",
        lambda x: (x @ x.T).masked_fill(torch.ones(x.shape[0], x.shape[0]).triu(1) > 0, -1e9).softmax(-1) @ x,
    ),
    "convolution along rows": ("convolution", lambda x: F.conv1d(x.T[None], W[:, :, None].repeat(1, 1, 3))),
    "batch norm in training": (
        "batch_norm",
        lambda x: F.batch_norm(x, W[0].clone(), W[1].abs().clone(), training=True),
    ),
    "flip of rows": ("flip", lambda x: x.flip(0)),
    "flip there and back": ("cumsum|flip", lambda x: x.flip(0).cumsum(0).flip(0)),
    "roll of rows": ("roll", lambda x: x.roll(1, 0)),
    "times its size": ("mul", lambda x: (x + 1) * x.shape[0]),
    "over its number of elements": ("div", lambda x: x / x.numel()),
    "filled with its size": ("full|mul|fill|add|", lambda x: x + torch.full((2, 1), float(x.shape[0])).sum()),
    "positions from the end": ("flip", lambda x: x + torch.arange(x.shape[0]).flip(0)[:, None]),
    "positions counted down": (
        "arange|rsub|sub|add|mul",
        lambda x: x + (x.shape[0] - torch.arange(x.shape[0]))[:, None],
    ),
    "linspace": ("linspace|arange|lt|sub|mul|add|", lambda x: x + torch.linspace(0, 1, x.shape[0])[:, None]),
    "size returned": ("result", lambda x: (x * 2, x.shape[0])),
    "doubled by cat": ("cat", lambda x: torch.cat([x, x])),
    "row added behind": ("cat", lambda x: torch.cat([x, W[:1]])),
    "pad behind": ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 0, 2))),
    "pad behind, cut off too late": ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 0, 2))[: x.shape[0] + 1]),
    "pad behind, cut off in front": ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 0, 2))[2:]),
    "pad on both sides, cut off behind": ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 1, x.shape[0]))[: x.shape[0]]),
    "pairs flattened": ("reshape", lambda x: (x[:, None] - x[None]).reshape(-1, H)),
    "columns flattened": ("result", lambda x: x.T.reshape(-1) * 2),
    "second to last row": ("select", lambda x: x[-2] * 2),
    "last of computed rows": ("cumsum", lambda x: x.cumsum(0)[-1]),
    "last rows": ("slice", lambda x: x[-2:] * 2),
    "last row by its size": ("select|slice|index|", lambda x: x[x.shape[0] - 1] * 2),
    "second half": ("slice", lambda x: x[x.shape[0] // 2 :] * 2),
    "dropout in training": ("native_dropout|bernoulli", lambda x: F.dropout(x, 0.5, True)),
    "noise": ("rand|randn", lambda x: x + torch.randn_like(x)),
    "noise of its size": ("rand", lambda x: x + torch.rand(x.shape[0], 1)),
    "permutation": ("randperm", lambda x: x[torch.randperm(x.shape[0])]),
    "bernoulli": ("bernoulli", lambda x: torch.bernoulli(x.sigmoid())),
    "multinomial": ("multinomial", lambda x: torch.multinomial(x.softmax(1), 1)),
    "read by the host": ("_local_scalar_dense", lambda x: x * x.sum().item()),
    "chosen by a mask": ("index|nonzero|masked_select", lambda x: x[x > 0]),
    "nonzero": ("nonzero", lambda x: x.nonzero()),
    "unique": ("unique", lambda x: x.unique()),
    "row chosen by its value": ("index|remainder", lambda x: x[x[:, 0].abs().long() % x.shape[0]]),
    "rows counted by bincount": ("bincount|_local|", lambda x: torch.bincount(x.argmax(1), minlength=H)),
    "covariance": ("", lambda x: x.T.cov()),
    "distance between rows and their mean": ("mean", lambda x: (x - x.mean(0)).norm(dim=1)),
    "cumulative from the mean": ("mean", lambda x: (x - x.mean(0, keepdim=True)).cumsum(0)),
    "split into pieces": ("split|", lambda x: x.split(2)[0]),
    "reversed by index": ("index|", lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)]),
    "shifted by one": ("slice", lambda x: torch.cat([x[1:], x[:1]])),
    "eye": ("eye|", lambda x: x @ x.T + torch.eye(x.shape[0]).flip(0)),
    "trace": ("", lambda x: (x @ x.T).trace()),
    "group of rows": ("native_group_norm", lambda x: F.group_norm(x.T[None], 2)),
    "interleaved in a result": ("", lambda x: x.T.reshape(2, -1)),
    "layer norm over rows": ("native_layer_norm|", lambda x: F.layer_norm(x.T, (x.shape[0],))),
    "adaptive pool along rows": ("", lambda x: F.adaptive_avg_pool1d(x.T[None], 2)),
    "interpolate along rows": ("", lambda x: F.interpolate(x.T[None], scale_factor=2.0)),
    "cumsum of rows": ("cumsum", lambda x: x.cumsum(0)),
    "cummax of rows": ("cummax", lambda x: x.cummax(0).values),
    "gram": ("matmul", lambda x: x @ x.T),
    "differences of all pairs": ("result", lambda x: x[:, None] - x[None]),
    "first row": ("select", lambda x: x - x[0]),
    "last row": ("select", lambda x: x[-1] * 2),
    "all but the first row": ("slice", lambda x: x[1:] * 2),
    "all but the last row": ("slice", lambda x: x[:-1] * 2),
    "every second row": ("slice", lambda x: x[::2] * 2),
    "first rows": ("slice", lambda x: x[:2] * 2),
    "neighbours": ("slice", lambda x: x[1:] - x[:-1]),
    "cat behind a constant row": ("cat", lambda x: torch.cat([W[:1], x])),
    "pad in front of rows": ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 2, 0))),
    "pad behind, cut off again": ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 0, 2))[: x.shape[0]] * 2),
    "pad to a multiple, cut off again": (
        "constant_pad_nd",
        lambda x: F.pad(x, (0, 0, 0, 8 - x.shape[0] % 8))[: x.shape[0]] * 2,
    ),
    "tril": ("matmul", lambda x: (x @ x.T).tril()),
    "maximum of rows": ("amax", lambda x: x.amax(0)),
    "minimum and maximum of rows": ("max", lambda x: x.max() - x.min()),
    "any of rows": ("any", lambda x: (x > 0).any(0)),
    "all of rows": ("all", lambda x: (x > 0).all(0)),
    "pooled maximum of all": ("amax", lambda x: x - x.amax()),
    "foreach": ("_foreach_add", lambda x: torch._foreach_add([x, x * 2], 1.0)),
}.items():
    refused(_name, _op, _step, rows, X)

# -- two arguments ------------------------------------------------------------------------------------------
fine("sum of two", lambda x, y: x + y, two, XY)
fine("batched products", lambda x, y: x[:, None] @ y[:, :, None], two, XY)
fine("distances", lambda x, y: ((x - y) ** 2).sum(1), two, XY)
fine("lerp", lambda x, y: torch.lerp(x, y, 0.3), two, XY)
fine("first written", lambda x, y: x.copy_(y), two, XY)
fine("addcmul", lambda x, y: torch.addcmul(x, y, y, value=0.5), two, XY)
refused(
    "cross attention over constant keys",
    "scaled_dot_product_attention",
    lambda x: F.scaled_dot_product_attention(x[None], TABLE[None], TABLE[None]),
    rows,
    X,
)
refused("products over rows", "matmul", lambda x, y: x.T @ y, two, XY)
refused("rows as kernels", "convolution", lambda x, y: F.conv1d(x[:, :, None], y[:, :, None])[..., 0], two, XY)
refused("one behind the other", "cat", lambda x, y: torch.cat([x, y]), two, XY)
refused("correlation", "mean|mul|sum", lambda x, y: (x - x.mean(0)) * y, two, XY)
refused("a constant of its size", "", lambda x: x + torch.ones(5, 1), rows, X)


def flagged(n: int) -> tuple[Any, ...]:
    return torch.randn(n, H), torch.rand(()) > 0.5


refused("flag", "mean|where", lambda x, f: torch.where(f, x.mean(0), x[0]), flagged, X)
fine("flag of rows", lambda x, f: torch.where(f, x * 2, x - 1), flagged, X)
refused("flag before a maximum", "amax", lambda x, f: torch.where(f, x.amax(0), x[0]), flagged, X)


def gated(n: int) -> tuple[Any, ...]:
    return torch.randn(n, H), torch.rand(())


refused("gate", "mean", lambda x, f: x + f * x.mean(0), gated, X)
refused("temperature", "_softmax", lambda x, f: (x * f).softmax(0), gated, X)
fine("gate of rows", lambda x, f: x + f * x.flip(1), gated, X)


def with_mask(n: int) -> tuple[Any, ...]:
    return torch.randn(n, H), torch.rand(n) > 0.4


fine("mask of rows", lambda x, m: torch.where(m[:, None], x, -3.0), with_mask, XY)
refused("mask before a mean", "mean", lambda x, m: torch.where(m[:, None], x, x.mean(0)), with_mask, XY)
refused("masked sum", "sum", lambda x, m: (x * m[:, None]).sum(0), with_mask, XY)

# -- batches of more dims -------------------------------------------------------------------------------------
fine("merged dims", lambda x: (x.reshape(-1, H) @ W).view(x.shape), cube, X)
fine(
    "merged behind another dim",
    lambda x: (x.reshape(-1, H) @ W).view(x.shape),
    lambda n: (torch.randn(3, n, H),),
    {0: {1: "n"}},
)
fine("bmm", lambda x: x @ x.transpose(1, 2), cube, X)
fine("softmax within", lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x, cube, X)
fine(
    "heads",
    lambda x: x.view(x.shape[0], 4, 2, 3).transpose(1, 2).reshape(x.shape[0] * 2, 4, 3).sum(1).view(-1, 2, 3),
    cube,
    X,
)
fine("attention", lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]), cube, X)
fine(
    "causal attention",
    lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    cube,
    X,
)
fine("flatten", lambda x: x.flatten(1) * 2, cube, X)
fine("permute", lambda x: x.permute(2, 1, 0) * 2, cube, X)
fine("pooled within", lambda x: x.mean(1), cube, X)
refused("movedim", "cumsum", lambda x: x.movedim(0, 1).cumsum(1), cube, X)
fine("kv cache joined within", lambda x: torch.cat([TABLE[None].expand(x.shape[0], -1, -1), x], 1).sum(1), cube, X)
refused("merged and summed", "sum", lambda x: x.reshape(-1, H).sum(0), cube, X)
refused("merged and normalized", "mean|var_mean|", lambda x: x.reshape(-1, H) - x.reshape(-1, H).mean(0), cube, X)
refused("interleaved rows", "", lambda x: x.transpose(0, 1).reshape(-1, H), cube, X)
refused("softmax over merged", "_softmax", lambda x: x.reshape(-1).softmax(0), cube, X)
refused(
    "cumsum over interleaved rows",
    "cumsum|view|reshape",
    lambda x: x.transpose(0, 1).reshape(-1, H).cumsum(0).view(4, -1, H),
    cube,
    X,
)


def masked_attention(n: int) -> tuple[Any, ...]:
    return torch.randn(n, 4, H), torch.rand(n, 1, 1, 4) > 0.3


fine(
    "attention with a mask of rows",
    lambda x, m: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=m),
    masked_attention, XY,
)  # fmt: skip


def lengths(n: int) -> tuple[Any, ...]:
    return torch.randn(n, 4, H), torch.randint(1, 5, (n,))


def by_lengths(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    is_real = torch.arange(x.shape[1])[None] < n[:, None]
    return (x @ x.transpose(1, 2)).masked_fill(~is_real[:, None], -1e9).softmax(-1) @ x


fine("attention by lengths", by_lengths, lengths, XY)
fine(
    "pooled by lengths", lambda x, n: (x * (torch.arange(4) < n[:, None])[..., None]).sum(1) / n[:, None], lengths, XY
)
fine("last token by lengths", lambda x, n: x[torch.arange(x.shape[0]), n - 1], lengths, XY)
fine("divided by lengths", lambda x, n: n // (n + 1), lengths, XY)

# -- images and layers ---------------------------------------------------------------------------------------------
for _name, _make in {
    "convolution": lambda: nn.Conv2d(4, 8, 3),
    "grouped convolution": lambda: nn.Conv2d(4, 8, 3, groups=2, padding=1),
    "transposed convolution": lambda: nn.ConvTranspose2d(4, 8, 3),
    "batch norm in evaluation": lambda: nn.BatchNorm2d(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "max pool": lambda: nn.MaxPool2d(2),
    "average pool": lambda: nn.AvgPool2d(2),
    "adaptive pool": lambda: nn.AdaptiveAvgPool2d(3),
    "adaptive max pool": lambda: nn.AdaptiveMaxPool2d(1),
    "upsample nearest": lambda: nn.Upsample(scale_factor=2),
    "upsample bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "reflection pad": lambda: nn.ReflectionPad2d(1),
    "pixel shuffle": lambda: nn.PixelShuffle(2),
    "unfold": lambda: nn.Unfold(2),
    "conv net": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    ),
}.items():  # fmt: skip
    fine(_name, module(_make), images, X)
refused("instance norm", "batch_norm", module(lambda: nn.InstanceNorm2d(4, affine=True)), images, X)
fine(
    "grid sample",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    lambda n: (*images(n), torch.rand(n, 3, 3, 2)),
    XY,
)
fine("patches", lambda x: F.conv2d(x, torch.ones(5, 4, 4, 4), stride=4).flatten(2).transpose(1, 2), images, X)
refused("pool across the batch", "", lambda x: F.max_pool2d(x.permute(2, 3, 0, 1), 2), images, X)
refused(
    "first rows are channels", "convolution", lambda x: F.conv1d(x.flatten(2)[:, 0].T, torch.ones(1, 1, 3)), images, X
)
refused(
    "first rows as channels", "slice", lambda x: F.conv2d(x.transpose(0, 1)[:, :4], torch.ones(2, 4, 3, 3)), images, X
)
for _name, _layer in {"lstm": nn.LSTM, "rnn": nn.RNN}.items():
    _made = module(lambda: _layer(H, 5, batch_first=True))
    fine(_name, _made, cube, X)
_cell = module(lambda: nn.GRUCell(H, 5))
fine("gru cell", _cell, lambda n: (torch.randn(n, H), torch.randn(n, 5)), XY)
_time_first = module(lambda: nn.LSTM(H, 5))
fine("lstm, time first", lambda x: _time_first(x)[0], lambda n: (torch.randn(4, n, H),), {0: {1: "n"}})
refused("lstm along rows", "", lambda x: _time_first(x)[0], lambda n: (torch.randn(n, 4, H),), X)
_encoder = module(lambda: nn.TransformerEncoderLayer(H, 2, 8, batch_first=True))
fine("transformer encoder layer", _encoder, cube, X)
_decoder = module(lambda: nn.TransformerDecoderLayer(H, 2, 8, batch_first=True))
fine("transformer decoder layer", lambda x: _decoder(x, x * 2), cube, X)
refused("transformer encoder layer along rows", "", module(lambda: nn.TransformerEncoderLayer(H, 2, 8)), cube, X)

# -- attention to earlier rows ------------------------------------------------------------------------------------


def tokens_and_mask(n: int) -> tuple[Any, ...]:
    return torch.randn(2, n, H), torch.rand(2, n) > -1  # all set: what is not, is the program's own


LATER, BOTH = {0: {1: "n"}}, {0: {1: "n"}, 1: {1: "n"}}


def _attended(x: Any, mask: Any = None, **how: Any) -> Any:
    return F.scaled_dot_product_attention(x @ W, x.sin(), x, mask, **how)


def _by_place(x: Any, allowed: Callable[[Any, Any], Any], given: Any = None) -> Any:
    """Attention under a mask that is computed from places, and from a given one."""
    at = torch.arange(x.shape[1])
    mask = x.new_ones((), dtype=torch.bool) & allowed(at[:, None], at[None])[None]
    return _attended(x, mask if given is None else mask & given[torch.arange(2)[:, None, None], at[None, None]])


sequence = lambda n: tokens_and_mask(n)[:1]  # noqa: E731
fine("causal attention of a sequence", lambda x: _attended(x, is_causal=True), sequence, LATER)
fine("causal attention among rows", lambda x: _attended(x[None], is_causal=True)[0], rows, X)
fine("attention to earlier places", lambda x: _by_place(x, lambda q, k: k <= q), sequence, LATER)
fine("attention to near places", lambda x: _by_place(x, lambda q, k: (k <= q) & (k > q - 3)), sequence, LATER)
fine(
    "attention to earlier places of a mask", lambda x, m: _by_place(x, lambda q, k: k <= q, m), tokens_and_mask, BOTH
)
fine("attention to blocks", lambda x: _by_place(x, lambda q, k: (q // 2 == k // 2) & (k <= q)), sequence, LATER)
fine(
    "running count as an index",
    lambda x: x + TABLE[torch.ones(x.shape[1], dtype=torch.int64).cumsum(0) % 9][:, :H],
    sequence,
    LATER,
)
for _name, _step in {
    "attention to all places": lambda x: _attended(x),
    "attention to the next place": lambda x: _by_place(x, lambda q, k: k <= q + 1),
    "attention to later places": lambda x: _by_place(x, lambda q, k: k >= q),
    "attention to whole blocks": lambda x: _by_place(x, lambda q, k: q // 2 == k // 2),
    "attention to places or others": lambda x: _by_place(x, lambda q, k: (k <= q) | (k == 5)),
    "attention by content": lambda x: _attended(x, (x @ x.transpose(1, 2)) > 0),
}.items():
    refused(_name, "scaled_dot_product_attention|matmul", _step, sequence, LATER)
refused("attention from the end", "rsub", lambda x: _by_place(x, lambda q, k: x.shape[1] - k > q), sequence, LATER)
refused(
    "attention to a given mask",
    "scaled",
    lambda x, m: _attended(x, m[:, None].expand(2, m.shape[1], -1)),
    tokens_and_mask,
    BOTH,
)
refused(
    "attention to more of a mask",
    "scaled",
    lambda x, m: _by_place(x, lambda q, k: (k <= q) | m[0][None]),
    tokens_and_mask,
    BOTH,
)
refused("places of a mask that is written", "logical_not", lambda x, m: _written_mask(x), tokens_and_mask, BOTH)


def _written_mask(x: Any) -> Any:
    at = torch.arange(x.shape[1])
    mask = at[None] <= at[:, None]
    mask[:, 0] = True
    mask.logical_not_()
    return _attended(x, mask)


# -- indices --------------------------------------------------------------------------------------------------------
_embedding = module(lambda: nn.Embedding(10, H))
fine("embedding", lambda i: _embedding(i) * 2, ids, X)
fine("embedding of tokens", lambda i: _embedding(i).mean(1), tokens, X)
fine("table by index", lambda i: TABLE[i], ids, X)
fine("ids minus one", lambda i: F.embedding(i - 1, TABLE), lambda n: (torch.randint(1, 9, (n,)),), X)
refused("embedding bag", "_embedding_bag_forward_only", lambda i: F.embedding_bag(i, TABLE, mode="mean"), tokens, X)
refused("embedding mean", "mean", lambda i: _embedding(i).mean(0), ids, X)
fine(
    "positions as an index",
    lambda i: _embedding(i) + F.embedding(torch.arange(i.shape[0]), TABLE),
    ids,
    X,
)
fine("positions after others", lambda x: x * TABLE[torch.arange(x.shape[0]) + 2][:, :1], rows, X)
fine("positions in turn", lambda x: x * TABLE[torch.arange(x.shape[0]) % 3][:, :1], rows, X)
fine("positions limited", lambda x: x * TABLE[torch.arange(x.shape[0]).clamp(0, 4)][:, :1], rows, X)
refused("distances to a table", "_cdist_forward", lambda x: torch.cdist(x, TABLE[:, :H]), rows, X)
refused("distances from a table", "_cdist_forward", lambda x: torch.cdist(TABLE[:, :H].sin(), x, p=1.0), rows, X)
refused("distances in a batch", "_cdist_forward", lambda x: torch.cdist(x[:, None], x[:, None]), rows, X)
refused("distances of columns", "cdist", lambda x: torch.cdist(x.T, x.T), rows, X)
refused(
    "positions past a table",
    "embedding",
    lambda i: _embedding(i) + F.embedding(torch.arange(i.shape[0]) * 3, TABLE),
    lambda n: (torch.randint(0, 9, (n,)),),
    X,
)


def source(n: int) -> tuple[Any, ...]:
    return torch.randn(n, H), torch.randint(0, 2, (2,))


refused("index from the end", "index", lambda x, i: x[i], source, X)
refused("index into rows, dynamic", "index", lambda x, i: x[i], lambda n: (*rows(n), torch.randint(0, 2, (n,))), XY)
refused("index never below zero", "index", lambda x, i: x[i.clamp(min=0)], source, X)
refused("index_select of rows", "index_select", lambda x, i: x.index_select(0, i), source, X)
refused("index written from the end", "slice", lambda x, i: x.index_put((i,), x[:1] * 9), source, X)
refused("ring", "index|remainder", lambda x, i: x[i % x.shape[0]], source, X)
refused("index limited by the size", "index|clamp", lambda x, i: x[i.clamp(max=x.shape[0] - 1)], source, X)
fine("gather of features", lambda x, i: x.gather(1, i), lambda n: (*rows(n), torch.randint(0, H, (n, 2))), XY)
refused(
    "labels",
    "nll_loss",
    lambda x, y: F.cross_entropy(x, y, reduction="none"),
    lambda n: (*rows(n), torch.randint(0, H, (n,))),
    XY,
)
refused("loss", "nll_loss", lambda x, y: F.cross_entropy(x, y), lambda n: (*rows(n), torch.randint(0, H, (n,))), XY)


# -- writes ---------------------------------------------------------------------------------------------------------
def cached(n: int) -> tuple[Any, ...]:
    return torch.randn(n, H), torch.randperm(32)[:n], torch.randn(32, H)


def write_and_read(x: torch.Tensor, slot: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(0, slot, x)
    return cache[slot] * 2


def write_by_put(x: torch.Tensor, slot: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache[slot] = x + 1
    return x


def accumulate(x: torch.Tensor, slot: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache.index_add_(0, slot, x)
    return x


def count(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(1)
    return x * total


def count_rows(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x.shape[0])
    return x * 2


def sum_rows(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_((x + 1).sum(0))
    return x * 2


def front_of_buffer(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    buffer[: len(x)].add_(x)
    return x * 2


def decode(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(1, at, x[:, None])
    return F.scaled_dot_product_attention(x[:, None, None], cache[:, None], cache[:, None])[:, 0, 0]


def decode_by_rows(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cache[torch.arange(x.shape[0]), at] = x
    return cache.sum(1)


refused("cache by index", "index_copy", write_and_read, cached, XY)
refused("cache by index_put", "index_put", write_by_put, cached, XY)
refused("cache added to", "index_add", accumulate, cached, XY)
fine("calls counted", count, lambda n: (*rows(n), torch.zeros(())), X)
refused("rows counted", "add", count_rows, lambda n: (*rows(n), torch.zeros(())), X)
refused("rows summed", "sum", sum_rows, lambda n: (*rows(n), torch.zeros(H)), X)
refused("front of a buffer", "", front_of_buffer, lambda n: (*rows(n), torch.zeros(32, H)), X)
fine("decode with a static cache", decode, lambda n: (*rows(n), torch.randn(n, 7, H), torch.tensor([3])), XY)
fine(
    "decode, each row at its place",
    decode_by_rows,
    lambda n: (*rows(n), torch.randn(n, 7, H), torch.randint(0, 7, (n,))),
    XYZ,
)
refused(
    "scatter into a table",
    "index_put",
    lambda x, i: torch.zeros(10, H).index_put((i,), x),
    lambda n: (*rows(n), torch.randperm(10)[:n]),
    XY,
)
refused(
    "histogram", "scatter_add|index_put", lambda i: torch.zeros(10).scatter_add(0, i, torch.ones(i.shape[0])), ids, X
)
refused(
    "row of the padding written", "select_scatter|select", lambda x: torch.select_scatter(x, W[0], 0, -1), rows, X
)
refused("first row written", "select_scatter", lambda x: torch.select_scatter(x, W[0], 0, 0), rows, X)

# -- a sequence's length ---------------------------------------------------------------------------------------------
SEQ: Any = {0: {1: "n"}}


def sequences(n: int) -> tuple[Any, ...]:
    return (torch.randn(2, n, H),)


fine("token by token", lambda x: F.layer_norm(x @ W, (H,)), sequences, SEQ)
fine("rotary", lambda x: x * torch.arange(x.shape[1])[None, :, None].float().cos(), sequences, SEQ)
refused(
    "attention over the length",
    "scaled_dot_product_attention",
    lambda x: F.scaled_dot_product_attention(x, x, x),
    sequences,
    SEQ,
)
refused("pooled over the length", "mean", lambda x: x.mean(1), sequences, SEQ)
refused("lstm over the length", "", lambda x: _lstm(x)[0].flip(1), sequences, SEQ)
_lstm = module(lambda: nn.LSTM(H, 5, batch_first=True))
