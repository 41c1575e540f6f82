"""Attention in three tiers: a library made for the device, torch's own, plain PyTorch.

The tiers compute the same thing in the same layout, so a program may run on whichever is there:

    1. ``flash_attn`` (ROCm: Composable Kernel or Triton) or aiter, for half types without a mask
    2. ``torch.nn.functional.scaled_dot_product_attention``
    3. the same as matmul, softmax, matmul: torch's own composition

A tier that cannot take a call is passed over; one that fails is logged once and not asked again.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gfxgraph.hardware.architectures import architecture

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
TIERS = ("library", "sdpa", "plain")
_failed: set[str] = set()


@lru_cache(maxsize=1)
def _library() -> tuple[str, Any] | None:
    """The first importable attention library, with its function; None where there is none."""
    for name, attribute in (("flash_attn", "flash_attn_func"), ("aiter", "flash_attn_func")):
        if importlib.util.find_spec(name) is None:
            continue
        try:
            function = getattr(importlib.import_module(name), attribute)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            log.info("%s is installed but cannot be used: %s", name, error)
            continue
        return name, function
    return None


def attention_tiers(arch: str = "") -> tuple[str, ...]:
    """The tiers that would be tried here, best first.

    Args:
        arch: a gfx name; architectures without matrix units skip the library, whose kernels need them.
    """
    row = architecture(arch)
    usable = _library() is not None and (row is None or row.matrix != "none")
    return TIERS if usable else TIERS[1:]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    tier: str | None = None,
) -> Tensor:
    """Scaled dot-product attention.

    Args:
        q: [batch, heads, q_len, head] any float dtype, any device.
        k: [batch, kv_heads, kv_len, head]; ``heads`` is a multiple of ``kv_heads`` (grouped queries).
        v: as ``k``.
        causal: query i sees keys up to i + kv_len - q_len, aligned at the end as in flash_attn.
        scale: 1/sqrt(head) where None.
        mask: added to the scores, or boolean with True for what is seen; broadcasts to [batch, heads, q, kv].
        tier: force one of ``TIERS``.

    Returns:
        [batch, heads, q_len, head], dtype of ``q``.

    Raises:
        ValueError: shapes that do not fit, or a tier that does not exist.
    """
    if tier is not None and tier not in TIERS:
        raise ValueError(f"tier {tier!r} is not one of {', '.join(TIERS)}")
    if q.dim() != 4 or k.shape != v.shape or q.shape[1] % k.shape[1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"attention: shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not fit")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    for name in (tier,) if tier else attention_tiers(_arch_of(q)):
        if name == "library":
            out = _try_library(q, k, v, causal, scale, mask)
            if out is not None:
                return out
            if tier:
                raise ValueError("the library tier cannot take this call")
        elif name == "sdpa":
            return _sdpa(q, k, v, causal, scale, mask)
        else:
            return _plain(q, k, v, causal, scale, mask)
    raise AssertionError("unreachable: the plain tier takes everything")


def _arch_of(q: Tensor) -> str:
    # lazily: devices are chosen before torch is loaded
    import torch

    if q.device.type != "cuda" or not torch.version.hip:
        return ""
    return str(getattr(torch.cuda.get_device_properties(q.device), "gcnArchName", ""))


def _try_library(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, mask: Tensor | None) -> Tensor | None:
    # lazily: devices are chosen before torch is loaded
    import torch

    found = _library()
    if found is None or found[0] in _failed or mask is not None:
        return None
    if q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16) or q.shape[-1] > 256:
        return None
    name, function = found
    try:
        out: Tensor = function(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), softmax_scale=scale, causal=causal
        )
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        _failed.add(name)
        log.warning("attention: %s failed (%s); using torch's own from here on", name, error)
        return None
    return out.transpose(1, 2)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, mask: Tensor | None) -> Tensor:
    # lazily: devices are chosen before torch is loaded
    from torch.nn.functional import scaled_dot_product_attention

    k, v = _grouped(q, k, v)
    square = q.shape[-2] == k.shape[-2]
    if causal and (not square or mask is not None):
        # is_causal aligns at the start and takes no mask beside it.
        mask, causal = _causal_mask(q, k, mask), False
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


def _plain(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, mask: Tensor | None) -> Tensor:
    # lazily: devices are chosen before torch is loaded
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return _sdpa(q, k, v, causal, scale, mask)


def _causal_mask(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    # lazily: devices are chosen before torch is loaded
    import torch

    q_len, kv_len = q.shape[-2], k.shape[-2]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
    if mask is None:
        return seen
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    groups = q.shape[1] // k.shape[1]
    if groups == 1:
        return k, v
    return k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
