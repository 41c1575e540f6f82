"""The operations composed of torch's own, in float32 and rounded once at the end, like the kernels.

They are used if no kernel can be, and are the reference for the kernels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh")


def activate(x: Tensor, kind: str) -> Tensor:
    if kind == "silu":
        return F.silu(x)
    if kind == "gelu":
        return F.gelu(x)
    return F.gelu(x, approximate="tanh") if kind == "gelu_tanh" else x


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float64 else x.float()


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, is_rms: bool) -> Tensor:
    v = _wide(x)
    if not is_rms:
        v = v - v.mean(-1, keepdim=True)
    v = v / torch.sqrt(v.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        v = v * (_wide(weight) + offset)
    if bias is not None:
        v = v + _wide(bias)
    return v.to(x.dtype)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, up: Tensor | None, residual: Tensor | None, kind: str,
    norm_weight: Tensor | None, eps: float | None, offset: float,
) -> Tensor:  # fmt: skip
    """``eps`` is the norm's before; None where there is none."""
    v = _wide(x)
    if eps is not None:
        v = norm(v, norm_weight, None, eps, offset, True)
    y = F.linear(v, _wide(weight), None if bias is None else _wide(bias))
    y = activate(y, kind)
    if up is not None:
        y = y * F.linear(v, _wide(up))
    if residual is not None:
        y = y + _wide(residual)
    return y.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [batch, tokens, heads, width]; cos, sin: [batch or 1, tokens, rotated width]."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    a, b = _wide(turned).chunk(2, -1)
    c, s = _wide(cos)[:, :, None], _wide(sin)[:, :, None]
    y = _wide(turned) * c + torch.cat((-b, a), -1) * s
    return torch.cat((y.to(x.dtype), rest), -1)


def attention(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, last: Tensor, scale: float, softcap: float
) -> Tensor:
    """q: [batch, heads, 1, width]; keys after ``last`` are not seen."""
    n = q.shape[1] // keys.shape[1]
    scores = _wide(q) @ _wide(keys).repeat_interleave(n, 1).transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + _wide(mask)
    unseen = torch.arange(keys.shape[2], device=q.device) > last
    scores = scores.masked_fill(unseen, -torch.inf)
    vs = _wide(values).masked_fill(unseen[:, None], 0.0)  # what is not seen may be anything, and 0 times it must be 0
    return (torch.softmax(scores, -1) @ vs.repeat_interleave(n, 1)).to(q.dtype)


def store(new: Tensor, cache: Tensor, slot: Tensor) -> None:
    """new: [batch, 1, heads, width]; a slot outside of the cache is not written."""
    at = slot.clamp(0, cache.shape[2] - 1)
    is_inside = (at == slot)[:, None]
    cache.index_copy_(2, at, torch.where(is_inside, new.transpose(1, 2).to(cache.dtype), cache.index_select(2, at)))


def choose(scores: Tensor, noise: Tensor | None, temperature: float) -> Tensor:
    v = _wide(scores)
    if noise is not None:
        v = v / temperature - torch.log(noise)
    return torch.argmax(v, -1)
