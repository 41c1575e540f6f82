"""Loops as graphs: a bounded while loop on a device predicate, and several steps in one launch.

Problem: whether a while loop goes on is known on the device. Waiting for the answer before each step leaves the
device idle while the answer and the next launch take their time; HIP has no while nodes like CUDA's. Idea: one step
is a graph whose effect depends on a flag on the device:

    seen  = state if active, else unchanged              what the body reads
    state = body(seen) if active, else unchanged
    steps += active
    active = active and condition(state) and steps < max_steps

So a step launched after the loop has ended changes nothing: steps are launched ahead, and the host reads the flags as
they arrive. ``seen`` stays at the last state for which the condition held, so that an extra step never runs the body
on a state that the program excluded (an index past the end).

A body that writes other tensors than its state, or draws random numbers, must not run too often. The capture's tape
shows this, and then each step waits for the flag of the one before.

What condition and body read besides the state is known from Dynamo (worlds.py). A loop whose condition or
body reads something that has changed runs eagerly once more and is captured for that too. One that is not a single
graph, because Python runs between its parts, runs in Python with its parts captured.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena, beside, current_arena, upload
from gfxgraph.callables.captured import CAPTURED, NO_GPU, WARM_UP, CapturedCallable, CapturedFunction
from gfxgraph.callables.control import flags
from gfxgraph.callables.graph_facts import draws, overlap, span, writes_of
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.inputs import copy_in, like
from gfxgraph.callables.options import Options
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.signature import InPieces, RunEagerly, has_buffer, key_of
from gfxgraph.callables.trace.dynamo import shield
from gfxgraph.callables.trace.world import World
from gfxgraph.capture.replay.graph_tensors import size_of
from gfxgraph.capture.undo import unbroken
from gfxgraph.errors import CaptureError

# Most launches in the queue whose flags have not arrived.
AHEAD = 3
MAX_KEPT = 16
"""Most states and worlds that have graphs; the oldest is dropped first."""


class _Memory:
    """What a step reads and writes: the state, and the flag that says whether the loop goes on."""

    def __init__(self, state: Sequence[Tensor]) -> None:
        device = state[0].device
        self.current = [like(t) for t in state]
        self.seen = [like(t) for t in state]
        self.active = torch.zeros((), dtype=torch.bool, device=device)
        self.holds = torch.zeros((), dtype=torch.bool, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.may_lead = False
        """Whether steps are launched before the last flag has arrived."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        own = [*self.current, *self.seen, self.active, self.holds, self.steps]
        return [span(t) for t in own]

    def begin(self, state: Sequence[Tensor], holds: Tensor) -> None:
        copy_in(self.current, state)
        copy_in(self.seen, state)
        self.holds.copy_(holds.reshape(()))
        self.active.copy_(self.holds)
        self.steps.zero_()


