"""A bounded while loop on a device predicate, as launches of one graph.

Problem: whether a while loop goes on is known on the device. Waiting for the answer before each step leaves the
device idle while the answer and the next launch take their time; HIP has no while nodes like CUDA's. Idea: one step
is a graph whose effect depends on a flag on the device:

    seen  = state if active, else unchanged              what the body reads
    state = body(seen) if active, else unchanged
    steps += active
    active = active and condition(state) and steps < max_steps

So a step launched after the loop has ended changes nothing: several are launched before the host reads the flag.
``seen`` stays at the last state for which the condition held, so that an extra step never runs the body
on a state that the program excluded (an index past the end).

A body that writes other tensors than its state, or draws random numbers, must not run too often. The capture's tape
shows this, and then the flag is read after each step.

What condition and body read besides the state is known from Dynamo (worlds.py). A loop whose condition or
body reads something that has changed runs eagerly once more and is captured for that too. One that is not a single
graph, because Python runs between its parts, runs in Python with its parts captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena, beside, current_arena, draws, span, writes_of
from gfxgraph.callables.captured import CAPTURED, NO_GPU, WARM_UP, CapturedCallable, Options
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.inputs import copy_in, like
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.signature import InPieces, RunEagerly, has_buffer
from gfxgraph.callables.trace.dynamo import shield
from gfxgraph.capture.replay.graph_tensors import size_of
from gfxgraph.capture.undo import unbroken
from gfxgraph.errors import CaptureError

AHEAD = 4
"""Steps launched from one reading of the flag to the next."""
MAX_KEPT = 16
"""Most states and worlds that have graphs; the oldest is dropped first."""


class _Steps:
    """Steps over one memory: the state, the flag that says whether the loop goes on, and a step as a graph."""

    def __init__(self, loop: WhileLoop, state: Sequence[Tensor]) -> None:
        device = state[0].device
        self._loop = loop
        self.current = [like(t) for t in state]
        self.seen = [like(t) for t in state]
        self.active = torch.zeros((), dtype=torch.bool, device=device)
        self.holds = torch.zeros((), dtype=torch.bool, device=device)
        self.n_done = torch.zeros((), dtype=torch.int64, device=device)
        # What condition and body read is known: these steps are for one world.
        self.run = Graphed(self._step, Options(warmup=0, assume_pure=True), name=loop.name)

    def begin(self, state: Sequence[Tensor]) -> None:
        """Make ``state`` the one that the next step reads."""
        copy_in(self.current, state)
        copy_in(self.seen, state)
        self.holds.copy_(self._loop.condition(*state).reshape(()))
        self.active.copy_(self.holds)
        self.n_done.zero_()

    def _step(self) -> None:
        active = self.active.clone()
        for seen, now in zip(self.seen, self.current):
            seen.copy_(torch.where(active, now, seen))
        made = _checked(self._loop.body(*self.seen), self.seen)
        for now, new in zip(self.current, made):
            now.copy_(torch.where(active, new, now))
        self.n_done.add_(active)
        self.holds.copy_(self._loop.condition(*self.current).reshape(()))
        self.active.copy_(active & self.holds & (self.n_done < self._loop.max_steps))

    @property
    def may_lead(self) -> bool:
        """Whether steps are launched before it is known that they are needed: an extra one would go unnoticed."""
        graph = next(iter(self.run.graphs), None)
        if graph is None or graph.is_opaque or draws(graph):
            return False
        own = [span(t) for t in (*self.current, *self.seen, self.active, self.holds, self.n_done)]
        return all(any(a <= begin and end <= b for a, b in own) for begin, end in map(span, writes_of(graph)))


class WhileLoop(CapturedCallable):
    """``while condition(*state): state = body(*state)``, at most ``max_steps`` times, on the device.

    Args:
        condition: takes the state, returns a one-element tensor.
        body: takes the state, returns the next one: tensors of the same shapes and dtypes.
        max_steps: the bound; `hit_bound` says afterwards whether it ended the loop.

    The first call for states of some shape runs eagerly and warms the body up; then a step is captured. Several steps
    are launched at a time if the body is known to change nothing but the state; kernels launched outside torch count
    as changing something.

    Raises:
        ValueError: ``max_steps`` is below 1.
    """

    def __init__(
        self,
        condition: Callable[..., Tensor],
        body: Callable[..., Any],
        *,
        max_steps: int,
    ) -> None:
        if max_steps < 1:
            raise ValueError("max_steps must be at least 1")
        if not (callable(condition) and callable(body)):
            raise TypeError(f"WhileLoop() takes two functions, a condition and a body, not {condition!r}, {body!r}")
        super().__init__("while loop")
        # As Dynamo sees them; they are captured as parts of a step, so not on their own.
        never = Options(warmup=sys.maxsize)
        self._test = Graphed(condition, never, make_piece=make_piece, name="condition of a while loop")
        self._turn = Graphed(body, never, make_piece=make_piece, name="body of a while loop")
        self.condition, self.body = condition, body
        self.max_steps = max_steps
        self._last: tuple[Tensor | int, Tensor | bool] = 0, False
        self._known: dict[Any, _Steps] = {}
        self._place: Arena | None = None
        self.n_launches = 0
        """Graph launches of the last call; 0 if it ran eagerly."""

    @property
    def n_steps(self) -> int:
        """Steps that the last call made; reading it waits for the device."""
        return int(self._last[0])

    @property
    def hit_bound(self) -> bool:
        """True if the last call ended at ``max_steps`` with its condition still true; reading it waits for the
        device.
        """
        return self.n_steps >= self.max_steps and bool(self._last[1])

    def stats(self) -> dict[str, Any]:
        """``captures`` of steps, ``replays`` and ``eager`` (by reason) of whole loops."""
        return {**super().stats(), "captures": sum(steps.run.stats()["captures"] for steps in self._known.values())}

    @property
    def runs_ahead(self) -> bool:
        """True if steps are launched before it is known that they are needed."""
        return any(steps.may_lead for steps in self._known.values())

    @unbroken
    def __call__(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Run the loop from ``state``; return the final state in new tensors."""
        _check_state(state, state)
        place = current_arena()
        if place is not self._place:  # another device, or the bridge was switched off since
            self._place = place
            self._known.clear()
        with place.lock if place is not None else nullcontext():
            self.n_launches = 0
            if place is None or torch.cuda.is_current_stream_capturing():
                self.eager.count(NO_GPU if place is None else CAPTURED)
                return self._eagerly(*state)
            place.follow(torch.cuda.current_stream())
            key = self._key(state)
            steps = self._known.get(key)
            if steps is None:
                made = beside(place, self._eagerly, state, {})
                self.eager.count(self.why_eager or WARM_UP)
                key = self._key(state)
                if key is not None:
                    self._known[key] = _Steps(self, state)
                    while len(self._known) > MAX_KEPT:
                        del self._known[next(iter(self._known))]
                return made  # type: ignore[no-any-return]
            self.why_eager = steps.run.why_eager
            if self.why_eager:
                self.eager.count(self.why_eager)
                return beside(place, self._eagerly, state, {})  # type: ignore[no-any-return]
            self.n_replays += 1
            with torch.no_grad():
                steps.begin(state)
                self._launch(steps)
                self._last = steps.n_done, steps.holds
                return tuple(t.clone() for t in steps.current)

    # -- inside -------------------------------------------------------------------------------------------

    def _key(self, state: tuple[Tensor, ...]) -> Any:
        """What calls of one graph share, the worlds of the functions among it; None if one is not a graph, or not
        traced yet, or has no buffers.
        """
        self.why_eager = ""
        if not all(map(has_buffer, state)):
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in state):
            self.why_eager = "its state needs gradients"  # a loop without iterations returns its inputs
            return None
        try:
            keys = tuple(each.signature_of(state) for each in (self._test, self._turn))
        except (RunEagerly, InPieces) as reason:
            self.why_eager = reason.why.partition("\n")[0]
            return None
        return keys if None not in keys else None

    def _launch(self, steps: _Steps) -> None:
        """Launch steps until the flag says that the loop is over."""
        # The body must not see a state for which the condition never held, so the first answer is awaited.
        while self.n_launches < self.max_steps and steps.active.item():
            for _ in range(min(AHEAD if steps.may_lead else 1, self.max_steps - self.n_launches)):
                steps.run()
                self.n_launches += 1

    def _eagerly(self, *state: Tensor) -> tuple[Tensor, ...]:
        n_steps = 0
        holds = bool(self._test(*state))
        while holds and n_steps < self.max_steps:
            state = _checked(self._turn(*state), state)
            n_steps += 1
            holds = bool(self._test(*state))
        self._last = n_steps, holds
        return tuple(t.clone() for t in state)


def _checked(made: Any, before: Sequence[Tensor]) -> tuple[Tensor, ...]:
    state = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    _check_state(state, before)
    return state


def _check_state(state: Sequence[Any], before: Sequence[Tensor]) -> None:
    """Raise CaptureError `loop_state` unless the state consists of device tensors like those before."""
    was = [_kind(t) for t in before]
    now = [_kind(t) for t in state]
    if was != now or not now or not all(isinstance(t, Tensor) and t.is_cuda for t in state):
        raise CaptureError("loop_state", before=", ".join(was) or "nothing", after=", ".join(now) or "nothing")


def _kind(item: Any) -> str:
    if not isinstance(item, Tensor):
        return type(item).__name__
    return f"{str(item.dtype).removeprefix('torch.')}{list(size_of(item))} on {item.device}"


# Inside a graphed function a graph break: the host reads its flags.
shield(WhileLoop.__call__, from_us=True)
