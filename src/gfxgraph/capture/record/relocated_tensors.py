"""Moving tensors that other captures use.

Problem: when the shape of a moving tensor (dynamic_shapes.py) changes, a replay points it at other memory. Another
graph that was captured with it goes on using the old memory: silently wrong, and possibly freed. Idea: the other
capture remembers where each such tensor lay, and keeps that memory as a *home* of the tensor. A result of the home's
shape is copied there, so that graph reads it; for any other shape that graph's replay raises GuardMismatch.

Invariant: a moving tensor that has the shape of a home lies there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from gfxgraph.capture.replay.graph_tensors import storage_address
from gfxgraph.capture.replay.replay_steps import HostStep, SegmentStep, Step
from gfxgraph.core.tape import TapeValue, leaves, where_of
from gfxgraph.process import process

_moving: dict[int, tuple[weakref.ref[Tensor], weakref.ref[HostStep]]] = {}
"""Every moving tensor of the process, by ``id``, with the step that makes it."""


def note(tensor: Tensor, step: HostStep) -> None:
    """Register ``tensor`` as one that ``step`` makes and moves."""
    key = id(tensor)
    _moving[key] = weakref.ref(tensor, lambda _: _moving.pop(key, None)), weakref.ref(step)


def watch(steps: list[Step], externals: dict[TapeValue, Tensor]) -> list[Step]:
    """A program's steps, with a check inserted before each segment that uses a tensor moved by another program."""
    others = [
        (tensor, made)
        for tensor, made in _alive()
        if id(tensor) in made.moving and not any(made is step for step in steps)
    ]
    if not others:
        return steps
    found: list[Step] = []
    for step in steps:
        if isinstance(step, SegmentStep):
            used = [tensor for value, tensor in externals.items() if value in _used(step)]
            found += [AtHome(tensor, made) for tensor, made in others if _is_among(tensor, used)]
        found.append(step)
    return found


def _alive() -> list[tuple[Tensor, HostStep]]:
    pairs = [(tensor(), step()) for tensor, step in list(_moving.values())]
    return [(tensor, step) for tensor, step in pairs if tensor is not None and step is not None]


def _used(step: SegmentStep) -> set[TapeValue]:
    return {value for entry in step.tape.entries for value in (*leaves(entry.args), *leaves(entry.kwargs))}


def _is_among(tensor: Tensor, used: Iterable[Tensor]) -> bool:
    """True if a segment uses the tensor, or another view of its memory."""
    start = storage_address(tensor)
    return any(each is tensor or (start and each.is_cuda and storage_address(each) == start) for each in used)


class AtHome(Step):
    """Checks, before a segment that uses another program's moving tensor, that the tensor lies where it lay at
    capture.
    """

    def __init__(self, tensor: Tensor, made: HostStep) -> None:
        self._tensor = weakref.ref(tensor)
        self._home = tensor.detach()
        self._made = made.name, where_of(made.code, made.lasti)
        if id(tensor) not in made.views:  # memory owned by others must not be copied into
            made.homes.setdefault(id(tensor), []).append(self._home)

    def run(self, program: Any) -> None:
        tensor = self._tensor()
        if tensor is None:  # the tensor is gone, so nothing can see another value of it
            return
        home = self._home
        if tensor.size() == home.size() and tensor.data_ptr() == home.data_ptr():
            return
        op, where = self._made
        raise process.mismatch(
            "moved_tensor", op=op, where=where, expected=tuple(home.size()), actual=tuple(tensor.size())
        )

    def __str__(self) -> str:
        return f"a check of the result of {self._made[0]}, which another graph computes"
