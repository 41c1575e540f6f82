"""Switching on and off, counters, and the three classes of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gfxgraph.compat import older
from gfxgraph.errors import ReplayError
from gfxgraph.process import health
from gfxgraph.process.bridge import is_enabled
from gfxgraph.startup.activation import disable, enable

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph as BridgedCUDAGraph

__all__ = [
    "BridgedCUDAGraph", "ConditionalGraph", "ShapeBucketPool", "disable", "enable", "health_check", "is_enabled",
    "stats",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "BridgedCUDAGraph":
        raise AttributeError(name)
    # lazily: it is the class of the torch, or simulator, now in force
    from gfxgraph.startup import graph_class

    return graph_class.BridgedCUDAGraph


def stats() -> dict[str, Any]:
    """The counters of ``gfxgraph.stats``; the mean time is 0.0, not None, before a replay was timed."""
    found = health.stats()
    return {**found, "avg_replay_us": found["avg_replay_us"] or 0.0}


def health_check() -> dict[str, Any]:
    """The answers of ``gfxgraph.health_check``, with "unknown" and 0 where that has None."""
    found = health.health_check()
    unknown = {"gpu": "unknown", "rocm": "unknown", "vram_total_mb": 0, "vram_free_mb": 0}
    return {name: unknown.get(name) if value is None else value for name, value in found.items()}


class ShapeBucketPool(older.ShapeBucketPool):
    """``gfxgraph.ShapeBucketPool``; sizes above the largest bucket have none (-1), and run eagerly.

    Args:
        model_fn: takes a tensor whose first dimension is the batch.
        buckets: batch sizes to capture.
        warmup: capture all of them at the first call.

    Raises:
        TypeError: ``model_fn`` cannot be called.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        buckets: list[int] | None = None,
        warmup: bool = False,
    ) -> None:
        if model_fn is not None and not callable(model_fn):
            raise TypeError(f"model_fn must be callable, not {type(model_fn).__name__}")
        super().__init__(model_fn, buckets, warmup)

    def select_bucket(self, size: int) -> int:
        """The smallest bucket that holds ``size`` rows, -1 where none does."""
        return self.route_bucket(size)[0]

    def route_bucket(self, input_size: int) -> tuple[int, int]:
        """The bucket for a size, and its state.

        Args:
            input_size: rows of an input.

        Returns:
            The bucket (-1: none is large enough), and 0 where it is captured, 1 where it is to be captured, 2 where
            it runs eagerly.
        """
        if input_size > self.buckets[-1]:
            return -1, older.FAILED
        bucket = next(each for each in self.buckets if each >= input_size)
        if bucket in self.failed_buckets:
            return bucket, older.FAILED
        return bucket, older.READY if bucket in self.captured_buckets else older.NEEDS_WARMUP


class ConditionalGraph(older.ConditionalGraph):
    """``gfxgraph.ConditionalGraph``; an unknown branch is a KeyError."""

    def add_branch(self, name: str, fn: Callable[..., Any]) -> None:
        """Register a branch; before ``capture``.

        Args:
            name: of the branch.
            fn: takes the input tensor.

        Raises:
            RuntimeError: ``capture`` has been called.
            TypeError: ``fn`` cannot be called.
        """
        if self._chosen is not None:
            raise RuntimeError("Cannot add branches after capture: add them all, then call capture() once")
        if not callable(fn):
            raise TypeError(f"Branch function must be callable, got {type(fn).__name__}")
        super().add_branch(name, fn)

    def run(self, branch: str, input_tensor: Tensor | None = None) -> Any:
        """Run one branch.

        Args:
            branch: its name.
            input_tensor: shape and dtype as at ``capture``; the last tensor that was given where None.

        Returns:
            What the branch returns.

        Raises:
            KeyError: there is no such branch.
            ReplayError: `replay_before_capture`.
        """
        try:
            return super().run(branch, input_tensor)
        except ReplayError as error:
            if error.code != "no_such_branch":
                raise
            raise KeyError(f"Unknown branch '{branch}'. Available: {self.branches}") from error