class _Loop(CapturedCallable):
    """What loops share: one memory and its graphs for each kind of state, in each world of their functions."""

    def __init__(self, name: str, functions: Sequence[Graphed]) -> None:
        super().__init__(name)
        self._functions = functions
        self._why = ""
        self._known: dict[Any, tuple[Any, dict[int, CapturedFunction]]] = {}
        self._place: Arena | None = None
        self.n_launches = 0
        """Graph launches of the last call; 0 if it ran eagerly."""

    @property
    def why_eager(self) -> str:
        """Why the last call was not a graph; "" if it may be one."""
        return self._why

    def upload(self) -> None:
        """Upload the graphs to the device before their first launch, if the runtime can."""
        for _, pieces in self._known.values():
            for piece in pieces.values():
                if piece.graph is not None:
                    upload(piece.graph)

    def _run(
        self,
        state: tuple[Tensor, ...],
        eagerly: Callable[..., tuple[Tensor, ...]],
        replay: Callable[..., tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        """Run a call: by graph, or eagerly, which also shows what the functions read."""
        _check_state(state, state)
        place = current_arena()
        if place is not self._place:  # another device, or the bridge was switched off since
            self._place = place
            self._known.clear()
        with place.lock if place is not None else nullcontext():
            self.n_launches = 0
            if place is None or torch.cuda.is_current_stream_capturing():
                self.count_eager(NO_GPU if place is None else CAPTURED)
                return eagerly(*state)
            place.follow(torch.cuda.current_stream())
            worlds = self._worlds(state)
            known = self._known.get(_key(worlds, state)) if worlds else None
            if known is None:
                made = beside(place, eagerly, state, {})
                self.count_eager(self.why_eager or WARM_UP)
                worlds = self._worlds(state)
                if worlds:
                    self._known[_key(worlds, state)] = self._capture(place, state)
                    while len(self._known) > MAX_KEPT:
                        del self._known[next(iter(self._known))]
                return made  # type: ignore[no-any-return]
            self._why = next((piece.why_eager for piece in known[1].values() if piece.why_eager), "")
            if self._why:
                self.count_eager(self._why)
                return beside(place, eagerly, state, {})  # type: ignore[no-any-return]
            self.n_replays += 1
            with torch.no_grad():
                return replay(state, *known)

    def _worlds(self, state: tuple[Tensor, ...]) -> tuple[World, ...]:
        """The worlds that the functions are in; () if one is not a graph, or not traced yet, or has no buffers."""
        self._why = ""
        if not all(map(has_buffer, state)):
            return ()
        try:
            found = [each.world_of(state) for each in self._functions]
        except (RunEagerly, InPieces) as reason:
            self._why = reason.why.partition("\n")[0]
            return ()
        if torch.is_grad_enabled() and any(t.requires_grad for t in state):
            return ()  # a loop without iterations returns its inputs
        return tuple(world for world in found if world is not None) if None not in found else ()

    def _capture(self, place: Arena, state: Sequence[Tensor]) -> tuple[Any, dict[int, CapturedFunction]]:
        """Memory for the state, and graphs over it, by steps in a launch."""
        raise NotImplementedError

    def _piece(self, place: Arena, steps: Callable[[], None], name: str) -> CapturedFunction:
        piece = CapturedFunction(
            place, steps, pool=place.pool, name=name
        )  # what outlives a step lies outside the pool
        self.n_captures += piece.capture()
        return piece


class WhileLoop(_Loop):
    """``while condition(*state): state = body(*state)``, at most ``max_steps`` times, on the device.

    Args:
        condition: takes the state, returns a one-element tensor.
        body: takes the state, returns the next one: tensors of the same shapes and types.
        max_steps: the bound; `hit_bound` says afterwards whether it ended the loop.
        steps_per_launch: steps per launch, if steps may be launched ahead.
        run_ahead: launch before the last flag has arrived. "auto": if the body is known to change nothing but the
        state; kernels launched outside torch count as changing something.

    The first call for states of some shape runs eagerly and warms the body up; then it is captured.

    Raises:
        ValueError: ``max_steps`` or ``steps_per_launch`` is below 1.
    """

    def __init__(
        self,
        condition: Callable[..., Tensor],
        body: Callable[..., Any],
        *,
        max_steps: int,
        steps_per_launch: int = 1,
        run_ahead: bool | str = "auto",
    ) -> None:
        if max_steps < 1 or steps_per_launch < 1:
            raise ValueError("max_steps and steps_per_launch must be at least 1")
        if not (callable(condition) and callable(body)):
            raise TypeError(f"WhileLoop() takes two functions, a condition and a body, not {condition!r}, {body!r}")
        self._test = _part(condition, "condition of a while loop")
        self._turn = _part(body, "body of a while loop")
        super().__init__("while loop", (self._test, self._turn))
        self.condition = condition
        self.body = body
        self.max_steps = max_steps
        self.steps_per_launch = steps_per_launch
        self.run_ahead = run_ahead
        self._last: tuple[Tensor | int, Tensor | bool] = 0, False

    @unbroken
    def __call__(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Run the loop from ``state``; return the final state in new tensors."""
        return self._run(state, self._eagerly, self._replay)

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

    @property
    def runs_ahead(self) -> bool:
        """True if steps are launched before the last flag has arrived."""
        return any(memory.may_lead for memory, _ in self._known.values())

    # -- inside -------------------------------------------------------------------------------------------

    def _replay(
        self, state: Sequence[Tensor], memory: _Memory, pieces: dict[int, CapturedFunction]
    ) -> tuple[Tensor, ...]:
        memory.begin(state, self.condition(*state))
        self._launch(memory, *pieces.items())
        self._last = memory.steps, memory.holds
        return tuple(t.clone() for t in memory.current)

    def _launch(self, memory: _Memory, captured: tuple[int, CapturedFunction]) -> None:
        """Launch steps until a flag arrives that says the loop is over."""
        # The body must not see a state for which the condition never held, so the first answer is awaited.
        if not flags.ask(memory.active).value():
            return
        n_steps, piece = captured
        waiting: deque[flags.Answer] = deque()
        for _ in range(-(-self.max_steps // n_steps)):
            piece.run()
            self.n_launches += 1
            # The flag only ever becomes false: if a later step overtakes this copy, the copy is still right or newer.
            waiting.append(flags.ask(memory.active))
            while waiting and (len(waiting) > (AHEAD if memory.may_lead else 0) or waiting[0].is_ready):
                if not waiting.popleft().value():
                    return

    def _eagerly(self, *state: Tensor) -> tuple[Tensor, ...]:
        n_steps = 0
        holds = bool(self._test(*state))
        while holds and n_steps < self.max_steps:
            state = _checked(self._turn(*state), state)
            n_steps += 1
            holds = bool(self._test(*state))
        self._last = n_steps, holds
        return tuple(t.clone() for t in state)

    @torch.no_grad()
    def _capture(self, place: Arena, state: Sequence[Tensor]) -> tuple[_Memory, dict[int, CapturedFunction]]:
        memory = _Memory(state)
        memory.begin(state, self.condition(*state))
        n = self.steps_per_launch if self.run_ahead is not False else 1
        piece = self._piece(place, self._steps(memory, n), "while loop")
        memory.may_lead = (
            self.run_ahead is not False
            and piece.graph is not None
            and (self.run_ahead is True or _changes_nothing_else(piece.graph, memory))
        )
        if not memory.may_lead and n > 1:
            n, piece = 1, self._piece(place, self._steps(memory, 1), "while loop")
        return memory, {n: piece}

    def _steps(self, memory: _Memory, n: int) -> Callable[[], None]:
        def steps() -> None:
            for _ in range(n):
                self._step(memory)

        return steps

    def _step(self, memory: _Memory) -> None:
        active = memory.active.clone()
        for seen, now in zip(memory.seen, memory.current):
            seen.copy_(torch.where(active, now, seen))
        made = _checked(self.body(*memory.seen), memory.seen)
        for now, new in zip(memory.current, made):
            now.copy_(torch.where(active, new, now))
        memory.steps.add_(active)
        memory.holds.copy_(self.condition(*memory.current).reshape(()))
        memory.active.copy_(active & memory.holds & (memory.steps < self.max_steps))


class Unrolled(_Loop):
    """``state = step(*state)`` done ``n`` times, ``k`` of them in one launch.

    For loops whose launches cost more than their work. Steps may write other tensors and draw random numbers: exactly
    ``n`` run, in order. The remainder of ``n`` by ``k`` is launched one step at a time. The first call for states of
    some shape runs eagerly; then two graphs are captured.

    Args:
        step: takes the state, tensors on the device, and returns the next: as many, of the same shapes and dtypes.
        k: steps in one launch, at least 1.

    Raises:
        ValueError: ``k`` is below 1.
    """

    def __init__(self, step: Callable[..., Any], k: int) -> None:
        if k < 1:
            raise ValueError("k must be at least 1")
        if not callable(step):
            raise TypeError(f"Unrolled() takes a function of one step, not {step!r}")
        self._traced = _part(step, "step of an unrolled loop")
        super().__init__("unrolled loop", (self._traced,))
        self.step = step
        self.k = k

    @unbroken
    def __call__(self, n: int, *state: Tensor) -> tuple[Tensor, ...]:
        """The state after ``n`` steps from ``state``, in new tensors."""
        return self._run(state, functools.partial(self._eagerly, n), functools.partial(self._replay, n))

    def _replay(
        self, n: int, state: Sequence[Tensor], memory: list[Tensor], pieces: dict[int, CapturedFunction]
    ) -> tuple[Tensor, ...]:
        copy_in(memory, state)
        for k, times in ((self.k, n // self.k), (1, n % self.k)):
            for _ in range(times):
                pieces[k].run()
                self.n_launches += 1
        return tuple(t.clone() for t in memory)

    def _eagerly(self, n: int, *state: Tensor) -> tuple[Tensor, ...]:
        for _ in range(n):
            state = _checked(self._traced(*state), state)
        return tuple(t.clone() for t in state)

    @torch.no_grad()
    def _capture(self, place: Arena, state: Sequence[Tensor]) -> tuple[list[Tensor], dict[int, CapturedFunction]]:
        memory = [like(t) for t in state]
        copy_in(memory, state)
        # Largest first: the smaller one fits into its memory.
        counts = sorted({self.k, 1}, reverse=True)
        return memory, {k: self._piece(place, self._steps(memory, k), f"{k} steps") for k in counts}

    def _steps(self, memory: list[Tensor], k: int) -> Callable[[], None]:
        def steps() -> None:
            state: tuple[Tensor, ...] = tuple(memory)
            for _ in range(k):
                state = _checked(self.step(*state), state)
            # A step may return part of its state in another position: nothing may be overwritten before it is read.
            made = [t.clone() if any(overlap([span(t)], [span(m)]) for m in memory) else t for t in state]
            copy_in(memory, made)

        return steps


def _part(fn: Callable[..., Any], name: str) -> Graphed:
    """A function of a loop as Dynamo sees it; it is captured as a part of a step, so not on its own."""
    return Graphed(fn, Options(warmup=sys.maxsize), make_piece=make_piece, name=name)


def _key(worlds: Sequence[World], state: Sequence[Tensor]) -> Any:
    return (*[world.token for world in worlds], key_of(state))


def _changes_nothing_else(graph: Any, memory: _Memory) -> bool:
    """True if an extra step would go unnoticed."""
    if getattr(graph, "_program", None) is None or graph.is_opaque or draws(graph):
        return False
    own = memory.spans
    return all(any(a <= begin and end <= b for a, b in own) for begin, end in map(span, writes_of(graph)))


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


for _loop in (WhileLoop, Unrolled):  # inside a graphed function a graph break: the host reads their flags
    shield(_loop.__call__, from_us=True)
