"""Calls whose results need gradients: forward and backward as two graphs.

    forward   copy in ──> forward graph ──> results, the caller's own
    backward  copy gradients in ──> backward graph ──> gradients, the caller's own

Problem: what the forward graph saves for the backward lies at fixed addresses, so a second forward before
the first backward overwrites it: torch's make_graphed_callables then gives wrong gradients without a word.
Here each result knows which forward it came from. Where that is not the last one, the forward is replayed
for it again, on the same inputs and with the same random numbers, before its backward.

What the backward reads is held by its capture as an input from outside, so the backward's own memory never
takes the place of it, and a second backward finds it again.

Gradients go to the arguments that need them and to every leaf tensor that the function reached when it
ran eagerly (parameters), found in the autograd graph of that run. Each kind of call has a pool of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.facts import draws, is_opaque, writes_of, written_inputs
from gfxgraph.callables.padding.outside import reachable
from gfxgraph.callables.piece import copy_in, like, record
from gfxgraph.callables.signature import builder, flatten, replace
from gfxgraph.capture.effects import Effects
from gfxgraph.errors import GuardMismatch, ReplayError, first_line

NEEDS_GRADIENTS = "its result needs gradients"


class ForwardFailed(RuntimeError):
    """The forward graph did not run, and nothing of it is left: the call is for the function itself."""


def accumulators_on(stream: Any, fn: Any) -> list[Any]:
    """Have gradients of the function's parameters be added up on ``stream``; hold what is returned.

    An accumulator lives as long as a graph of autograd that leads to it, and stays on the stream on which
    it was made. One that the last eager call made on the default stream would draw that into the capture
    of the backward: CUDA refuses (906, measured on an H200).
    """
    with torch.cuda.stream(stream), torch.enable_grad():
        leaves = [t for t in reachable(fn) if t.is_leaf and t.requires_grad]
        return [t.view_as(t).grad_fn.next_functions[0][0] for t in leaves]  # type: ignore[union-attr]


def leaves_of(results: Sequence[Tensor]) -> list[Tensor]:
    """Leaf tensors that the results' gradients would reach, in the order in which they are met."""
    found: dict[int, Tensor] = {}
    todo, seen = [t.grad_fn for t in results if t.grad_fn is not None], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found[id(variable)] = variable
        todo += [following for following, _ in node.next_functions]
    return list(found.values())


class WithGradients:
    """Forward and backward graphs of one kind of call.

    Args:
        leaves: tensors besides the arguments that gradients go to; they must stay where they are.
    """

    def __init__(
        self, place: Arena, fn: Callable[..., Any], args: Any, kwargs: Any, given: list[Tensor], leaves: list[Tensor]
    ) -> None:
        self.place = place
        self.fn = fn
        # An argument that is a leaf itself gets its gradient as an argument.
        known = {id(t) for t in given}
        self.leaves = [leaf for leaf in leaves if id(leaf) not in known]
        self.statics = [like(t).requires_grad_(t.requires_grad) for t in given]
        statics = iter(self.statics)
        self._args = replace(tuple(args), lambda _: next(statics))
        self._kwargs = replace(dict(kwargs), lambda _: next(statics))
        self._number = 0
        self._lock = threading.Lock()
        self._capture(given)

    def __call__(self, given: list[Tensor]) -> Any:
        """A call's results, with a backward that replays.

        Raises:
            ForwardFailed: nothing has happened.
        """
        flat = _Replay.apply(self, len(given), *given, *self.leaves)
        made = iter(flat if isinstance(flat, tuple) else (flat,))
        return self._build(iter([next(made) if i is None else given[i] for i in self._itself]))

    # -- capture --------------------------------------------------------------------------------------

    def _capture(self, given: list[Tensor]) -> None:
        place = self.place
        copy_in(self.statics, given)
        with torch.enable_grad():
            self._forward, result = record(place, None, lambda: self.fn(*self._args, **self._kwargs))
        self._build = builder(result)
        if written_inputs(self._forward, self.statics):
            raise RuntimeError("the function writes to its arguments")
        results: list[Tensor] = []
        flatten(result, results)
        # An argument that is a result is the caller's own again, and autograd goes on from there.
        self._itself = [next((i for i, s in enumerate(self.statics) if t is s), None) for t in results]
        self.made = [t for t, i in zip(results, self._itself) if i is None]
        if not all(t.is_cuda and t.layout is torch.strided for t in self.made):
            raise RuntimeError("a result is not a tensor on the device")
        ends = [t for t in self.made if t.requires_grad]
        self.wanted = [t for t in self.statics if t.requires_grad] + self.leaves
        self.arriving = [torch.empty_like(t, requires_grad=False) for t in ends]
        with torch.enable_grad():
            self._backward, self.grads = record(
                place,
                self._forward.pool(),
                lambda: torch.autograd.grad(ends, self.wanted, self.arriving, allow_unused=True),
            )
        self._is_random = draws(self._forward) or is_opaque(self._forward)
        self._generators = list(self._forward._program.generators)
        self._needs = [t.requires_grad for t in self.made]
        # The results' values are read from their memory; their history has done its part.
        self.made = [t.detach() for t in self.made]

    # -- replay ---------------------------------------------------------------------------------------

    def run_forward(self, given: Sequence[Tensor]) -> tuple[int, list[Any], list[Tensor]]:
        """Replay the forward: its number, the random states from before, results of the caller's own."""
        with self._lock, torch.no_grad():
            states = [generator.get_state() for generator in self._generators] if self._is_random else []
            program = self._forward._program
            before = None if program.is_plain else Effects(program.writes(), program.random_states())
            copy_in(self.statics, given)
            try:
                self._forward.replay()
            except (GuardMismatch, ReplayError) as error:
                if before is not None:
                    before.put_back()
                raise ForwardFailed(first_line(error)) from error
            self._number += 1
            return self._number, states, [t.clone() for t in self.made]

    def run_backward(
        self, number: int, states: list[Any], given: Sequence[Tensor], grads: Sequence[Any]
    ) -> list[Any]:
        """Replay the backward of the forward called ``number``; its gradients, of the caller's own."""
        with self._lock, torch.no_grad():
            if number != self._number:
                self._once_more(states, given)
            copy_in(self.arriving, [grad for grad, needs in zip(grads, self._needs) if needs])
            self._backward.replay()
            return [grad.clone() if grad is not None else None for grad in self.grads]

    def _once_more(self, states: list[Any], given: Sequence[Tensor]) -> None:
        """Have what the forward saved in place again, as it was for these inputs."""
        now = [generator.get_state() for generator in self._generators] if states else []
        for generator, state in zip(self._generators, states):
            generator.set_state(state)
        copy_in(self.statics, given)
        written = Effects(writes_of(self._forward), ())  # running statistics, a counter: not a second time
        self._forward.replay()
        written.put_back()
        for generator, state in zip(self._generators, now):
            generator.set_state(state)
        self._number += 1


class _Replay(torch.autograd.Function):
    """The two graphs as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, owner: WithGradients, n_given: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = tensors[:n_given]
        ctx.owner = owner
        ctx.number, ctx.states, results = owner.run_forward(given)
        # Saved in autograd's way: an input changed in place before the backward is torch's own error.
        ctx.save_for_backward(*given)
        ctx.mark_non_differentiable(*[t for t, needs in zip(results, owner._needs) if not needs])
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        owner: WithGradients = ctx.owner
        found = iter(owner.run_backward(ctx.number, ctx.states, ctx.saved_tensors, grads))
        of_given = [next(found) if t.requires_grad else None for t in owner.statics]
        return None, None, *of_given, *found

