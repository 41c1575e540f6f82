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
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.arena import CaptureDied
from gfxgraph.callables.buffers import Inputs, from_before
from gfxgraph.callables.captured import Capture, Captured, Instance, Options, Route
from gfxgraph.callables.control.conditional import summed
from gfxgraph.callables.control.one_launch import OneLaunch
from gfxgraph.callables.fast_path import GuardWriter
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.signature import Call, Fast, NotATree, RunEagerly, flatten, never, understand
from gfxgraph.callables.trace.dynamo import shield
from gfxgraph.capture.replay.graph_tensors import Layout, size_of
from gfxgraph.errors import CaptureError

MOST_GRAPHS = 12
"""Graphs of one loop; where none of them leads back to an earlier one, the state is copied after so many steps."""
_NOT_OWN = itertools.repeat(False)


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

        def step(*state: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
            made = body(*state)
            made = tuple(made) if isinstance(made, (tuple, list)) else (made,)
            return condition(*made), made

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
        is_own: Iterable[bool] = _NOT_OWN
        n_steps, holds = 0, bool(self._test(*state))
        while holds and n_steps < self.max_steps:
            steps = self._asked.steps = Steps(self.max_steps - n_steps)
            flag, made = self._step(*state)
            _check_state(made, state)
            holds = bool(flag) if steps.holds is None else steps.holds
            n_steps, state, is_own = n_steps + steps.n, made, steps.is_own
        self.n_steps, self.hit_bound = n_steps, holds
        return tuple(t if own else t.clone() for t, own in zip(state, is_own))


@dataclass
class Steps:
    """What a call of the step may make, and what it made."""

    most: int
    n: int = 1
    holds: bool | None = None
    """The condition after them; None if nobody has read it."""
    is_own: Iterable[bool] = _NOT_OWN
    """Which tensors of the state are new, and nobody else's."""


class _Asked(threading.local):
    steps: Steps


class _CapturedSteps(Captured):
    """The steps of loops over states of one kind: a call makes as many as it may, and returns the last one's result.

    Args:
        asked: how many the call may make.
    """

    def __init__(self, asked: _Asked, *about: Any) -> None:
        super().__init__(*about)
        self._asked = asked
        self._back: int | None = None
        """Which graph reads what the last one leaves; None if none does."""
        self._ring: OneLaunch | None = None
        """The graphs from that one on."""
        self._made: Any = None
        """What the function returned in the last capture."""

    # -- capture ----------------------------------------------------------------------------------------

    def record_over(self, inputs: Inputs, copy_results: Callable[[Any], Any] | None = None) -> Instance:
        """As for any function; the results are held, so that the next graph leaves their memory alone."""

        def held(result: Any) -> Any:
            self._made = result
            return result

        return super().record_over(inputs, held)

    def _attempt(self, call: Call, sizes: Sequence[Any]) -> Capture:
        capture = super()._attempt(call, sizes)
        try:
            return dataclasses.replace(capture, ring=tuple(self._more(capture, call)))
        finally:
            self._made = None

    def _more(self, capture: Capture, call: Call) -> list[Instance]:
        """Capture further steps, each over what the last one left, until one leaves what an earlier one reads."""
        states, graphs = [_places(capture.inputs.args)], [capture.first]
        self._back = self._ring = None
        while self._reads_alike(capture, call) and len(graphs) <= MOST_GRAPHS:
            _, made = self._made
            places = _places(made)
            if places in states:
                self._back = states.index(places)
                ring = graphs[self._back :]
                self._ring = OneLaunch(self.arena, self.name, ring, [_flag(each, capture) for each in ring])
                break
            inputs = copy.copy(capture.inputs)  # with its statics: they alone are the caller's
            inputs.args = made
            try:
                graphs.append(self.record_over(inputs))
            except (CaptureDied, NotATree, torch.OutOfMemoryError):
                break
            states.append(places)
        return graphs[1:]

    def _reads_alike(self, capture: Capture, call: Call) -> bool:
        """Whether the state that the last captured step leaves is one that the same step can read."""
        flag, made = self._made
        tensors: list[Tensor] = []
        structure = flatten((made, {}), tensors)
        if not isinstance(flag, Tensor) or not flag.is_cuda or flag.numel() != 1 or structure != call.structure:
            return False
        if capture.first.is_opaque and self.mutates:  # which of them it writes where they change places is not known
            return False
        front = self.shared.front
        try:
            then = understand(self.name, made, {}, tensors, structure, False)
        except RunEagerly:
            return False
        is_same = then.key == call.key[: len(then.key)]
        return is_same and (front is None or front.find(made, {}) is self.world)

    # -- replay -----------------------------------------------------------------------------------------

    def _replayed(self, tensors: list[Tensor], route: Route | None) -> Any:
        """Copy in, launch one step after the other while the condition holds, results."""
        steps, capture, arena = self._asked.steps, self.capture, self.arena
        assert capture is not None
        arena.follow(torch.cuda.current_stream(arena.device_index))
        capture.inputs.fill(tensors)
        graphs, last, n, holds = capture.instances, capture.first, 0, True
        following: int | None = 0
        while following is not None and holds and n < steps.most:
            at = following
            made, holds = self._ring(steps.most - n) if at == self._back and self._ring is not None else (0, True)
            if made:
                at += (made - 1) % (len(graphs) - at)
            else:
                try:
                    self.replay(graphs[at])
                except RunEagerly:
                    if not n:
                        raise
                    break
                made, holds = 1, bool(_flag(graphs[at], capture))
            n, last = n + made, graphs[at]
            following = at + 1 if at + 1 < len(graphs) else self._back
        if self.mutates:
            capture.inputs.give_back(tensors, self.mutates)
        arena.n_uses += 1
        self.used_at = arena.n_uses
        outputs = last.outputs
        first = outputs.twins
        own = [r.made is not None and first[i] == i for i, r in enumerate(outputs.results)]
        steps.n, steps.holds, steps.is_own = n, holds, _NOT_OWN if outputs.is_shared else own[1:]
        return outputs.give(tensors, None, own=True)

    def _fast_for(self, call: Call, route: Route) -> Fast:
        """The guards of a call like this one, then the loop."""
        if route.fast is not None and route.fast_of == (self.capture, self.world.is_same):
            return route.fast
        writer = GuardWriter(self.arena, call.tensors)
        if call.kwargs or not writer.takes(call.args, call.kwargs) or not all(t.is_cuda for t in call.tensors):
            return never
        front = self.shared.front
        writer.guards(self.world, front is not None and front.does_ask_by_name)
        writer.names |= {"run": self._replayed, "RunEagerly": RunEagerly}
        writer.line(f"try: return run(list({writer.taken}), None)")
        writer.line("except RunEagerly: return MISS")
        route.fast, route.fast_of = writer.function(), (self.capture, self.world.is_same)
        return route.fast


def _flag(step: Instance, capture: Capture) -> Tensor:
    """The condition that a step leaves."""
    flag = step.outputs.results[0]
    return flag.made if flag.made is not None else from_before(flag, [s.tensor for s in capture.inputs.statics])


def _places(state: Sequence[Tensor]) -> list[Layout]:
    return [Layout.of(t) for t in state]


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
