"""One captured signature: its static inputs, its graphs, and one replay.

    new ──warm-up calls, eager──> ready ──capture──> captured <──evicted, captured again── evicted
                                    └──> eager (it cannot be captured; the reason is kept)

A captured entry has one graph, or in ``hot`` mode a small ring of them over the same inputs: while
the caller still holds the results of one, the next call uses another; when all are held, results
are copied out of a graph that is never handed out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.errors import GuardMismatch, ReplayError
from gfxgraph.runtime.callables import engine
from gfxgraph.runtime.callables.inputs import Buffers, StaticInput, copy_all, pad
from gfxgraph.runtime.callables.outputs import Outputs, Result
from gfxgraph.runtime.callables.proof import Verdict
from gfxgraph.runtime.callables.signature import replace
from gfxgraph.runtime.effects import Effects

if TYPE_CHECKING:
    from gfxgraph.runtime.callables.memory import Arena

RING = 2
"""Graphs whose results may be handed out at the same time in ``hot`` mode."""


class RunEagerly(Exception):
    """This call is for the function itself; ``args[0]`` says why."""


class Instance:
    """One graph over the entry's inputs, with the results that it writes."""

    def __init__(self, made: engine.Capture, outputs: Outputs) -> None:
        self.graph = made.graph
        self.outputs = outputs
        self.is_recorded = made.is_recorded
        program = made.program
        self.has_guards = program.n_guards > 0
        self.mutated = [layout for step in program.steps for layout in step.mutated] if self.has_guards else []
        self.generators = program.generators
        self.n_trials = 0
        """Replays whose result nobody was given."""


