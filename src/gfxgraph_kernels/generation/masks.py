"""Attention masks of a step as transformers' own loop makes them, from buffers at fixed addresses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.masking_utils import create_masks_for_generate

from gfxgraph import torch_names
from gfxgraph_kernels.generation.cache import CACHE

if TYPE_CHECKING:
    from gfxgraph_kernels.generation.decode import Decoder


def of_a_step(decoder: Decoder) -> Any:
    """The masks of one token, as ``prepare_inputs_for_generation`` makes them."""
    made = getattr(decoder.model, "create_masks_for_generate", create_masks_for_generate)
    like = torch.empty((decoder.batch, 1, 0), dtype=decoder.model.dtype, device=decoder.mask.device)

    def masks(mask: Tensor) -> Any:
        return made(
            config=decoder.model.config,
            inputs_embeds=like,
            attention_mask=mask,
            position_ids=decoder.position_ids,
            block_sequence_ids=None,
            token_type_ids=None,
            mm_token_type_ids=None,
            is_first_iteration=False,
            **{CACHE: decoder.cache},
        )

    if not decoder.cache.place.is_full:
        return masks(decoder.mask)
    # A full window ends at the query: it sees the same columns of a mask that moves along with it.
    seen = masks(decoder.mask.index_select(1, decoder.in_window + decoder.position))
    if not isinstance(seen, dict):
        return seen
    everything = masks(decoder.mask)
    return {kind: seen[kind] if kind == "sliding_attention" else everything[kind] for kind in seen}


def to_add(decoder: Decoder) -> Any:
    """The masks of a step as numbers to add, made once instead of by torch's attention in every layer."""
    masks = of_a_step(decoder)
    dtypes = {layer.keys.dtype for layer in decoder.cache.layers}
    if decoder.model.config._attn_implementation != "sdpa" or len(dtypes) > 1:
        return masks
    like = {"dtype": dtypes.pop(), "device": decoder.mask.device}
    nothing, everything = torch.full((), 0.0, **like), torch.full((), -math.inf, **like)
    return torch_names.tree_map_only(
        Tensor, lambda mask: torch.where(mask, nothing, everything) if mask.dtype is torch.bool else mask, masks
    )
