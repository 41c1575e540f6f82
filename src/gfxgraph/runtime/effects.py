"""What a stretch of work changes outside its graph: taken before it runs, put back after.

External tensors that it writes and the random generators. Work that ran and does not count (a
reference run, a fallback that failed half-way) is undone by this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.runtime.memory import Layout, overwrite, tensor_of


class Effects:
    """State from before some work.

    Args:
        mutated: external tensors that the work writes, or where they lie.
        generators: every generator that it may draw from.
    """

    def __init__(self, mutated: Iterable[Tensor | Layout], generators: Iterable[Any]) -> None:
        with torch.inference_mode():
            self._tensors = [(tensor, tensor.clone()) for tensor in map(tensor_of, mutated)]
        self._states = [(generator, generator.get_state()) for generator in generators]

    def put_back(self) -> None:
        """Make everything as it was; may be called again after more work."""
        with torch.inference_mode():
            # Newest first: where two saved views overlap, the older content is the right one.
            for tensor, saved in reversed(self._tensors):
                overwrite(tensor, saved)
        for generator, state in self._states:
            generator.set_state(state)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Each tensor as it is now, with its content from then."""
        return list(self._tensors)