class Entry:
    """The captures of one function for one signature.

    Args:
        label: for people: the shapes.
        function: its name.
        buffers: where the static inputs lie.
        owns: results are always copied out, so that captures may share the memory they are made in.
    """

    def __init__(
        self, arena: Arena, fn: Callable[..., Any], label: str, function: str, buffers: Buffers, owns: bool
    ) -> None:
        self.arena = arena
        self.buffers = buffers
        self.owns = owns
        self.fn = fn
        self.label = label
        self.function = function
        self.statics: list[StaticInput] = []
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.ring: list[Instance] = []
        self.spare: Instance | None = None
        self.why_eager = ""
        self.gradients: Any = None
        """Leaves that gradients go to, then the graphs of forward and backward, for calls that need them."""
        self.n_seen = 0
        self.used_at = 0
        self.pool_nbytes = 0
        self.input_nbytes = 0
        self.n_gone = 0
        self.warm: list[weakref.ref[Tensor]] = []
        self.mutates: tuple[int, ...] = ()
        """Positions of arguments that the function writes to."""
        self.verdicts: dict[frozenset[str], Verdict] = {}
        """By the dims that are padded: whether padding changes what the caller sees."""
        arena.entries.add(self)

    @property
    def is_captured(self) -> bool:
        return bool(self.ring) or self.spare is not None

    @property
    def nbytes(self) -> int:
        """Memory that the entry took; of what it shares with others, what it was the first to take."""
        return self.input_nbytes + self.pool_nbytes if self.is_captured else 0

    def report(self) -> dict[str, Any]:
        instances = [*self.ring, *([self.spare] if self.spare else [])]
        return {
            "function": self.function,
            "signature": self.label,
            "input_bytes": sum(s.nbytes for s in self.statics) if self.is_captured else 0,
            "output_bytes": sum(i.outputs.nbytes for i in instances),
            "pool_bytes": self.pool_nbytes,
            "n_graphs": len(instances),
            "n_calls": self.n_replays(),
            "why_eager": self.why_eager,
        }

    def n_replays(self) -> int:
        """Replays that gave a caller's result."""
        graphs = [*self.ring, *([self.spare] if self.spare else [])]
        return self.n_gone + sum(i.graph.n_replays - i.n_trials for i in graphs)

    # -- capture ----------------------------------------------------------------------------------

    def prepare(self, args: Any, kwargs: Any, tensors: Sequence[Tensor], sizes: Sequence[Any]) -> None:
        """Make static inputs like the call's tensors; ``sizes`` gives a bucket's size, None for the tensor's own."""
        self.statics = [
            StaticInput.like(t, size, self.buffers, i) for i, (t, size) in enumerate(zip(tensors, sizes))
        ]
        self.input_nbytes += sum(s.new_nbytes for s in self.statics)
        statics = iter(self.statics)
        self.args = replace(tuple(args), lambda _: next(statics).tensor)
        self.kwargs = replace(dict(kwargs), lambda _: next(statics).tensor)

    def run_once(self, times: int) -> None:
        """Run the function eagerly on the static inputs, on the stream that will capture."""
        with torch.cuda.stream(self.arena.stream):
            for _ in range(times):
                self.fn(*self.args, **self.kwargs)

    def capture(self, *, recorded: bool, pool: Any = None) -> Instance:
        """Capture the function once more on the static inputs.

        Args:
            pool: another one than the arena's.

        Raises:
            CaptureDied: it could not be captured.
            NotATree: its result cannot be taken apart.
            torch.OutOfMemoryError: there was no memory.
        """
        arena = self.arena
        before = arena.reserved()
        versions = [s.tensor._version for s in self.statics if not s.tensor.is_inference()]
        try:
            made = engine.capture(
                lambda: self.fn(*self.args, **self.kwargs), arena.stream, pool or arena.pool, recorded=recorded
            )
        except engine.CaptureDied:
            arena.renew()
            raise
        instance = Instance(made, Outputs(made.result, self.statics, self.warm, self.owns))
        after = [s.tensor._version for s in self.statics if not s.tensor.is_inference()]
        if len(versions) == len(self.statics):
            self.mutates = tuple(i for i, (a, b) in enumerate(zip(versions, after)) if a != b)
        else:
            self.mutates = tuple(range(len(self.statics)))
        if pool is None:
            self.pool_nbytes += max(0, arena.reserved() - before)
        return instance

    def evict(self, why: str) -> None:
        """Drop the graphs; the next call captures again."""
        self.arena.state.report("eviction", why, self.function, self.label)
        self.n_gone = self.n_replays()
        self.ring.clear()
        self.spare = None
        self.pool_nbytes = 0
        self.input_nbytes = 0
        self.evict_buffers()

    def evict_buffers(self) -> None:
        """Drop the static inputs."""
        self.statics = []
        self.input_nbytes = 0
        self.args, self.kwargs = (), {}

    # -- replay -----------------------------------------------------------------------------------

    @property
    def results(self) -> list[Result]:
        return self.ring[0].outputs.results if self.ring else []

    def fill(self, tensors: Sequence[Tensor], values: Sequence[float], filled_for: Any = None) -> None:
        """Copy a call's tensors into the static inputs; ``values`` fill the padding.

        Args:
            filled_for: the call's route; where the padding is still that of the same route it is left.
        """
        pads_again = filled_for is None or self.buffers.filled_for is not filled_for
        self.buffers.filled_for = filled_for
        targets, sources = [], []
        for i, (static, given) in enumerate(zip(self.statics, tensors)):
            size = given.size()
            if size == static.tensor.size():
                if given.data_ptr() == static.tensor.data_ptr():
                    continue
            elif pads_again:
                pad(static.tensor, size, values[i])
            target, source = static.target(given)
            targets.append(target)
            sources.append(source)
        copy_all(targets, sources)

    def replay(self, instance: Instance) -> None:
        """Launch; where a guard or a launch fails, undo and leave the call to the function.

        Raises:
            RunEagerly: nothing of the replay is left.
        """
        if not instance.has_guards:
            try:
                instance.graph.replay()
            except ReplayError as error:
                raise RunEagerly(f"the replay failed: {error.code}") from error
            return
        before = Effects(instance.mutated, instance.generators)
        try:
            instance.graph.replay()
        except GuardMismatch as error:
            before.put_back()
            instance.n_trials += 1
            question = error.fields.get("question", "")
            raise RunEagerly(f"a value that steered the capture changed: {question}") from error

    def give_back_mutated(self, tensors: Sequence[Tensor]) -> None:
        """Copy what the function wrote to its arguments to the caller's own."""
        with torch.no_grad():
            for i in self.mutates:
                target, source = self.statics[i].target(tensors[i])
                source.copy_(target)
