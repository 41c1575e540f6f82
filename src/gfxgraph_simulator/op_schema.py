"""The parts of an op's schema that a call needs, and facts about single ops that no schema contains.

Names are without ``aten::``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

# Ops whose CUDA kernels wait for the device before they can continue, because the shape of their output or an error
# depends on data: those that torch's tags say it of, and these.
SYNCING: Final = frozenset(
    "_to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc".split()
)
NOT_SYNCING: Final = frozenset({"_ctc_loss", "linalg_lstsq", "linalg_lstsq.out"})
# These wait by thrust's stream synchronization, which torch does not guard on ROCm as it does memcpy_and_sync.
BY_THRUST: Final = frozenset({"unique_dim", "unique_consecutive", "unique_dim_consecutive"})

# With a byte or bool mask among the indices these expand it with nonzero.
MASK_INDEXING: Final = frozenset(
    "index.Tensor index.Tensor_out index_put_ index_put _index_put_impl_ _unsafe_index.Tensor".split()
)

# These accept CPU tensors with dims: index lists, lengths.
MIXED_DEVICES: Final = MASK_INDEXING | frozenset(
    "_ctc_loss _ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor _pack_padded_sequence is_set_to "
    "_foreach_copy_".split()
)

# CPU kernels that draw without a generator argument.
DRAWS_SILENTLY: Final = frozenset({"native_dropout", "_fused_dropout", "rrelu_with_noise_functional"})

# Registered at CUDA although no CPU kernel exists: composite kernels would require cuDNN, split one GPU kernel into
# many, or (kaiser_window) call a GPU kernel that a CPU build lacks, which ended the process up to torch 2.11.
ALSO: Final = frozenset(
    "convolution convolution_backward convolution_overrideable convolution_backward_overrideable kaiser_window "
    "kaiser_window.periodic kaiser_window.beta".split()
)


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
    schema.draws = schema.draws or name in DRAWS_SILENTLY
    schema.mixed_devices = name in MIXED_DEVICES
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
