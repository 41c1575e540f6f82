"""A bounded while loop on a device predicate: graphs of one step, each of which reads in place what another left.

    state ──copy──> x0 ──graph 1──> x1 ──graph 2──> x2 ──graph 3──> x1 ──graph 2──> ...    last state ──copy──> result

Problem: a step as a graph of its own reads static inputs and leaves its results in the pool, so the state is copied
twice in every step: with a large state that is most of the loop's time. Idea: the next step is captured once more,
over what the last one left, where it lies. The allocator is deterministic, so the results soon lie where those of an
earlier step did, and from then on the graphs there are serve for ever: mostly two, in turn.

Invariants:
  - the state that a graph reads is held while that is captured, so nothing else in the graph lies there;
  - during a loop no other graph of the arena runs: its lock is held;
  - a step that fails is undone, and the state before it is handed back to Python, which makes that step eagerly.

In all else a step is a graphed callable: in what it reads, writes and draws. One that is not a single graph, and the
first, which warms up, are made one by one in Python. Source: decision 0300.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.buffers import Inputs, from_before
from gfxgraph.callables.captured import Capture, Captured, Instance, Options, Route, Shared
from gfxgraph.callables.control.conditional import summed
from gfxgraph.callables.control.device_loop import DeviceLoop
from gfxgraph.callables.fast_path import GuardWriter
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.signature import Call, Fast, NotATree, RunEagerly, flatten, never, understand
from gfxgraph.callables.trace.corrections import shield
from gfxgraph.capture.function_capture import CaptureDied
from gfxgraph.capture.replay.graph_tensors import Layout, size_of
from gfxgraph.errors import CaptureError

MOST_GRAPHS = 16
"""Graphs of one loop; where none of them leads back to an earlier one, the state is copied after so many steps."""


class WhileLoop:
    """``while condition(*state): state = body(*state)``, at most ``max_steps`` times, on the device.

    Args:
        condition: takes the state, returns a one-element tensor.
        body: takes the state, returns the next one: tensors of the same shapes and dtypes.
        max_steps: the bound; `hit_bound` says afterwards whether it ended the loop.

    The first step for states of some shape runs eagerly and warms up; the others are launches of a few graphs.

    Raises:
        ValueError: ``max_steps`` is below 1.
    """

    def __init__(self, condition: Callable[..., Tensor], body: Callable[..., Any], *, max_steps: int) -> None:
        if max_steps < 1:
            raise ValueError("max_steps must be at least 1")
        if not (callable(condition) and callable(body)):
            raise TypeError(f"WhileLoop() takes two functions, a condition and a body, not {condition!r}, {body!r}")

        def step(*state: Tensor) -> tuple[Tensor | bool, tuple[Any, ...]]:
            made = body(*state)
            made = tuple(made) if isinstance(made, (tuple, list)) else (made,)
            # What is no such state is refused below; the condition's own error would hide why.
            is_state = len(made) == len(state) and all(isinstance(t, Tensor) for t in made)
            return condition(*made) if is_state else False, made

        self.condition, self.body = condition, body
        self.max_steps = max_steps
        self._test = Graphed(condition, Options(), make_piece=make_piece, name="condition of a while loop")
        self._step = Graphed(step, Options(), make_piece=make_piece, name="step of a while loop")
        self._asked = _Asked()
        self._step._captured = functools.partial(_CapturedSteps, self._asked)
        self.n_steps = 0
        """Steps that the last call made."""
        self.hit_bound = False
        """True if the last call ended at ``max_steps`` with its condition still true."""

    @property
    def why_eager(self) -> str:
        """Why its steps have no graph; "" if they have one, or none has run yet."""
        return self._step.why_eager

    def stats(self) -> dict[str, Any]:
        """``captures``, ``replays``, ``eager`` and ``pieces`` (calls by reason), ``signatures``: its steps' sums."""
        return summed([self._test, self._step])

    def __call__(self, *state: Tensor) -> tuple[Tensor, ...]:
        """Run the loop from ``state``; return the final state in new tensors."""
        _check_state(state, state)
        n_steps, holds = 0, _holds(self._test(*state))
        while holds and n_steps < self.max_steps:
            steps = self._asked.steps = _Steps(self.max_steps - n_steps)
            flag, made = self._step(*state)
            _check_state(made, state)
            holds = _holds(flag) if steps.holds is None else steps.holds
            n_steps, state = n_steps + steps.n, made
        self.n_steps, self.hit_bound = n_steps, holds
        return tuple(t.clone() for t in state)


@dataclass
class _Steps:
    """What a call of the step may make, and what it made."""

    most: int
    n: int = 1
    holds: bool | None = None
    """The condition after them; None if nobody has read it."""


class _Asked(threading.local):
    steps: _Steps


