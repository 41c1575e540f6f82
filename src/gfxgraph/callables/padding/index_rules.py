"""Rules for indices, read and written.

Reading: a negative index counts from the end, which in a bucket is padding. So if the source
carries rows along the indexed dim, the index must be known not to be negative. Then it can only mean a
row of the call: eager would have raised otherwise. Padding used as an index must be in range, or the GPU
asserts (``JudgedOperation.usable_index``).

Writing: it is harmless if each row goes to its own place in a tensor that carries rows. In memory shared by
rows, padding is harmless only if it repeats the last own row, which repeats a write.
"""

# ruff: noqa: TID253

from __future__ import annotations

from collections.abc import Sequence

import torch

from gfxgraph.callables.padding.rows import (
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

_MASKS = (torch.bool, torch.uint8)


@rule("embedding")
def embedding(step: JudgedOperation) -> RowDependence:
    weight, index = step["weight"], step["indices"]
    return _read(step, weight, {0: index}, is_checked=True)


@rule("index_select")
def index_select(step: JudgedOperation) -> RowDependence:
    value = step["self"]
    return _read(step, value, {wrap(step["dim"], value.ndim): step["index"]}, is_checked=True)


@rule("index _unsafe_index")
def index(step: JudgedOperation) -> RowDependence:
    indices = {p: i for p, i in enumerate(step["indices"]) if i is not None}
    if any(i.dtype in _MASKS for i in indices.values()):
        raise step.refuse(Why.READS, "a mask as an index")
    return _read(step, step["self"], indices, is_checked=False)


@rule("take")
def take(step: JudgedOperation) -> RowDependence:
    value, index = step["self"], step["index"]
    if value.rows.dims:
        return step.mixed(Why.FROM_THE_END)
    if not step.usable_index(index, -1):
        return step.mixed(Why.INDEX)
    return RowDependence(index.rows.dims, index.rows.repeats)


def _read(step: JudgedOperation, value: RowValue, indices: dict[int, RowValue], *, is_checked: bool) -> RowDependence:
    """The rule for ``value[indices]``.

    Args:
        is_checked: a negative index is an error, instead of counting from the end.
    """
    together = broadcast(step, list(indices.values()))
    if together.mixed is not None:
        return together
    n_index_dims = max((i.ndim for i in indices.values()), default=0)
    repeats = value.rows.repeats
    for place, each in indices.items():
        outer = value.rows.dims.get(place, 1)
        if place in value.rows.dims and outer not in (1, None):
            return step.mixed(Why.INTERLEAVED)
        if place in value.rows.dims and not (is_checked or each.rows.is_nonnegative):
            return step.mixed(Why.FROM_THE_END)
        if not step.usable_index(each, value.shape[place]):
            return step.mixed(Why.INDEX)
        is_own = each.rows.counts is not None and place in value.rows.dims
        repeats = repeats and (each.rows.repeats or is_own)
    places = sorted(indices)
    is_block = places == list(range(places[0], places[0] + len(places))) if places else True
    at = places[0] if is_block and places else 0
    dims: dict[int, int | None] = {d + at: outer for d, outer in together.dims.items()}
    for d, outer in value.rows.dims.items():
        if d not in indices:
            before = d - sum(p < d for p in places)
            merge(dims, before + (n_index_dims if before >= at else 0), outer)
    return RowDependence(dims, repeats, is_nonnegative=value.rows.is_nonnegative)


@rule("gather")
def gather(step: JudgedOperation) -> RowDependence:
    value, index = step["self"], step["index"]
    dim = wrap(step["dim"], value.ndim) if value.ndim else 0
    if value.rows.dims.get(dim, 1) not in (1, None):
        return step.mixed(Why.INTERLEAVED)
    for d, outer in index.rows.dims.items():
        if d != dim and (d not in value.rows.dims or value.rows.dims[d] not in (outer, None)) and outer is not None:
            return step.mixed(Why.GROWS)
        if d != dim and d not in value.rows.dims:
            return step.mixed(Why.GROWS)
    for d, outer in value.rows.dims.items():
        if d != dim and outer not in (1, None) and index.rows.dims.get(d, outer) != outer:
            return step.mixed(Why.GROWS)
        if d != dim and d not in index.rows.dims and outer not in (1, None):
            return step.mixed(Why.INTERLEAVED)
    if not step.usable_index(index, value.shape[dim] if value.ndim else 1):
        return step.mixed(Why.INDEX)
    dims = {d: outer if d == dim else (outer or value.rows.dims[d]) for d, outer in index.rows.dims.items()}
    return RowDependence(dims, index.rows.repeats and value.rows.repeats, is_nonnegative=value.rows.is_nonnegative)


@rule("_embedding_bag _embedding_bag_forward_only")
def embedding_bag(step: JudgedOperation) -> list[RowDependence] | RowDependence:
    """Bags of equal length, as torch makes from a table of indices."""
    weight, index, offsets, by = step["weight"], step["indices"], step["offsets"], step["per_sample_weights"]
    counts = offsets.rows.counts
    if not weight.rows.is_free or counts is None or step["include_last_offset"] or index.ndim != 1:
        return step.mixed()
    wanted = tuple(n * counts[1] for n in step.sizes.at(offsets.shape[0]))
    if step.sizes.at(index.shape[0]) != wanted or any(
        v is not None and v.rows.dims.get(0, 1) not in (1, None) for v in (index, by)
    ):
        return step.mixed()
    if not step.usable_index(index, weight.shape[0]):
        return step.mixed(Why.INDEX)
    out = RowDependence({0: 1}, index.rows.repeats and (by is None or by.rows.repeats))
    return [out, *[step.mixed(Why.NO_RULE, "only the first of its results is followed")] * (len(step.out) - 1)]


@rule("bucketize searchsorted isin")
def look_up(step: JudgedOperation) -> RowDependence:
    table = step["boundaries"] or step["sorted_sequence"] or step["test_elements"]
    value = step["self"] or step["elements"]
    if table is None or value is None:
        return step.mixed(Why.NO_RULE)
    if any(not v.rows.is_free for v in step.tensors() if v is not value) or table.ndim > 1:
        return table.rows if table.rows.mixed else step.mixed()
    return RowDependence(value.rows.dims, value.rows.repeats, is_nonnegative=step.name != "aten::isin")


# -- written ----------------------------------------------------------------------------------------


def _own(step: JudgedOperation, value: RowValue, place: int, each: RowValue) -> bool:
    """Whether the index is 0, 1, 2, ... over rows that ``value`` carries, so that each row has its own place."""
    counts = each.rows.counts
    return (
        place in value.rows.dims
        and value.rows.dims[place] in (1, None)
        and counts is not None
        and counts[1] == 1
        and list(each.rows.dims) == [counts[0]]
        and step.sizes.same(each.shape[counts[0]], value.shape[place])
    )


def _written(
    step: JudgedOperation,
    value: RowValue,
    given: Sequence[RowValue],
    *,
    is_own: bool,
    adds: bool,
    indices_carry: bool,
    among_rows: bool,
) -> RowDependence:
    """The row dependence of ``value`` after rows were written to places in it.

    Args:
        given: the indices and the values written.
        is_own: each row writes to a place of its own.
        adds: a value written twice counts twice.
        indices_carry: padding is written somewhere.
        among_rows: the written places are along a dim that carries rows.
    """
    repeats = all(v.rows.repeats for v in given)
    dims = {d: 1 if outer is None else outer for d, outer in value.rows.dims.items()}
    if is_own or not indices_carry:
        return RowDependence(dims, repeats and value.rows.repeats and not among_rows)
    if adds or not repeats:
        return step.mixed(Why.WRITES)
    step.needs = Padding.LAST
    return RowDependence(dims, repeats=False)


@rule("index_put _unsafe_index_put _index_put_impl")
def index_put(step: JudgedOperation) -> RowDependence:
    value, given = step["self"], step["values"]
    indices = {p: i for p, i in enumerate(step["indices"]) if i is not None}
    if any(i.dtype in _MASKS for i in indices.values()):
        return _masked(step, value, indices, given)
    together = broadcast(step, list(indices.values()))
    if together.mixed is not None:
        return together
    for place, each in indices.items():
        if not step.usable_index(each, value.shape[place]):
            return step.mixed(Why.INDEX)
        if place in value.rows.dims:
            if value.rows.dims[place] not in (1, None):
                return step.mixed(Why.INTERLEAVED)
            if not each.rows.is_nonnegative:
                return step.mixed(Why.FROM_THE_END)
    n_index_dims = max((i.ndim for i in indices.values()), default=0)
    places = sorted(indices)
    is_block = bool(places) and places == list(range(places[0], places[0] + len(places)))
    at = places[0] if is_block else 0
    n_dims = value.ndim - len(places) + n_index_dims
    # The written values have the shape of value[indices], aligned from the right.
    for d, outer in given.rows.dims.items():
        place = d + n_dims - given.ndim
        if at <= place < at + n_index_dims:
            if place - at not in together.dims or outer not in (1, None):
                return step.mixed(Why.WRITES)
            continue
        of_rest = place if place < at else place - n_index_dims
        of_value = [d for d in range(value.ndim) if d not in indices][of_rest]
        if of_value not in value.rows.dims or value.rows.dims[of_value] not in (outer, None):
            return step.mixed(Why.WRITES)
    own = {
        i.rows.counts[0] + n_index_dims - i.ndim
        for p, i in indices.items()
        if i.rows.counts and _own(step, value, p, i)
    }
    return _written(
        step, value, [*indices.values(), given], is_own=bool(own) and set(together.dims) <= own,
        adds=bool(step["accumulate"]), indices_carry=bool(together.dims),
        among_rows=bool(set(indices) & set(value.rows.dims)),
    )  # fmt: skip


def _masked(step: JudgedOperation, value: RowValue, indices: dict[int, RowValue], given: RowValue) -> RowDependence:
    """One number written wherever a mask is set: element by element."""
    if list(indices) != [0] or given.ndim or not given.rows.is_free or step["accumulate"]:
        raise step.refuse(Why.READS, "a mask as an index")
    mask = indices[0]
    aligned = RowValue((*mask.shape, *[1] * (value.ndim - mask.ndim)), mask.dtype, mask.rows)
    return broadcast(step, [value, aligned])


@rule("index_copy index_add index_fill index_reduce")
def index_copy(step: JudgedOperation) -> RowDependence:
    value, each, source = step["self"], step["index"], step["source"]
    dim = wrap(step["dim"], value.ndim) if value.ndim else 0
    given = [v for v in (each, source, step["value"]) if isinstance(v, RowValue)]
    if value.rows.dims.get(dim, 1) not in (1, None):
        return step.mixed(Why.INTERLEAVED)
    if not step.usable_index(each, value.shape[dim] if value.ndim else 1):
        return step.mixed(Why.INDEX)
    if isinstance(step["value"], RowValue) and not step["value"].rows.is_free:
        return step.mixed(Why.WRITES)
    for d, outer in (source.rows.dims if isinstance(source, RowValue) else {}).items():
        if d == dim:
            if not each.rows.dims or outer not in (1, None):
                return step.mixed(Why.WRITES)
        elif d not in value.rows.dims or (value.rows.dims[d] or 1) != (outer or 1):
            return step.mixed(Why.WRITES)
    return _written(
        step, value, given, is_own=_own(step, value, dim, each), indices_carry=bool(each.rows.dims),
        adds=step.name in ("aten::index_add", "aten::index_reduce"), among_rows=dim in value.rows.dims,
    )  # fmt: skip


@rule("scatter scatter_add scatter_reduce")
def scatter(step: JudgedOperation) -> RowDependence:
    value, each, source = step["self"], step["index"], step["src"]
    dim = wrap(step["dim"], value.ndim) if value.ndim else 0
    given = [v for v in (each, source, step["value"]) if isinstance(v, RowValue)]
    if not step.usable_index(each, value.shape[dim] if value.ndim else 1):
        return step.mixed(Why.INDEX)
    if value.rows.dims.get(dim, 1) not in (1, None):
        return step.mixed(Why.INTERLEAVED)
    if isinstance(step["value"], RowValue) and not step["value"].rows.is_free:
        return step.mixed(Why.WRITES)
    for d, outer in each.rows.dims.items():
        if d != dim and (d not in value.rows.dims or (value.rows.dims[d] or 1) != (outer or 1)):
            return step.mixed(Why.WRITES)
    for d, outer in (source.rows.dims if isinstance(source, RowValue) else {}).items():
        if (each.rows.dims.get(d, 1) or 1) != (outer or 1):
            return step.mixed(Why.GROWS)
    for d, outer in value.rows.dims.items():
        if d != dim and (outer or 1) != 1 and d not in each.rows.dims:
            return step.mixed(Why.GROWS)
    adds = step.name != "aten::scatter" or step["reduce"] is not None
    return _written(
        step, value, given, is_own=False, adds=adds, indices_carry=dim in each.rows.dims,
        among_rows=dim in value.rows.dims,
    )  # fmt: skip


@rule("masked_scatter")
def masked_scatter(step: JudgedOperation) -> RowDependence:
    """It takes from its source in the order of all rows."""
    value, mask, source = step["self"], step["mask"], step["source"]
    carried = {**value.rows.dims, **mask.rows.dims}
    if source.rows.is_free and set(carried) <= {0} and value.ndim == mask.ndim and all(
        outer in (1, None) for outer in carried.values()
    ):  # fmt: skip
        return RowDependence({0: 1}, repeats=False)
    return step.mixed(Why.MOVES)
