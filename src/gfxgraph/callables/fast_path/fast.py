"""The fast path: one call of a known signature with as little Python as possible.

Problem: comparing shapes, strides and dtypes in Python costs a microsecond per tensor, as much as a
replay. Idea: torch's own C++ guards, made for compiled code, compare all tensors in one call and
torch's settings in another; after them comes straight-line code, generated for the number of
arguments and results, with every address and size already looked up.

A fast path returns ``MISS`` if anything differs from when it was made; the slow path then finds
out what. It never decides anything itself, and it exists only if a replay is one launch, no argument
is written to, and every result is the graph's own.

Source: measured (benchmarks/bench_callables.py); docs/decisions/0007.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gfxgraph.callables.fast_path.writer import Reads, Writer
from gfxgraph.callables.inputs import is_dense
from gfxgraph.callables.signature import Fast

if TYPE_CHECKING:
    from gfxgraph.callables.captured_signature import Captures, Instance


def has_guards() -> bool:
    """True if this torch has the guards that the fast path needs."""
    guards = torch._C._dynamo.guards
    return hasattr(guards, "TensorGuards") and hasattr(guards, "GlobalStateGuard")


def make_fast(
    entry: Captures,
    mark: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    sizes: Sequence[Sequence[int] | None] | None,
    hot: bool,
    world: Reads,
    repeats_last: bool = False,
    sample_every: int = 0,
    asks_by_name: bool = False,
) -> Fast | None:
    """Make the fast path for calls like this one; None if they need the slow one.

    Args:
        mark: the route for which the padding must have been filled.
        sizes: what each result is cut to.
        hot: hand out the graph's buffers.
        world: what the graph reads besides its arguments, and whether that may have changed.
        repeats_last: padding repeats the last row.
        sample_every: leave one call in this many to the slow path; 0 for none.
        asks_by_name: leave calls with tensors that have Python attributes to the slow path.
    """
    instances = entry.ring if hot else entry.instances()[:1]
    if (entry.mutates and not entry.in_place) or not instances or not all(_is_simple(i) for i in instances):
        return None
    if any(s.span is not None for s in entry.statics) or not all(t.is_cuda and is_dense(t) for t in tensors):
        return None
    writer = Writer(entry, mark, tensors)
    if not has_guards() or not writer.takes(args, kwargs):
        return None
    writer.guards(world, asks_by_name)
    if sample_every:
        writer.names["is_sampled"] = itertools.cycle((False,) * (sample_every - 1) + (True,)).__next__
        writer.line("if is_sampled(): return MISS")
    writer.sizes, writer.repeats_last = sizes, repeats_last
    if hot:
        is_joined = all([writer.join(instance, ()) for instance in instances])
        if is_joined:
            writer.copy_in(joined=True)
        else:
            writer.copy_in()
        writer.hand_out(instances, is_joined)
        if not entry.all_held or entry.first is None or not _is_simple(entry.first):
            writer.line("return MISS")
            return writer.function()
        # All results are held: copy, as by default.
        if is_joined and writer.join(entry.first, entry.first.outputs.results):
            writer.launch_joined(entry.first)
            return writer.function()
        if is_joined:
            writer.copy_in()
        writer.copy_out(entry.first)
        return writer.function()
    assert entry.first is not None
    if writer.join(entry.first, entry.first.outputs.results):
        writer.copy_in(joined=True)
        writer.launch_joined(entry.first)
    else:
        writer.copy_in()
        writer.copy_out(entry.first)
    return writer.function()


def _is_simple(instance: Instance) -> bool:
    outputs = instance.outputs
    return (
        instance.graph.is_plain
        and all(r.made is not None and not r.is_host for r in outputs.results)
        and not instance.outputs.is_shared
        and all(is_dense(r.made) for r in outputs.results if r.made is not None)
    )
