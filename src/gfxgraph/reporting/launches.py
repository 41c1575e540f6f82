"""How many launches an eager operation makes, if no capture of the program shows it.

Problem: ``topk`` launches two or three kernels, a matrix product one or two, depending on size and library. Profilers
are slow, exclusive, and not always available on ROCm. Idea: a graph has one node per launch, so an
operation that has just run is captured once more, by itself, into a graph that is thrown away: a capture executes
nothing. This is done once per operation and sizes, and only if every launch is to be counted.

Invariants: this is done only for torch's own operations that draw no random numbers, do not wait, do not write to an
``out``, and change nothing on the host when called again: a capture does not hold back changes of a tensor's sizes or
of host memory. One that fails is not tried again and counts as one.

Source: docs/decisions/0183.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gfxgraph.callables import engine
from gfxgraph.capture import turns
from gfxgraph.capture.overloads import OpInfo, identity
from gfxgraph.capture.structure import written
from gfxgraph.process import process

MOST_CAPTURES = 512
AGREED = 8
"""After this many sizes with the same answer, an operation is not measured again."""
learnt: dict[str, int] = {}
"""By operation name, the launches of its last measured call: for sampling, which measures none."""


class LaunchCounts:
    """Known launch counts by operation and sizes, and the pool and stream to measure them."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}
        self._by_op: dict[int, list[int]] = {}
        self._device: tuple[torch.cuda.Stream, engine.SharedPool] | None = None
        self._n_captures = 0

    def of(self, info: OpInfo, args: Sequence[object], kwargs: Mapping[str, object] | None) -> int | None:
        """Launches of a call that has just run; None if unknown."""
        op = identity(info.func)
        key = (op, *map(_signature, args))
        known = self._known.get(key)
        if known is not None:
            return known or None
        answers = self._by_op.setdefault(op, [])
        if len(answers) >= AGREED and len(set(answers[-AGREED:])) == 1:
            return answers[-1] or None
        if not _may_be_captured(info, args, kwargs) or turns.underway() or self._n_captures >= MOST_CAPTURES:
            return None
        self._n_captures += 1
        found = self._count(lambda: info.func(*args, **(kwargs or {}))) or 0
        self._known[key] = found
        answers.append(found)
        if found:
            learnt[info.name] = found
        return found or None

    def _count(self, call: Callable[[], object]) -> int | None:
        state = process.require()
        if state.driver is None:
            return None
        if self._device is None or self._device[0].device_index != torch.cuda.current_device():
            stream = torch.cuda.Stream()
            try:
                self._device = stream, engine.SharedPool(state, stream)
            except engine.CaptureDied:
                self._n_captures = MOST_CAPTURES
                return None
        return engine.n_nodes_of(call, *self._device)


def _may_be_captured(info: OpInfo, args: Sequence[object], kwargs: Mapping[str, object] | None) -> bool:
    if not info.name.startswith("aten::") or info.draws or info.unsafe is not None or "out" in (kwargs or {}):
        return False
    if torch.Tag.inplace_view in info.func.tags:
        return False
    return not info.mutates or all(tensor.is_cuda for tensor in written(info.func, args, kwargs or {}))


def _signature(argument: object) -> object:
    if isinstance(argument, Tensor):
        return tuple(argument.shape), argument.stride(), argument.dtype
    if isinstance(argument, (list, tuple)):
        return tuple(map(_signature, argument))
    return argument if isinstance(argument, (int, bool, type(None))) else type(argument)
