"""Which operations treat rows independently, so that a call may be split along them.

This is a stronger condition than for padding: padding comes after the rows of the call, while a chunk also lacks the
rows before it. A cumulative sum or a position is right in a bucket and wrong in a chunk. So chunks are allowed only
if
every operation on rows computes each row of its results from the same row of its arguments.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gfxgraph.callables.padding.rows import JudgedOperation, RowDependence, RowValue, wrap

_ALONG = frozenset(
    f"aten::{name}"
    for name in (
        "slice select cat stack split split_with_sizes unbind flip cumsum cumprod logcumsumexp _softmax _log_softmax "
        "sort topk sum mean amax amin max min argmax argmin prod any all var var_mean std logsumexp gather norm "
        "linalg_vector_norm"
    ).split()
)
"""Operations along a dim: by row if that is not the dim of the rows."""
_BY_ROW = frozenset(
    f"aten::{name}"
    for name in (
        "mm addmm bmm baddbmm linear matmul mv view _unsafe_view reshape permute transpose t unsqueeze squeeze "
        "expand clone detach alias _to_copy contiguous native_layer_norm _native_batch_norm_legit_no_training "
        "where masked_fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full"
    ).split()
)
_BY_BATCH = frozenset(
    f"aten::{name}"
    for name in (
        "convolution native_group_norm _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_cudnn_attention"
    ).split()
)
"""By row if the rows are the first dim."""


def is_by_row(step: JudgedOperation, made: Sequence[RowDependence], is_touched: bool) -> bool:
    """Whether each row of the results depends only on the same row of the arguments.

    Args:
        made: row dependence of each result.
        is_touched: the arguments include a size of the dim.
    """
    if torch.Tag.nondeterministic_seeded in step.op.tags:
        return False  # each chunk would draw its own numbers
    given = [value for value in step.tensors() if not value.rows.is_free]
    if not given and not is_touched:
        return True
    if any(len(value.rows.dims) != 1 for value in given) or any(len(rows.dims) != 1 for rows in made):
        return False
    name = step.op._schema.name
    if name == "aten::embedding":
        weight = step["weight"]
        return isinstance(weight, RowValue) and weight.rows.is_free
    if name in _ALONG:
        return given != [] and all(_is_elsewhere(step, value) for value in given)
    if name in _BY_BATCH:
        return all(0 in value.rows.dims for value in given)
    return name in _BY_ROW or torch.Tag.pointwise in step.op.tags


def _is_elsewhere(step: JudgedOperation, value: RowValue) -> bool:
    named: Any = step.args.get("dim", step.args.get("dims"))
    dims = named if isinstance(named, (list, tuple)) else [named]
    return all(isinstance(dim, int) and wrap(dim, value.ndim) not in value.rows.dims for dim in dims) and bool(dims)
