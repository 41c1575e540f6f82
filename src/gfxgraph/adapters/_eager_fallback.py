"""Eager replacement for an engine's graph that could not be captured; results keep their memory.

Problem: an engine cuts a model into pieces and captures each. The next piece's graph reads a piece's results
at the address it saw when it was captured. A piece that runs eagerly puts its
results at a new address every time, and the graph after it would silently go on reading the old one.
Idea: the tensors of its first eager run are kept, and results of later runs are copied there.

Invariant: the returned tensors have the same addresses at every call, like a graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gfxgraph.errors import first_line
from gfxgraph.process import process


class Downgraded:
    """A callable whose results keep their addresses.

    Args:
        fn: what the graph would have been captured from.
    """

    def __init__(self, fn: Callable[..., object]) -> None:
        self.fn = fn
        self._kept: list[Any] = []

    def __call__(self, *args: object, **kwargs: object) -> object:
        made = self.fn(*args, **kwargs)
        tensors = list(tensors_of(made))
        if [(t.shape, t.dtype) for t in self._kept] != [(t.shape, t.dtype) for t in tensors]:
            self._kept = tensors
            return made
        for kept, new in zip(self._kept, tensors):
            if kept.data_ptr() != new.data_ptr():
                kept.copy_(new)
        return _with(made, iter(self._kept))


def attempt(
    owner: object,
    pool: object,
    group: object,
    call: Callable[[], object],
    *,
    began: Callable[[], bool],
    clean: Callable[[], object],
) -> tuple[object, RuntimeError | None]:
    """Let an engine make a call in which it captures.

    Args:
        owner: keeps the pool alive from then on, if the capture failed.
        pool: what is captured into.
        group: the ranks that must agree on whether there is a graph, as `any_rank_failed` takes them.
        call: the engine's own.
        began: asked after a failure: whether a capture had begun; else the failure is the model's own.
        clean: what the engine leaves behind when a capture fails.

    Returns:
        The call's result and None; or the error with which this capture, or that of another rank, failed.
    """
    # lazily: adapters are listed and queried without torch, too
    from gfxgraph.capture.undo import is_interrupt

    result, error = None, None
    holder = hold_pool(pool)
    try:
        result = call()
    except RuntimeError as caught:
        if not began() or is_interrupt(caught):
            raise
        error = caught
        clean()
    if not any_rank_failed(group, error is not None):
        return result, None
    vars(owner)["_gfxgraph_holder"] = holder
    return None, error or RuntimeError("it failed on another rank")


def hold_pool(pool: Any) -> object:
    """Keep a pool alive during an attempt to capture into it; drop the result once the pool has a graph.

    torch refuses a pool whose only graphs have failed, and engines use one pool for all their graphs.

    Returns:
        None if there is no pool, or the bridge is off, or the pool cannot be held, as the capture will find too.
    """
    state = process.current()
    if pool is None or state is None or tuple(pool) == (0, 0):
        return None
    # lazily: adapters are listed and queried without torch, too
    import torch

    from gfxgraph.capture.function_capture import CaptureDied, SharedPool

    for _ in range(2):
        try:
            return SharedPool(state, torch.cuda.Stream(), pool)
        except CaptureDied:
            torch.cuda.empty_cache()  # if its graphs were just cleared, the pool is freed and made anew
    return None


def report(engine: str, graph: str, error: BaseException) -> None:
    """Count that one of an engine's graphs became eager, and log it the first time."""
    process.tell("fallback", f"{engine}: a graph could not be captured; it runs eagerly ({first_line(error)})", graph)


def any_rank_failed(group: Any, failed: bool) -> bool:
    """Agree among the ranks of an engine's group: a graph on one rank and eager on another may hang.

    Args:
        group: has ``world_size`` and ``cpu_group``, as vLLM's and SGLang's coordinators do; None: one rank.
    """
    if getattr(group, "cpu_group", None) is None or group.world_size == 1:
        return failed
    # lazily: adapters are listed and queried without torch, too
    import torch

    flag = torch.tensor(int(failed))
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    return bool(flag.item())


def tensors_of(tree: object) -> Iterator[Any]:
    """The tensors in a result: in containers, and in attributes of the engines' own objects."""
    # lazily: adapters are listed and queried without torch, too
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors_of(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from tensors_of(value)
    elif hasattr(tree, "__dict__") and not isinstance(tree, (type, torch.nn.Module)):
        yield from tensors_of(vars(tree))


def _with(tree: object, tensors: Iterator[object]) -> Any:
    """Rebuild the result with ``tensors`` instead of its own, in the order of ``tensors_of``."""
    # lazily: adapters are listed and queried without torch, too
    import torch

    if isinstance(tree, torch.Tensor):
        return next(tensors)
    if isinstance(tree, dict):
        return type(tree)({name: _with(value, tensors) for name, value in tree.items()})
    if isinstance(tree, (list, tuple)):
        values = [_with(value, tensors) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if hasattr(tree, "__dict__") and not isinstance(tree, (type, torch.nn.Module)):
        for name, value in list(vars(tree).items()):
            setattr(tree, name, _with(value, tensors))
    return tree
