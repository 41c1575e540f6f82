"""Tier 1: tensors that own plain contiguous memory.

Kernels that assume such memory (Triton, extensions) read and write outside it if a view has zero
strides, gaps or shared memory. Such tensors are replaced by contiguous copies at the boundary, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.capture.record.user_lines import place
from gfxgraph.capture.replay.graph_tensors import has_layout, kind_of
from gfxgraph.core.strides import LayoutReport, oddities
from gfxgraph.core.tape import where_of
from gfxgraph.errors import CaptureError
from gfxgraph.guard.tensor_names import layout_text
from gfxgraph.process import process


def validate_layout(tensor: Tensor, name: str = "tensor", *, strict: bool = False) -> LayoutReport:
    """Report what is unusual about a tensor's memory.

    Args:
        tensor: any shape, dtype and device; its values are not read.
        name: what the tensor is called in the report.
        strict: raise if it is unusual.

    Returns:
        A report that is true if nothing is unusual.

    Raises:
        TypeError: not a tensor.
        CaptureError: `unsafe_layout`, if ``strict``.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"validate_layout() takes a tensor, not {tensor!r}")
    if not has_layout(tensor):
        return LayoutReport(name, kind_of(tensor).removeprefix("a "), ())
    storage = tensor.untyped_storage()
    found = oddities(
        tuple(tensor.size()),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        storage.nbytes() // max(tensor.element_size(), 1),
        tensor.is_neg() or tensor.is_conj(),
    )
    text = layout_text(tensor.size(), tensor.stride(), tensor.dtype)
    report = LayoutReport(name, f"{text}, offset {tensor.storage_offset()}, {tensor.device}", found)
    if strict and found:
        raise CaptureError("unsafe_layout", tensor=name, layout=", ".join(found), where=where_of(*place()))
    return report


def make_safe(value: object) -> Any:
    """Make every tensor own plain contiguous memory.

    Args:
        value: a tensor, or any nesting of containers with tensors.

    Returns:
        The same structure. Tensors that already do are returned as they are; others are copied, and
        counted in ``stats()["guard_repairs"]``.
    """
    return torch_names.tree_map_only(Tensor, _plain, value)


make_capture_safe = make_safe
"""By its name in 1.x."""


def _plain(tensor: Tensor) -> Tensor:
    if validate_layout(tensor):
        return tensor
    state = process.current()
    if state is not None:
        state.counters.add("guard_repaired")
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def repaired(args: Any, kwargs: Any, writes: Sequence[tuple[int, str]]) -> tuple[Any, Any]:
    """Arguments of an operation that is not torch's, with safe copies of those that it only reads.

    Args:
        writes: position and name of each argument that it writes, which must not be copied.
    """
    positions, names = {at for at, _ in writes}, {name for _, name in writes}
    safe = tuple(arg if at in positions else make_safe(arg) for at, arg in enumerate(args))
    return safe, {name: arg if name in names else make_safe(arg) for name, arg in kwargs.items()}
