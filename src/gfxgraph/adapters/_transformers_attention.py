"""Attention of one step with shared key and value heads, without repeating them.

Problem: with a mask, transformers repeats keys and values for the query heads that share them, because not every
backend of torch has kernels for both. In a step of one token that is most of attention's time. Idea: there are other
ways to compute the same numbers with torch. They are tried on the device, with the same shapes, dtype and settings: a
way whose bits differ from repeating is rejected, and the fastest of the rest is used.

Invariants:
  - a way is used only if every trial gave the same bits as repeating;
  - if repeating itself is not deterministic (cuDNN, beyond 64 tokens and many rows), bits cannot be compared: a trial
  of that length only has to be close, and at least one length must have been comparable.

Source: measured on an H100 (docs/decisions/0102).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gfxgraph.callables.signature import matmul_precision

Way = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
N_REPEATED = 4
"""Calls that check whether repeating is deterministic."""
N_DOUBTED = 32
"""Further calls if a way gave other bits: an order that changes only on a busy device is rarely seen."""
N_TIMED, N_TURNS = 20, 8
MOST_OF_MEMORY = 1 / 8
"""The share of free memory that a trial's keys and values may take."""
MET_A_CAPTURE = ("when stream is capturing", "previous error during capture")
"""Texts of CUDA's and HIP's statuses 900 and 901."""

_lock = threading.Lock()
_chosen: dict[Any, str] = {}


def _repeated(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """What transformers computes."""
    n = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), attn_mask=mask, scale=scale
    )


def _grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """torch's ``enable_gqa``; without cuDNN it computes differently."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def _packed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Heads that share keys, as several queries of one head."""
    batch, heads, _, width = q.shape
    n = heads // k.shape[1]
    made = F.scaled_dot_product_attention(
        q.reshape(batch, k.shape[1], n, width), k, v, attn_mask=mask.expand(batch, 1, n, -1), scale=scale
    )
    return made.reshape(batch, heads, 1, width)


def _folded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Each key head as a row of the batch, whose query heads all read the same memory."""
    batch, heads, _, width = q.shape
    shared, length = k.shape[1], k.shape[2]
    rows, n = batch * shared, heads // shared
    k, v = (x.reshape(rows, 1, length, width).expand(-1, n, -1, -1) for x in (k, v))
    mask = mask.expand(batch, shared, 1, length).reshape(rows, 1, 1, length)
    made = F.scaled_dot_product_attention(q.reshape(rows, n, 1, width), k, v, attn_mask=mask, scale=scale)
    return made.reshape(batch, heads, 1, width)


WAYS: dict[str, Way] = {"repeated": _repeated, "grouped": _grouped, "packed": _packed, "folded": _folded}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Bitwise equality, with NaN equal to NaN."""
    size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return bool((one.contiguous().view(size) == other.contiguous().view(size)).all())


def kernel_settings() -> tuple[Any, ...]:
    """Settings by which torch chooses kernels, besides the tensors: a graph keeps the kernels of its capture."""
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(),
        backends.math_sdp_enabled(),
        backends.cudnn_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        matmul_precision(),
        backends.matmul.allow_fp16_reduced_precision_reduction,
        backends.matmul.allow_bf16_reduced_precision_reduction,
    )


def choose(q: Tensor, k: Tensor, mask: Tensor, scale: float) -> str:
    """The implementation for calls like this one: a name of `WAYS`.

    Args:
        q: [batch, heads, 1, width].
        k: [batch, heads that are shared, length, width]; values are alike.
        mask: [batch or 1, 1, 1, length], to be added.
        scale: of the products, before the mask is added.
    """
    if not q.is_cuda:
        return "repeated"
    key = (q.shape, k.shape, mask.shape, q.dtype, mask.dtype, q.device, scale, kernel_settings())
    with _lock:
        if key not in _chosen:
            _chosen[key] = _try(q, k, mask, scale)
        return _chosen[key]


