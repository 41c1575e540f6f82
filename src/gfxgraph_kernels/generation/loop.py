"""The bookkeeping of one generate call: when to stop, what a streamer gets, what to keep of each step.

The host asks the device once per group of steps whether all rows are finished, and takes the answer when the next
group is already queued, so that the device never waits for the host. What was computed past the end is cut
off, and the random generator is set back to its state after the last token that is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import StoppingCriteriaList

from gfxgraph_kernels.generation.choice import Stops, TokenChoice

if TYPE_CHECKING:
    from gfxgraph.callables.graphed import Graphed
    from gfxgraph_kernels.generation.decode import Decoder

GROUP = 4
"""Steps between two checks whether all rows are finished."""


@dataclass(slots=True)
class Request:
    """One call of generate, after transformers has prepared it."""

    input_ids: Tensor
    """[batch, prompt] int64, device."""
    model_kwargs: dict[str, Any]
    choice: TokenChoice
    stops: Stops
    max_length: int
    streamer: Any = None


@dataclass(slots=True)
class _PendingSteps:
    """A group of steps whose outcome is being copied to the host."""

    first: int
    end: int
    """Token indices, as in a range."""
    arrived: Any
    """torch.cuda.Event."""


@dataclass
class Loop:
    """The bookkeeping of one call's loop: when to stop, what to pass to a streamer, what to keep of each step."""

    decoder: Decoder
    request: Request
    part: Graphed | None = None
    looks: deque[_PendingSteps] = field(default_factory=deque)
    offsets: list[int] = field(default_factory=list)
    stopped_at: int = 0
    """Length at which all rows were finished; 0 while unknown."""

    def __post_init__(self) -> None:
        request = self.request
        self.first = self.unseen = request.input_ids.shape[1]
        self.key_changes_at = frozenset(request.choice.thresholds)
        self.looks_at_rows = request.choice.eos is not None or bool(request.stops.on_host)
        # Nothing may be computed past the end if a criterion is the caller's own code.
        self.is_exact = bool(request.stops.on_host)
        self.group = 1 if self.is_exact or request.streamer is not None else GROUP
        self.generator = torch.cuda.default_generators[self.decoder.logits.device.index or 0]

    def is_over(self, length: int) -> bool:
        """Record the step that made rows ``length`` long; True if generation is known to have ended."""
        request, decoder = self.request, self.decoder
        if request.choice.do_sample:
            self.offsets.append(self.generator.get_offset())
        if request.stops.on_host:
            self._ask_on_host(length)
        if not self.looks_at_rows and request.streamer is None:
            return False
        if length - self.unseen >= self.group:
            self._look(length)
        # Before it is a graph, the next step takes much longer: a streamer need not wait for it.
        is_last = self.is_exact or (request.streamer is not None and not decoder.is_warm)
        while len(self.looks) > (0 if is_last else 1) and not self.stopped_at:
            self._take(self.looks.popleft())
        return self.stopped_at > 0

    def finish(self, length: int) -> int:
        """Collect pending outcomes; return the length of the result."""
        if self.looks_at_rows or self.request.streamer is not None:
            if length > self.unseen:
                self._look(length)
            while self.looks and not self.stopped_at:
                self._take(self.looks.popleft())
        kept = self.stopped_at or length
        self.decoder.counts.update(tokens=kept - self.first, tokens_past_end=length - kept)
        if kept < length and self.offsets:
            self.generator.set_offset(self.offsets[kept - self.first - 1])
        return kept

    def _ask_on_host(self, length: int) -> None:
        decoder = self.decoder
        rows = decoder.history[:, :length].clone()  # a copy, because they may keep it
        done = StoppingCriteriaList(self.request.stops.on_host)(rows, None)
        decoder.unfinished.copy_(decoder.unfinished & ~done)
        decoder.alive[length - 1] = decoder.unfinished.max()

    def _look(self, end: int) -> None:
        """Start copying the outcome of the steps since the last check to the host."""
        decoder, first = self.decoder, self.unseen
        if self.looks_at_rows:
            decoder.alive_seen[first:end].copy_(decoder.alive[first:end], non_blocking=True)
        if self.request.streamer is not None:
            decoder.tokens_seen[first].copy_(decoder.token[:, 0], non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self.looks.append(_PendingSteps(first, end, arrived))
        self.unseen = end

    def _take(self, look: _PendingSteps) -> None:
        """Wait for a pending outcome and act on it."""
        look.arrived.synchronize()
        self.decoder.counts["waits"] += 1
        for index in range(look.first, look.end):
            if self.request.streamer is not None:
                self.request.streamer.put(self.decoder.tokens_seen[index].clone())
            if self.looks_at_rows and not int(self.decoder.alive_seen[index]):
                self.stopped_at = index + 1
                return
