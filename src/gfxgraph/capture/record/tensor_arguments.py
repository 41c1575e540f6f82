"""Tensors among the arguments and results of an operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Operations that write to inputs without declaring it: running statistics, in training only.
_UNDECLARED = frozenset(
    f"aten::{name}"
    for name in "native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_update_stats "
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts".split()
)


def is_collective_in_place(schema: Any) -> bool:
    """Whether it is a c10d operation that writes to its first argument, which its schema does not say."""
    name: str = schema.name
    return name.startswith("c10d::") and name.endswith("_")


def written_arguments(schema: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that an operation may write to."""
    if is_collective_in_place(schema):
        return ((0, schema.arguments[0].name),)
    undeclared = schema.name in _UNDECLARED
    return tuple(
        (i, a.name)
        for i, a in enumerate(schema.arguments)
        if (a.alias_info is not None and a.alias_info.is_write) or (undeclared and a.name.startswith("running_"))
    )


def flat(*items: Any) -> list[Tensor]:
    """Every tensor among arguments or results, nested lists included."""
    found: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(flat(*item))
        elif isinstance(item, dict):
            found.extend(flat(*item.values()))
    return found


def exchanged(item: Any, old: Tensor, new: Tensor) -> Any:
    """The same structure with ``new`` in place of ``old``."""
    if isinstance(item, (list, tuple)):
        return type(item)([exchanged(part, old, new) for part in item])
    if isinstance(item, dict):
        return {name: exchanged(part, old, new) for name, part in item.items()}
    return new if item is old else item


def written(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
    """The arguments whose content the operation changes; those of which it makes another view only are none."""
    if torch.Tag.inplace_view in func.tags:
        return ()
    targets: set[int] = set()
    for position, name in written_arguments(func._schema):
        given = args[position] if position < len(args) else kwargs.get(name)
        targets.update(id(t) for t in flat(given))
    return tuple(t for t in flat(args, kwargs) if id(t) in targets)


def outs(func: torch._ops.OpOverload, kwargs: dict[str, object]) -> tuple[str, ...]:
    """Names of torch's ``out=`` among the arguments, where they are on the device: nothing reads what they hold."""
    names = [a.name for a in func._schema.arguments if a.is_out and func.namespace == "aten"]
    return tuple(name for name in names if isinstance(given := kwargs.get(name), Tensor) and given.is_cuda)
