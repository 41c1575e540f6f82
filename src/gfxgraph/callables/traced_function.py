"""A user's function that becomes a graph of a conditional, a loop or several ranks.

    call ── new to Dynamo ──> ``run``: one eager call through Dynamo, which shows what was read
         ── whole ──────────> ``world``: a graph that was captured in it may be replayed while ``is_same()``
         ── in pieces ──────> ``run``: Dynamo's code, each of its graphs captured, Python between them

The function itself is captured: a whole trace means that in Python the function only reads what
the world watches. So a capture evaluates no guards, and its static arguments need no trace of their own.

Invariant: a graph is replayed only in the world that it was captured in. Source: decision 0113.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.pieces.piece import make_piece
from gfxgraph.callables.signature import (
    Args,
    Kwargs,
    has_buffer,
    tensor_key,
    what_changed,
    why_from_outside,
    why_in_pieces,
)
from gfxgraph.callables.trace.frontend import IDLE, RAISED, Frontend, Untraceable
from gfxgraph.callables.trace.world import World
from gfxgraph.capture.replay.graph_tensors import has_layout, kind_of, size_of
from gfxgraph.process import bridge

MAX_KEYS = 256


class TracedFunction:
    """One function, the worlds that it was traced in, and why its calls are not a single graph.

    Args:
        fn: the function or module.
        name: its name in reports.
    """

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.fn = fn
        self.name = name
        self.why_eager = ""
        """Why the last call examined was not one graph; "" if it may be."""
        self.not_whole: Counter[str] = Counter()
        """Calls without a graph of their own, by reason."""
        self._front = Frontend(fn, functools.partial(make_piece, name=name), dynamic=False)
        self._worlds: dict[Any, World] = {}
        self._untraceable = ""
        self._reported: set[str] = set()

    def world(self, key: Any, args: Args, kwargs: Kwargs) -> World | None:
        """The world of this call if it is one graph there; None for a call that needs ``run``.

        Args:
            key: the same for calls of the same shapes, constants and modes.
        """
        world = self._worlds.get(key)
        if world is not None and not world.why_pieces and world.is_same():
            return world
        self.why_eager = self._untraceable
        if self.why_eager:
            return None
        world = self._find(args, kwargs)
        if world is None:
            self._worlds.pop(key, None)
            return None
        if len(self._worlds) >= MAX_KEYS:
            self._worlds.clear()
        self._worlds[key] = world
        self.why_eager = first_line_of(world.why_eager or world.why_pieces)
        return None if self.why_eager else world

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call without a graph for the whole of it."""
        if torch.cuda.is_current_stream_capturing():
            return self.fn(*args, **kwargs)
        if self._front.keeps:
            self._count(self._front.keeps)
            return self.fn(*args, **kwargs)
        if self._untraceable:
            return self._in_pieces(self._untraceable, args, kwargs)
        world = self._find(args, kwargs)
        if world is None:
            return self._traced(args, kwargs)
        if world.why_eager:
            self._count(world.why_eager)
            return self.fn(*args, **kwargs)
        if world.why_pieces:
            return self._in_pieces(world.why_pieces, args, kwargs)
        return self.fn(*args, **kwargs)

    # -- inside ---------------------------------------------------------------------------------------

    def _find(self, args: Args, kwargs: Kwargs) -> World | None:
        world = self._front.find(args, kwargs)
        if world is None or world.why_pieces or world.why_eager:
            return world
        if self._front.has_moved(world, args, kwargs):
            self._front.rebind(world, args, kwargs)
        for owner, name, value in world.stores:  # a replay does not set them
            if getattr(owner, name, None) is not value:
                setattr(owner, name, value)
        return world

    def _traced(self, args: Args, kwargs: Kwargs) -> Any:
        why = self._front.why_no_more()
        if why:
            differs = self._front.why_not(args, kwargs)
            self._count(why, f" (failed last: {differs})" if differs else "")
            return self.fn(*args, **kwargs)
        before = _tensor_keys((args, kwargs))
        try:
            result, world = self._front.trace(args, kwargs)
        except Untraceable as error:
            self._untraceable, result = error.args
            self._count(self._untraceable)
            return result
        except Exception:
            self._count(RAISED)
            raise
        world.why_pieces = world.why_pieces or why_in_pieces(result, []) or why_from_outside(world.tensors)
        world.why_eager = what_changed(before, _tensor_keys((args, kwargs))) or world.why_eager
        if world.why_eager or world.why_pieces:
            self._count(world.why_eager or world.why_pieces)
        return result

    def _in_pieces(self, why: str, args: Args, kwargs: Kwargs) -> Any:
        self._count(why)
        return self._front.pieces(*args, **kwargs)

    def _count(self, why: str, more: str = "") -> None:
        why = first_line_of(why)
        self.not_whole[why] += 1
        if why not in self._reported and why != IDLE:
            self._reported.add(why)
            report(f"it is not one graph: {why}{more}", self.name)


def first_line_of(why: str) -> str:
    """The reason, without Dynamo's explanations below it."""
    return why.partition("\n")[0]


def report(reason: str, name: str) -> None:
    """Count and report a call that is not a replay."""
    state = bridge.process_for_callables()
    if state is not None:
        state.report("fallback", reason, name)


def why_shared(worlds: Iterable[World], given: Iterable[Tensor], written: Iterable[Tensor]) -> str:
    """Why a graph cannot serve these arguments: they share memory that it reads or writes in another way; else "".

    Args:
        given: the call's tensors; a graph reads copies of them.
        written: those of them that the graph writes to.
    """
    homes = [home(t) for t in given]
    changed = [home(t) for t in written]
    for world in worlds:
        if world.written_homes and world.written_homes.intersection(homes):
            return "an argument shares memory that it also writes to under another name"
        if changed and world.homes.intersection(changed):
            return "it writes to an argument that it also reads under another name"
    if changed and any(homes.count(home) > 1 for home in changed):
        return "it writes to an argument that shares memory with another one"
    return ""


def home(tensor: Tensor) -> int:
    """Address of a tensor's storage, whatever part of it the tensor is."""
    return tensor.untyped_storage().data_ptr() if has_layout(tensor) else id(tensor)


def _tensor_keys(tree: Any) -> list[Any]:
    tensors = [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]
    return [tensor_key(t) if has_buffer(t) else (kind_of(t), size_of(t), t.dtype, t.device) for t in tensors]
