"""What a capture had to execute and must undo: external tensors and random generators.

A plain capture computes nothing, and programs count on it. A split must launch what was recorded so
that real values exist; what such work changes outside the graph is saved here before, and put back
when the capture ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.capture import intercept
from gfxgraph.capture.memory import Layout, overwrite, tensor_of
from gfxgraph.process import process


class Undo:
    """State from before the work that one capture executed."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._states: list[tuple[Any, Tensor]] = []
        self._has_failed = False

    def save(self, items: Iterable[Tensor | Layout], stream: Any) -> None:
        """Save tensors that are about to be written; one saved before keeps its older content."""
        have = {(t.data_ptr(), t.size(), t.stride()) for t, _ in self._tensors}
        for item in items:
            tensor = tensor_of(item)
            key = (tensor.data_ptr(), tensor.size(), tensor.stride())
            if key not in have:
                have.add(key)
                if not tensor.is_cuda:
                    intercept.stock("stream_synchronize")(stream)  # a copy to it may be on its way
                with torch.inference_mode():
                    self._tensors.append((tensor, tensor.clone()))

    def save_states(self, states: Iterable[Any]) -> None:
        """Save random states, each by a handle on it."""
        self._states += [(state, state.get_state()) for state in states]

    def rename_states(self, new: dict[int, Any]) -> None:
        """What was saved belongs to other handles now.

        Args:
            new: by the ``id`` of the old handle.
        """
        self._states = [(new.get(id(state), state), saved) for state, saved in self._states]

    def put_back(self, stream: Any) -> None:
        """Make everything as it was. It may be asked for again where it failed: then all is put back again.

        Raises:
            RuntimeError: the first tensor that could not be put back; the others were. A second time it is given up.
        """
        if not self._tensors and not self._states:
            return
        first_error: RuntimeError | None = None
        intercept.stock("stream_synchronize")(stream)
        with torch.inference_mode(), torch.cuda.stream(stream):
            # Newest first: where two saved views overlap, the older content is the right one.
            for tensor, saved in reversed(self._tensors):
                try:
                    overwrite(tensor, saved)
                except RuntimeError as error:
                    first_error = first_error or error
            for state, saved_state in reversed(self._states):
                state.set_state(saved_state)
        intercept.stock("stream_synchronize")(stream)
        if first_error is not None and not self._has_failed:
            self._has_failed = True
            raise first_error
        self._tensors, self._states = [], []
        if first_error is not None:
            process.require().report(
                "effects_not_undone",
                "a tensor that a split changed could not be put back",
                str(first_error).partition("\n")[0],
            )
            raise first_error
