"""Rules for operations that move whole elements: views, slices, joins.

The front of a dim must stay the front. A view is followed exactly: the dims on both sides are grouped
where their products agree. Within a group the rows may end up in one dim, in as many blocks as there are
before them.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gfxgraph.callables.padding.rows import (
    FREE,
    Dims,
    Front,
    JudgedOperation,
    Padding,
    RowDependence,
    RowValue,
    Why,
    broadcast,
    merge,
    rule,
    wrap,
)

_FRONT = (1, None)
"""The block counts with which rows lie at the front of their dim."""


def _moved(value: RowValue, dims: Dims, counts: tuple[int, int] | None = None) -> RowDependence:
    return replace(value.rows, dims=dims, counts=counts)


@rule("view _unsafe_view reshape _reshape_alias view_copy _reshape_copy flatten unflatten", sizes="size shape stride")
def view(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    if step["dtype"] is not None:  # the same bytes as another type, which changes the last dim if anything
        if value.ndim - 1 in value.rows.dims:
            return step.mixed(Why.GROWS)
        return replace(value.rows, counts=None, is_nonnegative=False, below=None)
    if not value.rows.dims:
        return step.mixed(Why.GROWS) if any(map(step.depends, step.out[0].shape)) else _moved(value, {})
    dims = viewed(step, value, step.out[0].shape)
    if dims is None:
        return step.mixed(Why.GROWS)
    counts = value.rows.counts
    if counts is not None:
        same = [d for d, size in enumerate(step.out[0].shape) if step.depends(size)]
        is_same = len(same) == 1 and step.sizes.same(step.out[0].shape[same[0]], value.shape[counts[0]])
        counts = (same[0], counts[1]) if is_same else None
    return replace(_moved(value, dims, counts), repeats=value.rows.repeats and _keeps_units(step, value, dims))


def _keeps_units(step: JudgedOperation, value: RowValue, dims: Dims) -> bool:
    """Whether no element of a dim holds parts of two rows, so that a repeated row is a repeated element."""
    old = [step.sizes.at(value.shape[d]) for d in value.rows.dims]
    for d in dims:
        new = step.sizes.at(step.out[0].shape[d])
        if not any(all(a % b == 0 for a, b in zip(new, size)) for size in (*old, step.sizes.at(step.sizes.symbol))):
            return False
    return True


def viewed(step: JudgedOperation, value: RowValue, shape: Sequence[Any]) -> Dims | None:
    """Which dims of the new shape carry rows; None if that is unknown."""
    made: dict[int, int | None] = {}
    for old, new in groups(step, value.shape, shape):
        carrying = [d for d in old if d in value.rows.dims]
        ends = [d for d in new if step.depends(shape[d])]
        if not carrying and not ends:
            continue
        if len(carrying) != 1 or len(ends) != 1:
            return None
        outer = value.rows.dims[carrying[0]]
        before = step.sizes.product(shape[d] for d in new if d < ends[0])
        if outer is None and len(old) == 1:
            made[ends[0]] = None  # constant along the whole group
            continue
        lead = step.sizes.product(value.shape[d] for d in old if d < carrying[0])
        blocks = lead[0] * (outer or 1)
        if len(set(before)) != 1 or len(set(lead)) != 1 or not all(before) or not all(lead) or blocks % before[0]:
            return None
        blocks //= before[0]
        if any(size % blocks for size in step.sizes.at(shape[ends[0]])):
            return None
        made[ends[0]] = blocks
    return made


def groups(step: JudgedOperation, old: Sequence[Any], new: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """Runs of dims on both sides that hold the same elements; the whole shape if no smaller ones agree."""
    found = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(a), j + len(b)
        while True:
            left, right = step.sizes.product(old[d] for d in a), step.sizes.product(new[d] for d in b)
            if left == right:
                break
            if j < len(new) and (i >= len(old) or sum(left) > sum(right)):
                b.append(j)
                j += 1
            elif i < len(old):
                a.append(i)
                i += 1
            else:
                return [(list(range(len(old))), list(range(len(new))))]
        found.append((a, b))
    return found


@rule("permute permute_copy")
def permute(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    return _rearranged(value, [wrap(d, value.ndim) for d in step["dims"]])


@rule("transpose t transpose_copy t_copy")
def transpose(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    order = list(range(value.ndim))
    if "dim0" not in step.args:
        order.reverse()
    else:
        a, b = wrap(step["dim0"], value.ndim), wrap(step["dim1"], value.ndim)
        if value.ndim:
            order[a], order[b] = order[b], order[a]
    return _rearranged(value, order)


def _rearranged(value: RowValue, order: list[int]) -> RowDependence:
    """Rearrange dims: dim ``k`` of the result is dim ``order[k]``; -1 is a new one."""
    at = {d: k for k, d in enumerate(order) if d >= 0}
    counts = value.rows.counts
    return _moved(
        value,
        {at[d]: outer for d, outer in value.rows.dims.items()},
        (at[counts[0]], counts[1]) if counts is not None and counts[0] in at else None,
    )


@rule("unsqueeze unsqueeze_copy")
def unsqueeze(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    order = list(range(value.ndim))
    order.insert(wrap(step["dim"], value.ndim + 1), -1)
    return _rearranged(value, order)


@rule("squeeze squeeze_copy")
def squeeze(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    which = step["dim"]
    named = range(value.ndim) if which is None else [
        wrap(d, value.ndim) for d in (which if isinstance(which, (list, tuple)) else [which])
    ]  # fmt: skip
    gone = {d for d in named if value.ndim and step.sizes.at(value.shape[d]) == (1, 1, 1)}
    if gone & set(value.rows.dims):
        return step.mixed(Why.GROWS)
    return _rearranged(value, [d for d in range(value.ndim) if d not in gone])


@rule("expand expand_copy", sizes="size")
def expand(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    shape = step.out[0].shape
    shift = len(shape) - value.ndim
    dims: dict[int, int | None] = {d + shift: outer for d, outer in value.rows.dims.items()}
    for d, size in enumerate(shape):
        if step.depends(size) and d not in dims:
            dims[d] = None
    counts = value.rows.counts
    return _moved(value, dims, None if counts is None else (counts[0] + shift, counts[1]))


@rule("slice slice_copy", sizes="end", takes_mixed=True)
def slice_(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    dim = wrap(step["dim"] or 0, value.ndim)
    start, end, stride = step["start"], step["end"], step["step"]
    rows = value.rows
    if rows.mixed is not None:
        front = rows.front
        if front is None or front.dim != dim or start or stride != 1:
            return rows
        return front.rows if step.sizes.same(step.out[0].shape[dim], front.size) else rows
    is_whole = step.sizes.same(step.out[0].shape[dim], value.shape[dim])
    if is_whole:
        return rows
    if dim not in rows.dims:
        dims = dict(rows.dims)
        if step.depends(step.out[0].shape[dim]):
            dims[dim] = 1
            if isinstance(start, int) and start < 0:
                return step.mixed(Why.MOVES)
            return RowDependence(dims, False, is_nonnegative=rows.is_nonnegative, below=rows.below)
        if not isinstance(end, int) and end is not None and step.depends(end):
            return step.mixed(Why.SIZE)
        return _moved(value, dims, rows.counts)
    if rows.dims[dim] not in _FRONT or not isinstance(stride, int):
        return step.mixed(Why.GROWS)
    if not (start is None or (isinstance(start, int) and start >= 0)):
        return step.mixed(Why.MOVES, "a slice that starts from the end")
    to_end = step.sizes.same(end, value.shape[dim]) if end is not None else True
    to_end = to_end or (isinstance(end, int) and end >= 1 << 62)
    keeps_last = to_end and stride == 1 and not start
    dims = {**rows.dims, dim: 1}
    return RowDependence(dims, rows.repeats and keeps_last, rows.is_moved, None, rows.is_nonnegative, rows.below)


@rule("select select_copy")
def select(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    dim, index = wrap(step["dim"], value.ndim), step["index"]
    outer = value.rows.dims.get(dim, 1)
    if dim in value.rows.dims:
        if isinstance(index, int) and index == -1 and value.rows.repeats:
            step.needs = Padding.LAST  # with this padding the last row of the bucket is the last row of the call
        elif not isinstance(index, int) or index < 0:
            return step.mixed(Why.FROM_THE_END)
        if outer not in _FRONT:
            return step.mixed(Why.INTERLEAVED)
    rest = {d: o for d, o in value.rows.dims.items() if d != dim}
    return _rearranged(replace(value, rows=_moved(value, rest, value.rows.counts)), [
        d for d in range(value.ndim) if d != dim
    ])  # fmt: skip


@rule("diagonal diagonal_copy")
def diagonal(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    pair = {wrap(step["dim1"], value.ndim), wrap(step["dim2"], value.ndim)}
    if pair & set(value.rows.dims):
        return step.mixed(Why.GROWS)
    return _rearranged(value, [*(d for d in range(value.ndim) if d not in pair), -1])


@rule("unfold unfold_copy")
def unfold(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    if wrap(step["dimension"], value.ndim) in value.rows.dims:
        return step.mixed()
    return _moved(value, value.rows.dims)


@rule("unbind split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk tensor_split "
      "split_copy split_with_sizes_copy unbind_copy")  # fmt: skip
def split(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    dim = wrap(step["dim"] or 0, value.ndim)
    if dim in value.rows.dims:
        return step.mixed(Why.MOVES, "pieces of one size and number only")
    if "unbind" in step.name:
        return _rearranged(value, [d for d in range(value.ndim) if d != dim])
    return _moved(value, value.rows.dims)


@rule("view_as_real", sizes="")
def as_real(step: JudgedOperation) -> RowDependence:
    return _moved(step["self"], step["self"].rows.dims)


@rule("flip roll rot90")
def reorder(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    dims = step["dims"]
    which = range(value.ndim) if not dims and step.name != "aten::flip" else [wrap(d, value.ndim) for d in dims]
    if any(d in value.rows.dims for d in which):
        return step.mixed(Why.MOVES)
    if step.name == "aten::rot90":
        return step.mixed(Why.NO_RULE)
    return _moved(value, value.rows.dims)


@rule("repeat tile", sizes="repeats dims")
def repeat(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    times = list(step["repeats"])
    shift = len(times) - value.ndim
    dims: dict[int, int | None] = {}
    for d, n in enumerate(times):
        outer = value.rows.dims.get(d - shift, 1)
        if d - shift in value.rows.dims:
            if step.depends(n) or not isinstance(n, int):
                return step.mixed(Why.GROWS)
            dims[d] = outer if n == 1 else None if outer is None else outer * n
        elif step.depends(n):
            dims[d] = None if d < shift or step.sizes.at(value.shape[d - shift]) == (1, 1, 1) else 1
    return _moved(value, dims)


@rule("cat")
def cat(step: JudgedOperation) -> RowDependence:
    values: list[RowValue] = [v for v in step["tensors"] if v.ndim != 1 or step.sizes.at(v.shape[0]) != (0, 0, 0)]
    if not values:
        return FREE
    dim = wrap(step["dim"] or 0, values[0].ndim)
    dims: dict[int, int | None] = {}
    for i, value in enumerate(values):
        for d, outer in value.rows.dims.items():
            if d == dim and (i != len(values) - 1 or outer not in _FRONT) and len(values) > 1:
                return step.mixed(Why.MOVES, "what is joined behind rows comes behind their padding")
            if not merge(dims, d, 1 if d == dim and len(values) > 1 else outer):
                return step.mixed(Why.GROWS)
    return RowDependence(
        dims,
        all(v.rows.repeats for v in values),
        all(v.rows.is_moved or v.rows.is_free for v in values),
        None,
        all(v.rows.is_nonnegative for v in values),
    )


@rule("stack")
def stack(step: JudgedOperation) -> RowDependence:
    values: list[RowValue] = list(step["tensors"])
    rows = broadcast(step, values)
    if rows.mixed is not None:
        return rows
    dim = wrap(step["dim"] or 0, values[0].ndim + 1)
    order = list(range(values[0].ndim))
    order.insert(dim, -1)
    return _rearranged(RowValue(values[0].shape, values[0].dtype, rows), order)


@rule("constant_pad_nd pad", sizes="pad")
def pad(step: JudgedOperation) -> RowDependence:
    value: RowValue = step["self"]
    amounts, repeats = list(step["pad"]), value.rows.repeats
    dims = dict(value.rows.dims)

    def mixed(why: Why, i: int, detail: str = "") -> RowDependence:
        others = [amount for at, amount in enumerate(amounts) if at != 2 * i + 1]
        is_behind = all(isinstance(each, int) and each == 0 for each in others)
        dim = value.ndim - 1 - i
        front = Front(dim, value.shape[dim], value.rows) if is_behind else None
        return replace(step.mixed(why, detail), front=front)

    for i in range(len(amounts) // 2):
        dim, before, after = value.ndim - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        if step.depends(before) or step.depends(after):
            return mixed(Why.SIZE, i)
        if dim not in dims or (before, after) == (0, 0):
            continue
        if not isinstance(before, int) or not isinstance(after, int) or dims[dim] not in _FRONT:
            return step.mixed(Why.GROWS)
        if after > 0:
            return mixed(Why.MOVES, i, "what is added behind rows comes behind their padding")
        dims[dim], repeats = 1, False
    return RowDependence(dims, repeats)


@rule("select_scatter")
def select_scatter(step: JudgedOperation) -> RowDependence:
    value, src = step["self"], step["src"]
    dim, index = wrap(step["dim"], value.ndim), step["index"]
    if dim in value.rows.dims and (not isinstance(index, int) or index < 0 or value.rows.dims[dim] not in _FRONT):
        return step.mixed(Why.FROM_THE_END)
    order = list(range(src.ndim))
    order.insert(dim, -1)
    rows = broadcast(step, [value, RowValue(value.shape, src.dtype, _rearranged(src, order))])
    if dim not in value.rows.dims or rows.mixed is not None:
        return rows
    return RowDependence({**rows.dims, dim: 1}, repeats=False)


@rule("slice_scatter", sizes="end")
def slice_scatter(step: JudgedOperation) -> RowDependence:
    value, src = step["self"], step["src"]
    dim = wrap(step["dim"] or 0, value.ndim)
    if dim not in value.rows.dims:
        if dim in src.rows.dims:
            return step.mixed(Why.WRITES)
        end = step["end"]
        if end is not None and step.depends(end):
            return step.mixed(Why.SIZE)
        return broadcast(step, [value, src])
    if step.sizes.same(src.shape[dim], value.shape[dim]):
        return broadcast(step, [src, RowValue(value.shape, value.dtype, FREE)])
    start = step["start"]
    if value.rows.dims[dim] not in _FRONT or not (start is None or (isinstance(start, int) and start >= 0)):
        return step.mixed(Why.MOVES)
    rows = broadcast(step, [value, src])
    to_end = step["end"] is None or (isinstance(step["end"], int) and step["end"] >= 1 << 62)
    to_end = to_end or step.sizes.same(step["end"], value.shape[dim])
    if dim in src.rows.dims and not to_end:
        return step.mixed(Why.MOVES)
    return rows if rows.mixed is not None else RowDependence({**rows.dims, dim: 1}, repeats=False)
