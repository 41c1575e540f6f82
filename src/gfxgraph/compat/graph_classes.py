"""The API of gfxgraph 1.x and of its documents, implemented with today's.

    ShapeBucketPool(model, buckets=[1, 4, 8])(x)          graphed(model, buckets=...)
    ConditionalGraph().add_branch(...).capture(x).run     Conditional({...})
    BridgedCUDAGraph().capture(...) / .replay(...)        any of these

They keep their signatures and their documented behaviour. Where 1.x gave wrong results (views of results overwritten
by later calls, padding that leaked into a mean, a replay that returned None) they give correct ones. As in 1.x,
everything runs without gradients.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gfxgraph.callables.api import graphed
from gfxgraph.callables.control.conditional import Conditional
from gfxgraph.capture.record.user_lines import place, shown
from gfxgraph.capture.undo import restoring_state
from gfxgraph.errors import CaptureError, ReplayError
from gfxgraph.process import process

DEFAULT_BUCKETS = (1, 2, 4, 8, 16, 32, 64)

READY, NEEDS_WARMUP, FAILED = 0, 1, 2


class ShapeBucketPool:
    """A function of one tensor, captured once for each bucket of its first dimension.

    Args:
        model_fn: the function.
        buckets: sizes; inputs are padded up to one, larger ones run eagerly.
        warmup: capture every bucket at the first call, largest first, instead of on demand.

    Raises:
        CaptureError: `older_capture`, without a function.
        TypeError: ``model_fn`` cannot be called.
    """

    def __init__(
        self,
        model_fn: Callable[..., object] | None = None,
        buckets: Sequence[int] | None = None,
        warmup: bool = False,
    ) -> None:
        if model_fn is None:
            raise CaptureError("older_capture", problem="ShapeBucketPool needs model_fn: what to capture")
        if not callable(model_fn):
            raise TypeError(f"model_fn must be callable, not {type(model_fn).__name__}")
        self.model_fn = model_fn
        self.buckets = sorted({int(b) for b in buckets or DEFAULT_BUCKETS})
        self._graphed: Any = graphed(
            self._call, dynamic={"batch": {0: "batch"}}, buckets=self.buckets, max_graphs=len(self.buckets) + 1
        )
        self._warms_all = warmup
        self._last: Tensor | None = None

    @restoring_state
    def __call__(self, input_tensor_or_size: Tensor | int) -> Any:
        """Run on a tensor; with a number, on that many rows of the last tensor.

        Raises:
            CaptureError: `older_capture`, for a number before the first tensor.
        """
        if not isinstance(input_tensor_or_size, (Tensor, int)):
            raise TypeError(f"expected a tensor or a size, got {type(input_tensor_or_size).__name__}")
        with torch.no_grad():
            if isinstance(input_tensor_or_size, int):
                if self._last is None or self._last.size(0) < input_tensor_or_size:
                    raise CaptureError(
                        "older_capture", problem=f"no tensor of {input_tensor_or_size} rows has been given yet"
                    )
                return self._graphed(self._last[:input_tensor_or_size])
            if self._warms_all:
                self._warms_all = False
                self.warmup(input_tensor_or_size)
            self._last = input_tensor_or_size
            return self._graphed(input_tensor_or_size)

    @restoring_state
    def warmup(self, example: Tensor) -> None:
        """Capture every bucket for inputs like ``example``, largest first; the function runs for that.

        Args:
            example: [rows, ...], any dtype, on the device.
        """
        with torch.no_grad():
            self._graphed.capture_all(example)

    def select_bucket(self, size: int) -> int:
        """The smallest bucket that holds ``size`` rows; -1 if none does."""
        return next((bucket for bucket in self.buckets if bucket >= size), -1)

    def route_bucket(self, input_size: int) -> tuple[int, int]:
        """The bucket for a size, and its state.

        Args:
            input_size: rows of an input.

        Returns:
            The bucket, -1 if none is large enough, and its state: 0 captured, 1 not yet captured, 2 runs eagerly.
        """
        bucket = self.select_bucket(input_size)
        if bucket < 0 or bucket in self.failed_buckets:
            return bucket, FAILED
        return bucket, READY if bucket in self.captured_buckets else NEEDS_WARMUP

    @property
    def captured_buckets(self) -> list[int]:
        """Buckets that have a graph."""
        captured = {entry.bucket.get("batch") for entry in self._entries() if entry.is_captured}
        return [bucket for bucket in self.buckets if bucket in captured]

    @property
    def failed_buckets(self) -> list[int]:
        """Buckets whose calls run eagerly for good: not captured, or padding would change results."""
        failed = {entry.bucket.get("batch") for entry in self._entries() if entry.why_eager}
        routes = self._graphed._routes.values()
        failed |= {route.bucketed.bucket["batch"] for route in routes if route.why_eager and route.bucketed}
        return [bucket for bucket in self.buckets if bucket in failed]

    @property
    def memory_overhead(self) -> int:
        """Bytes that the captures take: static inputs, and what they added to the shared pool."""
        return sum(entry.nbytes for entry in self._entries())

    def _entries(self) -> list[Any]:
        return list(self._graphed._entries.values())

    def _call(self, batch: Tensor) -> object:
        return self.model_fn(batch)


class ConditionalGraph:
    """Named branches, each captured as a graph; one runs at a time."""

    def __init__(self) -> None:
        self._branches: dict[object, Callable[..., object]] = {}
        self._failed: list[object] = []
        self._chosen: Conditional | None = None
        self._last: Tensor | None = None

    def add_branch(self, name: str, fn: Callable[..., object]) -> None:
        """Register a branch; before ``capture``.

        Args:
            name: of the branch; replaces a branch of the same name.
            fn: takes the input tensor.

        Raises:
            RuntimeError: ``capture`` has been called.
            TypeError: ``fn`` cannot be called.
        """
        if self._chosen is not None:
            raise RuntimeError("Cannot add branches after capture: add them all, then call capture() once")
        if not callable(fn):
            raise TypeError(f"Branch function must be callable, got {type(fn).__name__}")
        self._branches[name] = fn

    @restoring_state
    def capture(self, example_input: Tensor) -> None:
        """Capture all branches. One that raises or cannot be captured is a failed branch, which runs eagerly.

        Args:
            example_input: with the shape, dtype and device of the inputs to ``run``.

        Raises:
            TypeError: it is not a tensor.
            CaptureError: `older_capture`, if no branch was added.
        """
        if not isinstance(example_input, Tensor):
            raise TypeError(f"example_input must be a tensor, got {type(example_input).__name__}")
        if not self._branches:
            raise CaptureError("older_capture", problem="no branch was added before capture()")
        self._chosen = Conditional(self._branches)
        self._last = example_input
        self._failed = []
        for name in self._branches:
            try:
                with torch.no_grad():  # as in run(); the first call warms up
                    for _ in range(2):
                        self._chosen(name, example_input)
            except Exception as error:  # noqa: BLE001  (the branch's own: the others are captured, run() raises it)
                self._failed.append(name)
                process.tell("fallback", f"branch {name!r} could not be captured: {type(error).__name__}: {error}")

    @restoring_state
    def run(self, branch: object, input_tensor: Tensor | None = None) -> object:
        """Run one branch.

        Args:
            branch: its name or index.
            input_tensor: shape and dtype as at ``capture``; None for the last tensor passed.

        Returns:
            What the branch returns.

        Raises:
            ReplayError: `replay_before_capture`.
            KeyError: there is no such branch.
        """
        if self._chosen is None:
            raise ReplayError("replay_before_capture", where=shown(place()), quote="Call capture() first")
        if input_tensor is not None:
            self._last = input_tensor
        try:
            with torch.no_grad():
                return self._chosen(branch, self._last)
        except ReplayError as error:
            if error.code != "no_such_branch":
                raise
            raise KeyError(f"Unknown branch '{branch}'. Available: {self.branches}") from error

    @property
    def branches(self) -> list[object]:
        """Names of the branches."""
        return list(self._branches)

    @property
    def failed_branches(self) -> list[object]:
        """Branches that raised at ``capture`` or could not be captured; they run eagerly."""
        eager = self._chosen.eager_branches if self._chosen is not None else {}
        return [name for name in self._branches if name in eager or name in self._failed]


@functools.cache
def _with_keywords(kind: Any) -> object:
    """The class of a graph after ``capture``: its replay takes the keywords of gfxgraph 1.x, at their cost."""

    def replay(self: Any, **older: object) -> object:
        return self._older.replay(self, **older) if older else kind.replay(self)

    named = {"__slots__": (), "__module__": kind.__module__, "replay": replay, "_takes_keywords": True}
    return kind if hasattr(kind, "_takes_keywords") else type(kind.__name__, (kind,), named)


class OlderCapture:
    """Captures in the style of 1.x: ``with graph.capture(...): block``, then ``graph.replay(...)``.

    Args:
        dynamic_shapes: ``replay(input_tensor=x)`` runs ``model_fn`` in the bucket for ``x``.
        buckets: sizes; by default 1, 2, 4 ... 64.
        conditional_branches: functions by name; ``replay(branch=name, input_tensor=x)`` runs one.
        model_fn: ``replay(input_tensor=x)`` gives its result.

    Raises:
        CaptureError: `older_capture`.
    """

    def __init__(
        self,
        graph: Any,
        dynamic_shapes: bool = False,
        buckets: Sequence[int] | None = None,
        conditional_branches: Any = None,
        model_fn: Callable[..., object] | None = None,
    ) -> None:
        self._graph = weakref.ref(graph)
        self._block: torch.cuda.graph | None = None
        self.pool: ShapeBucketPool | None = None
        self.chosen = Conditional(conditional_branches) if conditional_branches else None
        self.model = graphed(model_fn) if model_fn is not None and not dynamic_shapes else None
        graph._older = self
        graph.__class__ = _with_keywords(graph.__class__)
        if dynamic_shapes and model_fn is None:
            raise CaptureError(
                "older_capture", problem="dynamic_shapes needs model_fn: a block of code has no other shapes"
            )
        if dynamic_shapes:
            self.pool = ShapeBucketPool(model_fn, buckets)

    def __enter__(self) -> OlderCapture:
        graph = self._graph()
        if graph is not None and self.pool is None and self.chosen is None:  # else the block just runs
            stream = torch.cuda.Stream()
            self._block = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
            self._block.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(*error)
            block.cuda_graph.__class__ = _with_keywords(block.cuda_graph.__class__)  # under guard it has another

    @restoring_state
    def replay(self, graph: Any, *, batch_size: Any = None, branch: Any = None, input_tensor: Any = None) -> object:
        """The result of ``replay(batch_size=, branch=, input_tensor=)``."""
        with torch.no_grad():
            if self.chosen is not None and branch is not None:
                return self.chosen(branch, *(() if input_tensor is None else (input_tensor,)))
            if self.pool is not None and (input_tensor is not None or batch_size is not None):
                given = input_tensor if input_tensor is not None else int(batch_size)
                if isinstance(given, Tensor) and batch_size is not None:
                    given = given[: int(batch_size)]
                return self.pool(given)
            if self.model is not None and input_tensor is not None:
                return self.model(input_tensor)
        if branch is not None or batch_size is not None:
            problem = "batch_size= and branch= need the capture(...) that they go with"
            raise CaptureError("older_capture", problem=problem)
        return graph.replay()
