"""Keys and values at fixed addresses: a static cache of transformers that a graph can write.

Problem: transformers' static cache depends on Python numbers (how much of a sliding window is
filled) and keeps a length tensor for every layer. A captured step would freeze the numbers, and
spends three small kernels per layer on its lengths. Idea: use its layers in subclasses that, while a graph
decodes, take the write position from one tensor shared by the whole model. The prompt goes through
transformers' own code, and a step writes the same numbers to the same places: bitwise identical.

A sliding window is either filling, and written like any other layer, or full, and moved by one at each
step. The host knows which; a decoder keeps one graph for each state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer
from transformers.masking_utils import create_masks_for_generate

from gfxgraph import torch_names

CACHE = next(n for n in inspect.signature(create_masks_for_generate).parameters if n in ("cache", "past_key_values"))
"""What a model and ``generate`` call the cache: ``past_key_values`` up to transformers 5.23."""


@dataclass(slots=True)
class CachePosition:
    """The position of the next token; shared by all layers of a cache."""

    position: Tensor
    """[1] int64, device: the index of the token that a step reads."""
    n_cached: int = 0
    """Tokens in the cache."""
    is_full: bool = False
    """True if the next token pushes the oldest out of the windows."""
    is_decoding: bool = False
    """True inside a step of one token, False while reading the prompt."""

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Inside it is a step."""
        self.is_decoding = True
        try:
            yield
        finally:
            self.is_decoding = False


class FixedLayer(StaticLayer):  # type: ignore[misc]
    """A layer of full attention."""

    def __init__(self, max_cache_len: int, place: CachePosition) -> None:
        super().__init__(max_cache_len)
        self.place = place

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values; return the whole cache."""
        if not self.place.is_decoding:
            return super().update(key_states, value_states, *args, **kwargs)  # type: ignore[no-any-return]
        self.keys.index_copy_(2, self.place.position, key_states)
        self.values.index_copy_(2, self.place.position, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Tokens seen: a number while reading the prompt, a device tensor in a step."""
        return self.place.position if self.place.is_decoding else self.place.n_cached


class FixedSlidingLayer(StaticSlidingWindowLayer):  # type: ignore[misc]
    """A layer of sliding-window attention."""

    def __init__(self, max_cache_len: int, sliding_window: int, place: CachePosition) -> None:
        super().__init__(max_cache_len, sliding_window)
        self.place = place

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values; return those in the window."""
        if not self.place.is_decoding:
            return super().update(key_states, value_states, *args, **kwargs)  # type: ignore[no-any-return]
        if self.place.is_full:
            self.keys.copy_(torch.cat((self.keys[:, :, 1:], key_states), dim=2))
            self.values.copy_(torch.cat((self.values[:, :, 1:], value_states), dim=2))
        else:
            self.keys.index_copy_(2, self.place.position, key_states)
            self.values.index_copy_(2, self.place.position, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width and start of the mask; in a step, the window's."""
        if not self.place.is_decoding:
            return super().get_mask_sizes(query_length)  # type: ignore[no-any-return]
        return self.max_cache_len, 0

    def get_seq_length(self) -> Any:
        """Tokens seen; in a full window the query is at its end."""
        if not self.place.is_decoding:
            return self.place.n_cached
        return self.max_cache_len - 1 if self.place.is_full else self.place.position


class FixedCache(StaticCache):  # type: ignore[misc]
    """A static cache with one `CachePosition`."""

    def __init__(self, config: object, max_cache_len: int, place: CachePosition) -> None:
        super().__init__(config=config, max_cache_len=max_cache_len)
        self.place = place
        self.layers: list[Any] = [self._fixed(layer, config, place) for layer in self.layers]

    @staticmethod
    def _fixed(layer: Any, config: Any, place: CachePosition) -> Any:
        if type(layer) is StaticSlidingWindowLayer:
            return FixedSlidingLayer(layer.max_cache_len, config.sliding_window, place)
        return FixedLayer(layer.max_cache_len, place)

    @property
    def full_windows(self) -> bool:
        """True if the next token pushes the oldest out of the sliding windows."""
        return 0 < self.window <= self.place.n_cached

    @property
    def window(self) -> int:
        """Width of the sliding windows; 0 if no layer has one."""
        return max((layer.max_cache_len for layer in self.layers if layer.is_sliding), default=0)

    @property
    def held(self) -> list[Tensor]:
        """Keys and values of all layers."""
        return [t for layer in self.layers if layer.is_initialized for t in (layer.keys, layer.values)]

    def reset(self) -> None:
        """Clear the cache by overwriting it, so that no stale value can leak through a mask."""
        self.place.n_cached, self.place.is_full, self.place.is_decoding = 0, False, False
        lengths = [layer.cumulative_length for layer in self.layers]
        for group in (self.held, [length for length in lengths if length.device == self.place.position.device]):
            if group:
                torch_names._foreach_zero_(group)
        for layer in self.layers:
            if layer.is_sliding:
                layer.cumulative_length_int = 0


def why_not(config: object) -> str:
    """Why a model of this configuration gets no fixed cache; "" if it gets one."""
    try:
        layers = StaticCache(config=config, max_cache_len=1).layers
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        return f"no static cache can be made for it ({type(error).__name__}: {error})"
    kinds = {type(layer).__name__ for layer in layers if type(layer) not in (StaticLayer, StaticSlidingWindowLayer)}
    if kinds:
        return f"its cache has layers of kind {', '.join(sorted(kinds))}"
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return "it uses chunked attention"
    if getattr(config, "sliding_window", None) is None and getattr(config, "attention_chunk_size", None):
        return "it uses chunked attention"
    return ""
