"""Generation with a fixed cache: a step is two graphs, the model's and the choice of a token.

Problem: a step of transformers' loop is a thousand small launches and grows its tensors by one token.
Idea: everything a step touches has a fixed address, and a step is two launches: *forward* reads the token
and computes scores, *choose* picks the next token from them. They are separate because programs often change their
sampling settings and never the model: a new temperature costs a capture of ten nodes.

The prompt is a third graph, of its exact length, for at another one torch may choose other kernels. With our own
kernels, whose numbers are only near, it is a bucket's: padded behind with its last token, which no token before it
sees; one padded prompt is compared with an exact one. Each part runs eagerly the first time, as a real step, so that
no token waits for a capture; the second time it is captured, which computes nothing, and replayed. The host waits for
the device only to learn whether all rows are finished: for one group of steps while the next group is already queued.
What was computed past the end is cut off, and the random generator is set back accordingly.

Invariants:
  - a step runs the operations of transformers' own step, on the same values, in the same order;
  - nothing that a graph reads or writes is freed or moved while the graph lives;
  - a decoder's state belongs to one call at a time (the caller holds the model's lock).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.masking_utils import create_masks_for_generate

import gfxgraph_kernels as kernels
from gfxgraph import torch_names
from gfxgraph.callables.arena import Arena
from gfxgraph.callables.captured import Options
from gfxgraph.callables.graphed import Graphed
from gfxgraph_kernels.generation.cache import CACHE, CachePosition, FixedCache
from gfxgraph_kernels.generation.choice import TokenChoice
from gfxgraph_kernels.generation.loop import Loop, Request
from gfxgraph_kernels.model_parts import are_near

if TYPE_CHECKING:
    from gfxgraph_kernels.modules import Applied

MAX_CHOICES = 16
"""Most captured ways of choosing that a decoder keeps."""
MAX_PROMPTS = 16
"""Most lengths of prompts with a graph; others are read eagerly."""
MOST_PROMPT_TOKENS = 4096
"""Of all rows; a larger prompt keeps the device busy for longer than its launches take."""
GRANULE = 16
"""Smallest bucket of a prompt, in tokens; there are four to eight an octave."""
_OURS = frozenset({"attention_mask", "position_ids", CACHE})


class Decoder:
    """Decodes batches of one size with a cache of one length.

    Args:
        model: a causal language model of transformers, on a GPU.
        place: the arena of its graphs.
        batch: rows.
        cache_len: tokens that the cache holds; one less than a result may have.
        counts: the model's calls, tokens and waits.
        applied: the kernels in the model's modules; None if there are none.
    """

    def __init__(
        self, model: Any, place: Arena, batch: int, cache_len: int, counts: Counter[str], applied: Applied | None
    ) -> None:
        self._model = weakref.ref(model)
        self.arena = place
        self.batch, self.capacity = batch, cache_len + 1
        self.is_choosing = applied is not None and applied.is_choosing
        self.is_padding = bool(applied is not None and applied.swapped)
        """Whether prompts are padded to buckets."""
        self.was_compared = False
        """Whether a padded prompt has been compared."""
        device = model.device
        config = model.config.get_text_config(decoder=True)

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.counters = zeros(1 + batch)
        """Both kinds of positions, so that one launch moves them on."""
        self.position, self.position_ids = self.counters[:1], self.counters[1:, None]
        self.cache = FixedCache(config, cache_len, CachePosition(self.position))
        self.token = zeros(batch, 1)
        self.history = zeros(batch, self.capacity)
        self.positions = zeros(batch, self.capacity)
        """Of the prompt's tokens."""
        self.mask = zeros(batch, self.capacity, dtype=torch.bool)
        self.masks: Tensor | dict[str, Tensor] | None = None
        """Masks of a step, in which each token makes its slot visible; None if they are made anew in each step."""
        self.ignored, self.unfinished = zeros(batch), zeros(batch)
        self.alive = zeros(self.capacity)
        """By token index: 0 if all rows were finished with that token."""
        self.logits = zeros(0)
        """[batch, vocabulary] float32; the vocabulary size is that of the prompt's scores."""
        self.in_window = torch.arange(self.cache.window, device=device) - (self.cache.window - 1)
        self.alive_seen = torch.zeros(self.capacity, dtype=torch.int64, pin_memory=True)
        self.tokens_seen = torch.zeros(self.capacity, batch, dtype=torch.int64, pin_memory=True)
        self.prompts: dict[tuple[int, bool], Graphed] = {}
        """By size, and whether there is a mask."""
        self.forwards: dict[bool, Graphed] = {}
        self.choices: OrderedDict[Any, Graphed] = OrderedDict()
        self.extras: dict[str, Any] = {}
        """Plain arguments that the model gets in every step."""
        self.has_positions = True
        self.counts = counts

    @property
    def model(self) -> Any:
        """The model; kept alive by the caller of its generate."""
        return self._model()

    # -- the parts that are graphs ------------------------------------------------------------------

    def read(self, size: int, has_mask: bool, is_padded: bool) -> None:
        """Fill the cache from ``size`` tokens; compute the scores of the next one, and the masks of a step.

        Args:
            is_padded: the prompt may end before, at ``self.position``.
        """
        self.cache.reset()
        given = {**self.extras, CACHE: self.cache, "attention_mask": self.mask[:, :size] if has_mask else None}
        if self.has_positions:
            given["position_ids"] = self.positions[:, :size]
        if is_padded and "logits_to_keep" in given:
            given["logits_to_keep"] = self.position - 1
        inputs = self.model.prepare_inputs_for_generation(
            self.history[:, :size], next_sequence_length=size, is_first_iteration=True, **given
        )
        scores = self.model(**inputs, return_dict=True).logits
        if is_padded:
            scores = scores if scores.shape[1] == 1 else scores.index_select(1, self.position - 1)
            unread = (torch.arange(size, device=scores.device) >= self.position)[:, None]
            for held in self.cache.held:
                held[:, :, :size].masked_fill_(unread, 0)
        scores = scores[:, -1]
        if self.logits.shape != scores.shape:
            self.logits = torch.empty_like(scores, dtype=torch.float32, memory_format=torch.contiguous_format)
        self.logits.copy_(scores)
        if not self.cache.window and not hasattr(self.model, "create_masks_for_generate"):
            with self.cache.place.decoding():
                made = to_add(self)
            if self.masks is None:
                self.masks = torch_names.tree_map_only(Tensor, torch.clone, made)
            for mask, new in zip(_each(self.masks), _each(made)):
                mask.copy_(new)

    def forward(self) -> None:
        """Read the token; compute the scores of the next one."""
        with self.cache.place.decoding():
            for mask in _each(self.masks):
                mask.index_fill_(-1, self.position, mask.dtype is torch.bool)  # 0 is added to what is seen
            masks = to_add(self) if self.masks is None else self.masks
            inputs = {**self.extras, "input_ids": self.token, CACHE: self.cache, "attention_mask": masks}
            if self.has_positions:
                inputs["position_ids"] = self.position_ids
            scores = self.model(**inputs, return_dict=True).logits
        self.counters.add_(1)
        self.logits.copy_(scores[:, -1])

    def choose(self, choice: TokenChoice, scores: Tensor) -> None:
        """Pick the next token and store it everywhere."""
        if self.is_choosing:
            tokens = kernels.sample(scores) if choice.do_sample else kernels.greedy(scores)
        elif choice.do_sample:
            tokens = torch.multinomial(torch.nn.functional.softmax(scores, dim=-1), num_samples=1).squeeze(1)
        else:
            tokens = torch.argmax(scores, dim=-1)
        if choice.pad is not None:
            tokens = tokens * self.unfinished + choice.pad * (1 - self.unfinished)
        self.token.copy_(tokens[:, None])
        self.history.index_copy_(1, self.position, self.token)
        if choice.eos is not None:
            self.unfinished.copy_(self.unfinished & ~choice.eos(self.token, None))
            self.alive.index_copy_(0, self.position, self.unfinished.max()[None])

    # -- a call -------------------------------------------------------------------------------------

    def generate(self, request: Request) -> Any:
        """Answer one call of generate.

        Returns:
            The result of transformers' loop.
        """
        self.read_prompt(request)
        loop = Loop(self, request)
        length = request.input_ids.shape[1]
        self.counts["calls"] += 1
        with self.model._optimize_model_for_decode():
            while True:
                length += 1
                self._next_token(request, loop, length)
                if loop.is_over(length) or length >= request.max_length:
                    break
                self._step_forward()
        length = loop.finish(length)
        if request.streamer is not None:
            request.streamer.end()
        return self.history[:, :length].clone()

    def read_prompt(self, request: Request) -> None:
        """Initialize the buffers, fill the cache from the prompt and compute the scores of the first token."""
        ids, kwargs = request.input_ids, request.model_kwargs
        n_prompt = ids.shape[1]
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        extras = {name: value for name, value in kwargs.items() if name not in _OURS}
        has_positions = positions is not None
        if (extras, has_positions) != (self.extras, self.has_positions):
            self.forwards.clear()
            self.prompts.clear()
            self.extras, self.has_positions = extras, has_positions
        # Filled with the prompt's last token: what a processor must ignore is at the prompt's beginning.
        self.history.copy_(ids[:, -1:].expand_as(self.history))
        self.history[:, :n_prompt] = ids
        has_mask = mask is not None and not bool(mask.all())
        self.mask.fill_(True)
        if has_mask:
            self.mask[:, :n_prompt] = mask
        if request.choice.ignored is not None:
            self.ignored.copy_(request.choice.ignored)
        self.position.fill_(n_prompt)
        self.unfinished.fill_(1)
        if positions is not None:
            self.positions.copy_(positions[:, -1:].expand_as(self.positions))
            self.positions[:, :n_prompt] = positions
            self.position_ids.copy_((positions[:, -1:] + 1).expand_as(self.position_ids))
        self._read(n_prompt, has_mask)
        self.cache.place.n_cached = n_prompt

    def _read(self, n_prompt: int, has_mask: bool) -> None:
        """Read the prompt, as a graph if its length has one or gets one."""
        granule = max(GRANULE, 1 << max(0, n_prompt.bit_length() - 3))
        size = min(-(-n_prompt // granule) * granule, self.cache.window or self.capacity, self.capacity - 1)
        is_padded = self.is_padding and size >= n_prompt
        size = size if is_padded else n_prompt
        part = self.prompts.get((size, has_mask))
        if part is None and len(self.prompts) < MAX_PROMPTS and self.batch * size <= MOST_PROMPT_TOKENS:
            read = functools.partial(self.read, size, has_mask, is_padded)
            part = self.prompts[size, has_mask] = self._part(read, f"a prompt of {self.batch} rows")
        if part is None:
            self.counts["eager_prompts"] += 1
            self.read(n_prompt, has_mask, False)
            return
        if size == n_prompt or self.was_compared:
            part()
            return
        self.was_compared = True
        self.read(n_prompt, has_mask, False)
        wanted = self.logits.to(self.model.dtype, copy=True)
        part()
        if not are_near(self.logits.to(self.model.dtype), wanted):
            self.is_padding = False
            self.prompts.clear()
            why = "padding changes a prompt: it is read at its length"
            self.arena.state.report("fallback", why, type(self.model).__name__)
            self.read(n_prompt, has_mask, False)

    def _step_forward(self) -> None:
        is_full = self.cache.place.is_full = self.cache.full_windows
        part = self.forwards.get(is_full)
        if part is None:
            part = self.forwards[is_full] = self._part(self.forward, f"one token of {self.batch} rows")
        part()
        self.cache.place.n_cached += 1

    def _next_token(self, request: Request, loop: Loop, length: int) -> None:
        """Choose the token that makes the rows ``length`` long."""
        choice, n_seen = request.choice, length - 1
        if choice.outside:
            self.choose(choice, choice.processors(self.history[:, :n_seen].clone(), self.logits.clone()))
            return
        if loop.part is None or n_seen in loop.key_changes_at:
            key = choice.key(n_seen)
            loop.part = self.choices.get(key)
            if loop.part is None:
                loop.part = self.choices[key] = self._part(
                    lambda: self.choose(choice, choice.scores(self.history, n_seen, self.logits, self.ignored)),
                    "the choice of a token",
                )
            self.choices.move_to_end(key)
            while len(self.choices) > MAX_CHOICES:
                self.choices.popitem(last=False)
        loop.part()

    def _part(self, fn: Callable[[], None], what: str) -> Graphed:
        """A function over the decoder's own buffers, which first runs eagerly, then as a graph."""
        return Graphed(fn, Options(assume_pure=True), name=f"{type(self.model).__name__}, {what}")

    @property
    def is_warm(self) -> bool:
        """True if the next step of the model needs no capture first."""
        part = self.forwards.get(self.cache.full_windows)
        return part is not None and bool(part.graphs or part.why_eager)

    def report(self) -> dict[str, Any]:
        """Sizes, what is captured, and why the rest is not."""
        parts = [*self.prompts.values(), *self.forwards.values(), *self.choices.values()]
        return {
            "batch": self.batch,
            "cache_len": self.capacity - 1,
            "cache_bytes": sum(tensor.numel() * tensor.element_size() for tensor in self.cache.held),
            "prompts": sum(bool(part.graphs) for part in self.prompts.values()),
            "forwards": sum(bool(part.graphs) for part in self.forwards.values()),
            "nodes": [sum(map(_n_nodes, part.graphs)) for part in self.forwards.values()],
            "choices": sum(bool(part.graphs) for part in self.choices.values()),
            "why_eager": sorted({part.why_eager for part in parts if part.why_eager}),
        }


def _each(masks: object) -> list[Tensor]:
    """The tensors of masks: one, or one for each kind of layer."""
    found = masks.values() if isinstance(masks, dict) else [masks]
    return [mask for mask in found if isinstance(mask, Tensor)]


def _n_nodes(graph: Any) -> int:
    """Nodes of a graph, as far as they can be counted."""
    return sum(segment.n_nodes or 0 for segment in graph._program.segments)


# -- masks -----------------------------------------------------------------------------------------------------


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
