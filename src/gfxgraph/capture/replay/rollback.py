"""Saves what some work changes outside its graph, and restores it.

That is tensors that the work writes and did not make, random generators, and anything else a caller names. The whole
package undoes work with this: a replay that stopped half-way, a reference run, and what a capture had to
execute to get real values (a plain capture computes nothing, and programs rely on that).

Invariants: if a tensor was saved twice, the older content is restored. A tensor that cannot be restored does not keep
the others from being restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.patches.torch_functions import STOCK, put_state, state_of
from gfxgraph.capture.replay.graph_tensors import Layout, has_layout, overwrite, tensor_of, used_on


class Rollback:
    """State from before some work.

    Args:
        places: tensors that the work writes, or their layouts.
        generators: every generator that it may draw from.
    """

    def __init__(self, places: Iterable[Tensor | Layout] = (), generators: Iterable[torch.Generator] = ()) -> None:
        self.tensors: list[Tensor] = []
        self.contents: list[Tensor] = []
        self._known: set[tuple[object, ...]] = set()
        self._states: list[tuple[torch.Generator, Tensor]] = []
        self._others: list[Callable[[], None]] = []
        self.save(places)
        self.save_states(generators)

    def __bool__(self) -> bool:
        return bool(self.tensors or self._states or self._others)

    def save(self, places: Iterable[Tensor | Layout], stream: torch.cuda.Stream | None = None) -> None:
        """Save tensors that are about to be written; one saved before keeps its older content.

        Args:
            stream: on which copies of them to the host may be pending; by default the current one.
        """
        fresh = {key: t for t in map(tensor_of, places) if (key := _key(t)) not in self._known}
        if not all(tensor.is_cuda for tensor in fresh.values()):
            _wait(stream, fresh.values())
        with torch_names._InferenceMode(True):
            self.contents += [tensor.clone() for tensor in fresh.values()]
        self.tensors += fresh.values()
        self._known.update(fresh)

    def save_states(self, generators: Iterable[torch.Generator]) -> None:
        """Save random states, given as generators or as handles on states."""
        self._states += [(generator, state_of(generator)) for generator in generators]

    def save_other(self, restore: Callable[[], None]) -> None:
        """Register ``restore`` to be called on restore; it must tolerate being called again."""
        self._others.append(restore)

    def rename_states(self, new: dict[int, torch.Generator]) -> None:
        """Assign the saved states to other handles.

        Args:
            new: the new handle by the ``id`` of the old one.
        """
        self._states = [(new.get(id(state), state), saved) for state, saved in self._states]

    def has_drawn(self) -> bool:
        """Whether a generator's state differs from the saved one."""
        return not all(torch.equal(state_of(generator), state) for generator, state in self._states)

    def restore(self, stream: torch.cuda.Stream | None = None) -> None:
        """Restore everything; may be called again after more work.

        Args:
            stream: restore on it, and wait for it before and after; by default on the current one, in stream order.

        Raises:
            RuntimeError: the first tensor that could not be restored; everything else was.
        """
        failed: RuntimeError | None = None
        _wait(stream, self.tensors)
        with torch_names._InferenceMode(True), torch.cuda.stream(stream) if stream is not None else nullcontext():
            # Newest first: if two saved views overlap, the older content must win.
            for tensor, saved in zip(reversed(self.tensors), reversed(self.contents)):
                if not saved.numel():
                    continue  # it held nothing, and may have been resized since, as an empty out= is
                try:
                    overwrite(tensor, saved)
                    if saved.is_cuda:  # the copy may come from another stream, where its memory is reused once freed
                        used_on(saved, torch.cuda.current_stream(saved.device))
                except RuntimeError as error:
                    failed = failed or error
            for generator, state in reversed(self._states):
                put_state(generator, state)
        if stream is not None:
            _wait(stream, ())
        for restore in self._others:
            restore()
        if failed is not None:
            raise failed


def _wait(stream: torch.cuda.Stream | None, tensors: Iterable[Tensor]) -> None:
    if stream is not None:
        STOCK["stream_synchronize"](stream)
    elif not all(tensor.is_cuda for tensor in tensors):  # a copy into pinned memory returns before it is done
        torch.cuda.current_stream().synchronize()


def _key(tensor: Tensor) -> tuple[object, ...]:
    if not has_layout(tensor):
        return (id(tensor),)
    return tensor.data_ptr(), tensor.size(), tensor.stride(), tensor.dtype