def lengths(most: int) -> list[int]:
    """Numbers of tokens to try: around each power of two, where kernels change how they split their work."""
    near = {5, most, most - 1, most // 2, most * 3 // 4}
    for power in range(4, most.bit_length()):
        near |= {2**power - 1, 2**power, 2**power + 1}
    return sorted(n for n in near if 0 < n <= most)


def _try(q: Tensor, k: Tensor, mask: Tensor, scale: float) -> str:
    n = q.shape[1] // k.shape[1]
    nbytes = k.numel() * k.element_size() * 2 * (2 + n)
    if n == 1 or nbytes > torch.cuda.mem_get_info(q.device)[0] * MOST_OF_MEMORY:
        return "repeated"
    generator = torch.Generator(q.device).manual_seed(0)

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)

    given: tuple[Tensor, Tensor, Tensor] = random(q), random(k), random(k)
    left = {name: way for name, way in WAYS.items() if name != "repeated"}
    # The given tensors may be Dynamo's fakes, with a shape but no values.
    n_compared, bias = 0, torch.zeros(mask.shape, dtype=mask.dtype, device=mask.device)
    for length in lengths(mask.shape[-1]):
        bias.zero_()
        bias[..., length:] = -torch.inf
        bias[0, ..., : length // 3] = -torch.inf
        wanted = _repeated(*given, bias, scale)
        is_steady = repeats_itself((*given, bias, scale), wanted, N_REPEATED - 1)
        for name in list(left):
            agrees = _agrees(left[name], (*given, bias, scale), wanted, is_steady)
            if not agrees and is_steady and not repeats_itself((*given, bias, scale), wanted, N_DOUBTED):
                is_steady = False
                agrees = _agrees(left[name], (*given, bias, scale), wanted, False)
            if not agrees:
                del left[name]
        n_compared += is_steady
    if not n_compared or not left:
        return "repeated"
    ways = ("repeated", *left)
    # Alternating: others use the device as well, and a busy moment must not decide.
    took = [{name: _took(WAYS[name], (*given, bias, scale)) for name in ways} for _ in range(N_TURNS)]
    return min(ways, key=lambda name: min(turn[name] for turn in took))


def repeats_itself(given: Any, wanted: Tensor, n: int) -> bool:
    """True if ``n`` further calls of transformers' implementation give exactly ``wanted``."""
    return all(same_bits(_repeated(*given), wanted) for _ in range(n))


def _agrees(way: Way, given: Any, wanted: Tensor, in_bits: bool) -> bool:
    try:
        made = [way(*given) for _ in range(2)]
    except RuntimeError as error:
        if any(said in str(error) for said in MET_A_CAPTURE):
            raise
        return False  # no kernel for it
    if in_bits:
        return all(same_bits(each, wanted) for each in made)
    return all(torch.allclose(each, wanted, rtol=1e-2, atol=1e-2) for each in made)


def _took(way: Way, given: Any) -> float:
    """Milliseconds of `N_TIMED` calls on the device."""
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(4_000_000)  # all calls are queued during the sleep, so only device time is measured
    begun.record()
    for _ in range(N_TIMED):
        way(*given)
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended)


# -- in a compiled step --------------------------------------------------------------------------------


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, way: str) -> Tensor:
    """The operation that a compiled step calls; [batch, heads, 1, width]."""
    return WAYS[way](q, k, v, mask, scale).contiguous()


def source_of_repeated(node: Any) -> Any:
    """The node whose heads ``node`` repeats, in the way transformers writes it; None for anything else."""
    if not _is_call(node, "reshape") or not _is_call(node.args[0], "expand"):
        return None
    picked = node.args[0].args[0]
    everything = slice(None, None, None)
    if getattr(picked.target, "__name__", "") != "getitem" or picked.args[1] != (
        everything,
        everything,
        None,
        everything,
        everything,
    ):
        return None
    return picked.args[0]


def _is_call(node: Any, name: str) -> bool:
    return getattr(node, "op", "") == "call_method" and node.target == name


def replacement(node: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The replacement for attention over repeated heads in a captured module; None to keep it.

    Args:
        node: of torch.fx, with Dynamo's ``example_value``.
    """
    kwargs = dict(node.kwargs)
    mask, scale = kwargs.pop("attn_mask", None), kwargs.pop("scale", None)
    if len(node.args) != 3 or mask is None or scale is None or any(kwargs.values()):
        return None  # dropout, is_causal, enable_gqa
    q, k, v = node.args
    k, v = source_of_repeated(k), source_of_repeated(v)
    if k is None or v is None:
        return None
    shown = [each.meta.get("example_value") for each in (q, k, v, mask)]
    if not all(isinstance(each, Tensor) and each.dim() == 4 for each in shown):
        return None
    if shown[0].shape[2] != 1 or shown[1].shape != shown[2].shape or shown[3].shape[1:3] != (1, 1):
        return None
    if shown[3].dtype is not shown[0].dtype or shown[3].shape[-1] != shown[1].shape[2]:
        return None
    way = choose(shown[0], shown[1], shown[3], scale)
    return None if way == "repeated" else (torch.ops.gfxgraph.attention, (q, k, v, mask, scale, way))