class _CapturedSteps(Captured):
    """The steps of loops over states of one kind: a call makes as many as it may, and returns the last one's result.

    Args:
        asked: how many the call may make.
    """

    def __init__(self, asked: _Asked, arena: Arena, shared: Shared, label: str) -> None:
        super().__init__(arena, shared, label)
        self._asked = asked
        self._has_flag = True
        """Whether a step leaves its condition on the device; else one is made a call."""
        self._back: int | None = None
        """Which graph reads what the last one leaves; None if none does."""
        self._ring: DeviceLoop | None = None
        """The graphs from that one on."""
        self._made: tuple[object, tuple[Tensor, ...]] = None, ()
        """The condition and the state that the last capture left."""

    # -- capture ----------------------------------------------------------------------------------------

    def record_over(self, inputs: Inputs, copy_results: Callable[..., object] | None = None) -> Instance:
        """As for any function; the results are held, so that the next graph leaves their memory alone."""

        def held(result: tuple[object, tuple[Tensor, ...]]) -> object:
            self._made = result
            return result

        return super().record_over(inputs, held)

    def _attempt(self, call: Call, sizes: Sequence[Sequence[int] | None]) -> Capture:
        """As for any function; and of further steps, until one leaves its results where an earlier one reads."""
        capture = super()._attempt(call, sizes)
        states, graphs = [_places(capture.inputs.args)], [capture.first]
        self._back = self._ring = None
        while (made := self._read_alike(call)) and len(graphs) <= MOST_GRAPHS:
            places = _places(made)
            if places in states:
                self._back = states.index(places)
                ring = graphs[self._back :]
                self._ring = DeviceLoop(self.arena, self.name, ring, [_flag(each, capture) for each in ring])
                break
            inputs = copy.copy(capture.inputs)  # with its statics: they alone are the caller's
            inputs.args = made
            try:
                graphs.append(self.record_over(inputs))
            except (CaptureDied, NotATree, torch.OutOfMemoryError):
                break
            states.append(places)
        self._made = None, ()
        return dataclasses.replace(capture, ring=tuple(graphs[1:]))

    def _read_alike(self, call: Call) -> tuple[Tensor, ...]:
        """The state that the last captured step left; () if the same step cannot read it."""
        (flag, made), tensors = self._made, list[Tensor]()
        self._has_flag = isinstance(flag, Tensor) and flag.is_cuda and flag.numel() == 1
        if self._has_flag and flatten((made, {}), tensors) == call.structure:
            with suppress(RunEagerly):
                then, front = understand(self.name, made, {}, tensors, call.structure, False), self.shared.front
                if then.key == call.key[: len(then.key)] and (not front or front.find(made, {}) is self.world):
                    return made
        return ()

    def evict(self, why: str) -> None:
        """As for any function; the ring goes with its graphs."""
        super().evict(why)
        self._ring = None

    # -- replay -----------------------------------------------------------------------------------------

    def _replayed(self, tensors: list[Tensor], route: Route) -> object:
        """Copy in, launch one step after the other while the condition holds, results."""
        steps, capture, arena = self._asked.steps, self.capture, self.arena
        assert capture is not None
        if not self._has_flag:
            return super()._replayed(tensors, route)
        arena.follow(torch.cuda.current_stream(arena.device_index))
        capture.inputs.fill(tensors)
        graphs, n, at, holds = capture.instances, 0, -1, True
        following: int | None = 0
        while following is not None and holds and n < steps.most:
            made, holds = self._ring(steps.most - n) if self._ring and following == self._back else (0, True)
            if not made:
                try:
                    self.replay(graphs[following])
                except RunEagerly:
                    if not n:
                        raise
                    break
                made, holds = 1, bool(_flag(graphs[following], capture))
            n, at = n + made, following + (made - 1) % (len(graphs) - following)
            following = at + 1 if at + 1 < len(graphs) else self._back
            if self.mutates and graphs[0].is_opaque:  # what it writes where tensors change places is not known
                break
        if self.mutates:
            capture.inputs.give_back(tensors, self.mutates)
        arena.n_uses += 1
        self.used_at = arena.n_uses
        steps.n, steps.holds = n, holds
        return graphs[at].outputs.give(tensors, None, own=True)

    def _fast_for(self, call: Call, route: Route) -> Fast:
        """The guards of a call like this one, then the loop."""
        made_for, front = (self.capture, self.world.is_same), self.shared.front
        if route.fast is None or route.fast_of != made_for:
            writer = GuardWriter(self.arena, call.tensors)
            if not writer.takes(call.args, call.kwargs) or not all(t.is_cuda for t in call.tensors):
                return never
            writer.guards(self.world, front is not None and front.does_ask_by_name)
            writer.names |= {"run": self._replayed, "route": Route(self), "RunEagerly": RunEagerly}
            writer.line(f"try: return run(list({writer.taken}), route)")
            writer.line("except RunEagerly: return MISS")
            route.fast, route.fast_of = writer.function(), made_for
        return route.fast


def _flag(step: Instance, capture: Capture) -> Tensor:
    """The condition that a step leaves."""
    flag = step.outputs.results[0]
    return flag.made if flag.made is not None else from_before(flag, [s.tensor for s in capture.inputs.statics])


def _places(state: Sequence[Tensor]) -> list[Layout]:
    return [Layout.of(t) for t in state]


def _check_state(state: Sequence[object], before: Sequence[Tensor]) -> None:
    """Raise CaptureError `loop_state` unless the state consists of device tensors like those before."""
    was = [_kind(t) for t in before]
    now = [_kind(t) for t in state]
    if was != now or not now or not all(isinstance(t, Tensor) and t.is_cuda for t in state):
        raise CaptureError("loop_state", before=", ".join(was) or "nothing", after=", ".join(now) or "nothing")


def _holds(flag: object) -> bool:
    """What a condition returned, as a bool; waits for the device.

    Raises:
        TypeError: it is neither one element nor a number.
    """
    if isinstance(flag, (bool, int, float)) or (isinstance(flag, Tensor) and flag.numel() == 1):
        return bool(flag)
    raise TypeError(f"a loop's condition returns a tensor of one element, not {_kind(flag)}")


def _kind(item: object) -> str:
    if not isinstance(item, Tensor):
        return type(item).__name__
    return f"{str(item.dtype).removeprefix('torch.')}{list(size_of(item))} on {item.device}"


# Inside a graphed function a graph break: the host reads its flags.
shield(WhileLoop.__call__, from_us=True)
