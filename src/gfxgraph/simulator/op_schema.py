"""The parts of an op's schema that a call needs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gfxgraph.simulator import op_table


@dataclass(slots=True)
class OpSchema:
    """The parts of an op's schema that a call needs."""

    op: Any
    name: str
    tensors: tuple[int, ...] = ()  # positions of Tensor and Tensor? arguments
    outs: tuple[str, ...] = ()  # keyword-only arguments that the op writes
    targets: tuple[int, ...] = ()  # positions of arguments that the op changes
    # For each return: the position of the argument that it is, or None for a new value.
    returned: tuple[int | str | None, ...] = ()
    is_view: bool = False
    generator: int | str | None = None
    draws: bool = False
    has_device: bool = False
    mixed_devices: bool = False
    waits: bool = False  # what it returns depends on data


@functools.cache
def schema_of(name: str) -> OpSchema:
    """The schema of an overload of aten, ``add.Tensor``."""
    op = _overload(name)
    schema = OpSchema(op, name)
    by_alias: dict[str, int | str] = {}
    for position, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        where: int | str = argument.name if argument.kwarg_only else position
        if kind in ("Tensor", "Optional[Tensor]"):
            if not argument.kwarg_only:
                schema.tensors += (position,)
        elif "Generator" in kind:
            schema.generator = where
            schema.draws = True
        elif argument.name == "device" and "Device" in kind:
            schema.has_device = True
        if argument.alias_info is not None:
            for alias in argument.alias_info.before_set:
                by_alias[alias] = where
            if argument.alias_info.is_write and argument.kwarg_only and kind == "Tensor":
                schema.outs += (argument.name,)
            elif argument.alias_info.is_write and not argument.kwarg_only:
                schema.targets += (position,)
    for value in op._schema.returns:
        info = value.alias_info
        if info is not None and not info.is_write:
            schema.is_view = True
        first = next(iter(info.before_set), None) if info is not None else None
        schema.returned += (by_alias.get(first) if first is not None else None,)
    schema.draws = schema.draws or name in op_table.DRAWS_SILENTLY
    schema.mixed_devices = name in op_table.MIXED_DEVICES
    schema.waits = bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(op.tags))
    return schema


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def argument(where: int | str | None, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """The argument at a position from an `OpSchema`; None if the call omits it."""
    if where is None:
        return None
    if isinstance(where, str):
        return kwargs.get(where)
    return args[where] if where < len(args) else None


def set_argument(where: int | str | None, call: list[object], keywords: dict[str, object], value: object) -> None:
    """Store a value where `argument` would find it."""
    if where is None:
        return
    if isinstance(where, str):
        keywords[where] = value
    elif where < len(call):
        call[where] = value
