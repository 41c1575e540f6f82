"""What a stretch of work changes outside its graph: taken before it runs, put back after.

External tensors that it writes and the random generators. Work that ran and does not count (a
reference run, a fallback that failed half-way) is undone by this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.capture.memory import Layout, overwrite, tensor_of


class Effects:
    """State from before some work.

    Args:
        mutated: external tensors that the work writes, or where they lie.
        generators: every generator that it may draw from.
    """

    def __init__(self, mutated: Iterable[Tensor | Layout], generators: Iterable[Any]) -> None:
        self.tensors = [tensor_of(item) for item in mutated]
        self._wait_for_host_tensors()
        with torch.inference_mode():
            self.contents = [tensor.clone() for tensor in self.tensors]
        self._states = [(generator, generator.get_state()) for generator in generators]

    def put_back(self) -> None:
        """Make everything as it was; may be called again after more work."""
        self._wait_for_host_tensors()
        with torch.inference_mode():
            # Newest first: where two saved views overlap, the older content is the right one.
            for tensor, saved in zip(reversed(self.tensors), reversed(self.contents)):
                overwrite(tensor, saved)
        for generator, state in self._states:
            generator.set_state(state)

    def _wait_for_host_tensors(self) -> None:
        # A copy into pinned memory returns before it has happened.
        if not all(tensor.is_cuda for tensor in self.tensors):
            torch.cuda.current_stream().synchronize()
