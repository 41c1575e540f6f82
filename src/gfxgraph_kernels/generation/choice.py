"""Choosing the next token: which logits processors and stopping criteria a graph can contain.

A processor that reads only the scores can be captured with its parameters. One that reads the
tokens so far needs a tensor that grows, which no graph can contain; if the processor is not affected by
duplicate tokens, it gets the whole buffer, with the unused tail filled with the prompt's last token. All other
processors, and any that are not transformers' own, run between the graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria

_SCORES_ONLY = (
    processors.TemperatureLogitsWarper,
    processors.TopKLogitsWarper,
    processors.TopPLogitsWarper,
    processors.MinPLogitsWarper,
    processors.TypicalLogitsWarper,
    processors.EpsilonLogitsWarper,
    processors.SuppressTokensLogitsProcessor,
    processors.InfNanRemoveLogitsProcessor,
    processors.LogitNormalization,
)
_LENGTH_ONLY = (processors.MinLengthLogitsProcessor, processors.MinNewTokensLengthLogitsProcessor)


@dataclass(frozen=True)
class TokenChoice:
    """What one call of generate asks for, regarding the next token."""

    processors: Any
    """transformers' LogitsProcessorList."""
    do_sample: bool
    eos: Any
    """The EosTokenCriteria that the step itself evaluates; None if there is none."""
    pad: Tensor | None
    """The token for finished rows; None if rows are not padded."""
    outside: tuple[str, ...]
    """Processors that no graph can contain; if there are any, the token is chosen between graphs."""
    parts: tuple[Any, ...]
    """The key of a captured choice, apart from the length."""
    thresholds: tuple[int, ...]
    """Lengths at which processors start to behave differently."""
    ignored: Tensor | None = None
    """[batch] int64: leading tokens of each row that the repetition penalty ignores; None if it ignores none."""

    def key(self, length: int) -> tuple[Any, ...]:
        """The key of a captured choice for rows of ``length`` tokens."""
        return self.parts, tuple(length < threshold for threshold in self.thresholds)

    def scores(self, history: Tensor, length: int, logits: Tensor, ignored: Tensor) -> Tensor:
        """Apply the processors to ``logits`` in a graph.

        Args:
            history: [batch, capacity] int64, device: the tokens so far; the rest may be any of them.
            length: number of tokens; only compared with numbers.
            logits: [batch, vocabulary] float32, device.
            ignored: [batch] int64, device, static: this call's ``self.ignored``.
        """
        for processor in self.processors:
            if _ignores_by_row(processor):
                processor = copy(processor)
                processor.prompt_ignore_length = ignored
            seen = history[:, :length] if type(processor) in _LENGTH_ONLY else history
            logits = processor(seen, logits)
        return logits


def choice_of(listed: Any, stops: Stops, do_sample: bool, pad: Tensor | None) -> TokenChoice:
    """Determine what a call asks for; reads small tensors, so call it before the prompt is queued."""
    pad = pad if stops.pads_finished else None
    parts = tuple((type(processor), _numbers(processor)) for processor in listed)
    eos = () if stops.eos is None else _plain(stops.eos.eos_token_id)
    key = (parts, do_sample, eos, None if pad is None else int(pad))
    outside = tuple(type(processor).__name__ for processor in listed if not _fits(processor))
    thresholds = tuple(_threshold(processor) for processor in listed if type(processor) in _LENGTH_ONLY)
    ignored = next((each.prompt_ignore_length for each in listed if _ignores_by_row(each)), None)
    return TokenChoice(listed, do_sample, stops.eos, pad, outside, key, thresholds, ignored)


def _fits(processor: Any) -> bool:
    if type(processor) is processors.RepetitionPenaltyLogitsProcessor:
        return (_ignores_by_row(processor) or not processor.prompt_ignore_length) and processor.logits_indices is None
    return type(processor) in _SCORES_ONLY or type(processor) in _LENGTH_ONLY


def _ignores_by_row(processor: object) -> bool:
    """True for a repetition penalty with one number per row; the decoder provides that tensor."""
    return isinstance(getattr(processor, "prompt_ignore_length", None), Tensor)


def _threshold(processor: Any) -> int:
    if type(processor) is processors.MinLengthLogitsProcessor:
        return int(processor.min_length)
    return int(processor.prompt_length_to_skip + processor.min_new_tokens)


def _numbers(processor: Any) -> object:
    if not _fits(processor):
        return id(processor)
    if type(processor) in _LENGTH_ONLY:  # its length is in the thresholds
        return _plain(processor.eos_token_id)
    numbers = vars(processor) | ({"prompt_ignore_length": "by row"} if _ignores_by_row(processor) else {})
    return tuple((name, _plain(value)) for name, value in sorted(numbers.items()))


def _plain(value: object) -> Any:
    return tuple(value.flatten().tolist()) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class Stops:
    """The stopping criteria of one call, by where they are evaluated."""

    max_length: int | None
    eos: Any
    """Evaluated on the device in every step."""
    on_host: tuple[Any, ...]
    """Called after every step, as by transformers."""
    pads_finished: bool
    """transformers pads finished rows if any criterion has an ``eos_token_id``."""


def stops_of(listed: Sequence[Any]) -> Stops:
    """Split a StoppingCriteriaList."""
    lengths = [c.max_length for c in listed if type(c) is criteria.MaxLengthCriteria]
    ends = [c for c in listed if type(c) is criteria.EosTokenCriteria]
    in_graph = ends[0] if len(ends) == 1 else None
    others = tuple(c for c in listed if type(c) is not criteria.MaxLengthCriteria and c is not in_graph)
    pads = any(hasattr(c, "eos_token_id") for c in listed)
    return Stops(min(lengths) if lengths else None, in_graph, others, pads)
