"""Attention masks as transformers' own loop makes them, for steps and prompts that become graphs.

Problem: transformers omits a mask if every token is visible, which it checks on the device.
Inside a capture it cannot check, and makes the mask. Attention with a mask is another kernel, with different last
bits, and repeats keys and values for heads that share them. Idea: the loop has prepared the prompt's inputs
outside the capture, including the masks; if it omitted them, none are made while the prompt is read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_masks_for_generate

if TYPE_CHECKING:
    from gfxgraph.adapters._transformers_decode import Decoder

_REPLACED = threading.RLock()  # reentrant: a model may call another one's generate


@contextmanager
def none_made(config: Any) -> Iterator[None]:
    """Models called by this thread in this block make no masks: the caller has checked that none is needed.

    Args:
        config: the model's text configuration.
    """
    made, name, here = ALL_MASK_ATTENTION_FUNCTIONS, config._attn_implementation, threading.get_ident()
    if name not in made:
        yield
        return
    with _REPLACED:  # happens only a few times in a process; other threads wait
        usual, was_local = made[name], name in made._local_mapping

        def none(*args: object, **kwargs: object) -> Any:
            return None if threading.get_ident() == here else usual(*args, **kwargs)

        made[name] = none
        try:
            yield
        finally:
            if was_local:
                made[name] = usual
            else:
                del made[name]


def of_a_step(decoder: Decoder) -> Any:
    """The masks of one token, as ``prepare_inputs_for_generation`` makes them."""
    made = getattr(decoder.model, "create_masks_for_generate", create_masks_for_generate)
    like = torch.empty((decoder.batch, 1, 0), dtype=decoder.model.dtype, device=decoder.mask.device)

    def masks(mask: Tensor) -> Any:
        return made(
            config=decoder.model.config,
            inputs_embeds=like,
            attention_mask=mask,
            past_key_values=decoder.cache,
            position_ids=decoder.position_ids,
            block_sequence_ids=None,
            token_type_ids=None,
            mm_token_type_ids=None,
            is_first_iteration=False,
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
    return pytree.tree_map_only(
        Tensor, lambda mask: torch.where(mask, nothing, everything) if mask.dtype is torch.bool else mask, masks
    )
