"""A bounded while loop on a device predicate: each step, its test included, is a graphed callable.

    holds = condition(state)
    while holds and n_steps < max_steps:      the host reads the flag, which waits for the step
        holds, state = step(state)            one launch: the body, and the condition on what it made

What the functions read, write and draw, and a step that is not one graph, is all as in any graphed callable. Source:
decision 0300.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gfxgraph.callables.captured import Options
from gfxgraph.callables.control.conditional import summed
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.pieces.graph_numbers import make_piece
from gfxgraph.callables.trace.dynamo import shield
from gfxgraph.capture.replay.graph_tensors import size_of
from gfxgraph.errors import CaptureError


class WhileLoop:
    """``while condition(*state): state = body(*state)``, at most ``max_steps`` times, on the device.

    Args:
        condition: takes the state, returns a one-element tensor.
        body: takes the state, returns the next one: tensors of the same shapes and dtypes.
        max_steps: the bound; `hit_bound` says afterwards whether it ended the loop.

    The first step for states of some shape runs eagerly and warms up; the others are launches of one graph.

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
        n_steps, holds = 0, bool(self._test(*state))
        while holds and n_steps < self.max_steps:
            flag, made = self._step(*state)
            _check_state(made, state)
            n_steps, holds, state = n_steps + 1, bool(flag), made
        self.n_steps, self.hit_bound = n_steps, holds
        return tuple(t.clone() for t in state)


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
