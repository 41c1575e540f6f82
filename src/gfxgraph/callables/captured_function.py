"""One function captured over static inputs: a graph, with eager execution as its fallback.

Problem: conditionals, loops and compositions all need the same small thing: a function whose inputs
and outputs keep their addresses and that can be run again by one launch. Idea: the caller passes inputs
that are already in place; outputs are written to buffers that the caller passes too, or stay where the capture put
them. If capture or replay fails, the function itself runs on the same inputs, into the
same outputs, and that is counted.

Invariant: a replay that failed half-way is undone before the function runs instead, so that nothing
happens twice. `entry.replay` sees to it for everything in this room that launches a graph by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gfxgraph.callables import capture_once
from gfxgraph.callables.arena import Arena, arena_of
from gfxgraph.callables.captured_signature import replay
from gfxgraph.callables.inputs import copy_together, dense_strides, dim_order
from gfxgraph.callables.signature import GuardMiss, RunEagerly, foreign_mode
from gfxgraph.capture.replay.graph_tensors import used_on
from gfxgraph.capture.undo import is_interrupt, unbroken
from gfxgraph.errors import first_line
from gfxgraph.process import bridge
from gfxgraph.types import OnUnsafe


def arena() -> Arena | None:
    """The arena of the current device; None where functions just run: no GPU, or a mode that sees each operation."""
    state = bridge.process_for_callables()
    return None if state is None or foreign_mode() else arena_of(state, torch.cuda.current_device())


@unbroken
def record(place: Arena, pool: Any, call: Callable[[], Any], on_unsafe: OnUnsafe | None = None) -> tuple[Any, Any]:
    """Capture ``call`` on the arena's stream; return the graph object and the call's result.

    Raises:
        RuntimeError: the capture failed; the process is as before, but the pool must not be captured into again.
    """
    graph = capture_once.graph_class(place.state)(on_unsafe=on_unsafe)
    place.stream.wait_stream(torch.cuda.current_stream())
    # Weights cached by autocast must neither enter the graph nor leave it.
    torch.clear_autocast_cache()
    with torch.cuda.stream(place.stream):
        try:
            graph.capture_begin(pool=getattr(pool, "id", pool), capture_error_mode="thread_local")
            result = call()
            graph.capture_end()
        except BaseException:
            with suppress(RuntimeError):
                graph.reset()
            if place.stream.cuda_stream in place.state.lost_streams:
                place.renew()
            raise
        finally:
            torch.clear_autocast_cache()
    return graph, result


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Run the block on ``stream``, in order with the current stream before and after."""
    current = torch.cuda.current_stream()
    if current == stream:
        yield
        return
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def beside(place: Arena, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a function on the capture stream, as part of the current stream's work.

    Some libraries make a handle for each stream, which must exist before the capture.
    """
    current = torch.cuda.current_stream()
    with on_stream(place.stream):
        made = fn(*args, **kwargs)
    for tensor in tensors_of(made):
        if tensor.is_cuda:
            used_on(tensor, current)  # made on one stream, used on the other: it must not be reused meanwhile
    return made


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def copy_in(buffers: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors that are not already in place, in one launch if torch can."""
    pairs = [(b, g) for b, g in zip(buffers, given) if b.data_ptr() != g.data_ptr() or b.stride() != g.stride()]
    if pairs:
        # Below autograd: a buffer is plain memory, whatever it belonged to when it was made.
        with torch.no_grad():
            copy_together([b for b, _ in pairs], [g.detach() for _, g in pairs])


def like(tensor: Tensor) -> Tensor:
    """Fresh dense memory, with dims in the tensor's order."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor, requires_grad=False)
    strides = dense_strides(tensor.size(), dim_order(tensor))
    return torch.empty_strided(tensor.size(), strides, dtype=tensor.dtype, device=tensor.device)


class CapturedFunction:
    """A function over static inputs, run as a graph if possible.

    1. Warm-up: the owner runs the function, with `beside`.
    2. Record: `capture`; if that fails it stays in 4 until it is captured again.
    3. Replay: `run` launches the graph. A replay that fails is undone, and 4 does the run.
    4. Eager: the function itself on the same inputs, into the same outputs. `fall_back` reports why: for this run
       if a value that the capture read has changed, for good if the graph failed.

    Args:
        place: the arena whose stream captures; the caller holds its lock.
        fn: the function to capture.
        args, kwargs: its arguments; their tensors are the static inputs.
        pool: memory shared with other captures: another piece's, or a ``graph_pool_handle()``.
        into: buffers for the tensors among the results, in order; None leaves them in the pool.
        name: its name in messages.
        on_unsafe: what its capture does with unsafe operations; None for the process's default.
        keeps_grad_mode: run in the caller's grad mode; its results are known to need no gradients.
    """

    def __init__(
        self,
        place: Arena,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        pool: Any = None,
        into: Sequence[Tensor] | None = None,
        name: str = "",
        on_unsafe: OnUnsafe | None = None,
        keeps_grad_mode: bool = False,
    ) -> None:
        self.place = place
        self._mode = nullcontext if keeps_grad_mode else torch.no_grad
        self.fn = fn
        self.args = tuple(args)
        self.kwargs = kwargs or {}
        self.pool = pool
        self.into = into
        self.name = name or getattr(fn, "__qualname__", type(fn).__name__)
        self.on_unsafe = on_unsafe
        self.graph: Any = None
        self.why_eager = ""
        self.outputs: Any = None

    def capture(self) -> bool:
        """Record the function; False if that failed and it will run eagerly."""

        def call() -> Any:
            with self._mode():
                return self._store(self.fn(*self.args, **self.kwargs))

        try:
            if self.pool is None:
                self.pool = self.place.new_pool()
            self.graph, self.outputs = record(self.place, self.pool, call, self.on_unsafe)
        except RuntimeError as error:  # out of memory too
            if is_interrupt(error):
                raise
            self.pool = None
            self.fall_back("its capture failed", error, for_good=True)
            return False
        self.why_eager = ""
        return True

    def run(self) -> Any:
        """Run once, by graph or eagerly; the results are in ``outputs``."""
        if self.graph is None:
            self.run_eagerly()
            return self.outputs
        try:
            replay(self.graph)
        except GuardMiss as miss:
            self.fall_back("a value that the capture read has changed", miss.__cause__)
            self.run_eagerly()
        except RunEagerly as failed:
            self.fall_back("its replay failed", failed.__cause__, for_good=True)
            self.run_eagerly()
        return self.outputs

    def run_eagerly(self) -> None:
        """Run the function itself, into the same outputs."""
        with self._mode():
            made = self.fn(*self.args, **self.kwargs)
            if self.outputs is None or self.into is not None:
                self.outputs = self._store(made)
            else:
                copy_in(tensors_of(self.outputs), tensors_of(made))

    def upload(self) -> None:
        """Upload the graph to the device before its first launch, if the runtime can."""
        driver = self.place.state.driver
        if self.graph is not None and driver is not None and "upload" not in driver.missing:
            driver.upload(self.graph.raw_cuda_graph_exec(), torch.cuda.current_stream().cuda_stream)

    def _store(self, made: Any) -> Any:
        if self.into is None:
            return made
        flat, spec = pytree.tree_flatten(made)
        copy_in(self.into, [leaf for leaf in flat if isinstance(leaf, Tensor)])
        buffers = iter(self.into)
        return pytree.tree_unflatten([next(buffers) if isinstance(leaf, Tensor) else leaf for leaf in flat], spec)

    def fall_back(self, reason: str, error: BaseException | None, *, for_good: bool = False) -> None:
        """Report that the function runs eagerly, and why; with ``for_good``, from now on."""
        said = first_line(error) if error is not None else ""
        if for_good:
            self.graph, self.why_eager = None, f"{reason}: {said}"
        self.place.state.report("fallback", f"{reason}; it runs eagerly ({said})", self.name)
