"""Steps of one token with our kernels: the new forwards of a layer, an attention and an MLP.

A step of a layer is five launches, six if the keys are split: norm with query, key and value; rotary embedding,
write to the cache and attention; output and residual; norm with gate; down and residual.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gfxgraph_kernels.attention import rotary_attention
from gfxgraph_kernels.layers import linear, linear_three
from gfxgraph_kernels.model_parts import AttentionModules, Layer, Mlp, Norm, has_hooks
from gfxgraph_kernels.norms import norm
from gfxgraph_kernels.shapes import MOST_ROWS


class TokenSlot(NamedTuple):
    """A token's slot in a cache of fixed length.

    Attributes:
        keys, values: [batch, shared heads, length, width].
        position: [1] int64, the token's slot.
        is_counted: each layer has its own position, to be increased with the step.
    """

    keys: Tensor
    values: Tensor
    position: Tensor
    is_counted: bool


def why_not_any(x: Tensor, weight: Tensor) -> str:
    """Why the module's own forward must handle these rows, however many; "" if ours does."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return "gradients are needed"
    if x.dtype is not weight.dtype or torch.is_autocast_enabled(x.device.type):
        return "autocast, or a dtype that is not that of the weights"
    return ""


def why_not_rows(x: Tensor, weight: Tensor) -> str:
    """Why the module's own forward must handle these rows; "" if ours does."""
    reason = why_not_any(x, weight)
    return reason or f"more than {MOST_ROWS} rows" * (x.shape[:-1].numel() > MOST_ROWS)


def slot_of(facts: AttentionModules, attention: nn.Module, x: Tensor, given: dict[str, object]) -> TokenSlot | str:
    """The token's slot; or why an attention's, or its layer's, own forward must handle the call."""
    reason = why_not_rows(x, attention.q_proj.weight)  # type: ignore[arg-type, union-attr]
    if reason:
        return reason
    if x.dim() != 3 or x.shape[1] != 1:
        return "more than one token"
    cache = given.get("cache", given.get("past_key_values"))  # its name from transformers 5.24 on, and before
    if cache is None or given.get("position_embeddings") is None:
        return "no cache, or no rotary embedding"
    if given.get("output_attentions") or has_hooks(attention):
        return "attentions are requested, or a hook receives them"
    mask = given.get("attention_mask")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 4 or mask.shape[1:3] != (1, 1)):
        return "the mask is not one row of numbers"
    return place_in(cache, facts.index) or "the cache has no fixed slot for the token"


def attend(
    facts: AttentionModules, module: Any, x: Tensor, place: TokenSlot, before: Norm | None, weight: Tensor | None,
    given: Any,
) -> Tensor:  # fmt: skip
    """[batch, 1, heads * width] of a step, before the output layer."""
    batch = x.shape[0]
    biases = (module.q_proj.bias, module.k_proj.bias, module.v_proj.bias)
    q, k, v = linear_three(
        x, (module.q_proj.weight, module.k_proj.weight, module.v_proj.weight), biases,
        norm_weight=weight, norm_eps=before.eps if before else None, norm_offset=before.offset if before else 0.0,
        counter=place.position if place.is_counted else None,
    )  # fmt: skip
    q = q.view(batch, 1, facts.heads, facts.width)
    k, v = (each.view(batch, 1, facts.shared, facts.width) for each in (k, v))
    if facts.q_norm is not None:
        q = norm(q, module.q_norm.weight, None, facts.q_norm.eps, facts.q_norm.offset, facts.q_norm.is_rms)
    if facts.k_norm is not None:
        k = norm(k, module.k_norm.weight, None, facts.k_norm.eps, facts.k_norm.offset, facts.k_norm.is_rms)
    cos, sin = given["position_embeddings"]
    mask = given.get("attention_mask")
    made = rotary_attention(
        q, k, v, cos, sin, place.keys, place.values, place.position, behind=int(place.is_counted),
        mask=None if mask is None else mask[..., : place.keys.shape[2]], scale=facts.scale, softcap=facts.softcap,
    )  # fmt: skip
    return made.view(batch, 1, facts.heads * facts.width)


def place_in(cache: object, index: int) -> TokenSlot | None:
    """This token's slot in a cache of fixed length, made free; None for other caches, which update themselves."""
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list) or index >= len(layers):
        return None
    layer = layers[index]
    if not getattr(layer, "is_initialized", False):
        return None
    place = getattr(layer, "place", None)
    if place is not None:  # from the graphs of generate(): one position for all layers
        if not place.is_decoding:
            return None
        position = place.position
        if (
            getattr(layer, "is_sliding", False) and place.is_full
        ):  # the oldest leaves, and the last slot is the token's
            for held in (layer.keys, layer.values):
                held.copy_(held.roll(-1, 2))
            position = torch.full_like(position, layer.keys.shape[2] - 1)
        return TokenSlot(layer.keys, layer.values, position, False)
    if type(layer).__name__ == "StaticLayer" and type(layer).__module__ == "transformers.cache_utils":
        return TokenSlot(layer.keys, layer.values, layer.cumulative_length.view(1), True)
    return None


def mlp(facts: Mlp, module: Any, x: Tensor, before: Norm | None, weight: Tensor | None, residual: object) -> Tensor:
    """A gated MLP, with the norm before it and the sum after it."""
    is_early = before is not None  # then the rest of a layer is before it, which begins with a `linear_three`
    inner = linear(
        x, module.gate_proj.weight, activation=facts.activation, up=module.up_proj.weight, norm_weight=weight,
        norm_eps=before.eps if before else None, norm_offset=before.offset if before else 0.0, is_early=is_early,
    )  # fmt: skip
    return linear(inner, module.down_proj.weight, residual=residual, is_early=is_early)


def layer(facts: Layer, module: Any, x: Tensor, place: TokenSlot, given: dict[str, Any]) -> Tensor:
    """A whole decoder layer."""
    made = attend(facts.attention, module.self_attn, x, place, facts.before, module.input_layernorm.weight, given)
    output = module.self_attn.o_proj
    x = linear(made, output.weight, output.bias, residual=x, is_early=True)
    return mlp(facts.mlp, module.mlp, x, facts.between, module.post_attention_layernorm.weight, x)
