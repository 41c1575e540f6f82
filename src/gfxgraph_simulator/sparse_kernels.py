"""Operations on sparse and nested tensors of the simulated card.

Enters: calls at the dispatcher's keys of such tensors, as a GPU's kernels get them.
Stays out: tensors with strides alone (kernels.py); quantized tensors, which the card does not have.

torch's own code makes and takes apart such tensors, whatever their device: it is called with the device's tensors,
and so is all of it for nested ones, whose code calls operations on plain tensors. What computes with sparse tensors
runs on CPU copies, and waits for the device first, so that a capture refuses it: most of a GPU's kernels for them do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph_simulator.op_schema import argument, schema_of

if TYPE_CHECKING:
    from gfxgraph_simulator.kernels import Kernels

KEYS: Final = {"SparseCUDA": "SparseCPU", "SparseCsrCUDA": "SparseCsrCPU", "NestedTensorCUDA": "NestedTensorCPU"}
"""By dispatch key: that of the same tensors on the CPU."""
# These only touch a tensor's parts.
_OF_PARTS: Final = frozenset(
    "_indices _values indices values _nnz _dimI _dimV sparse_dim dense_dim is_coalesced _coalesced_ crow_indices "
    "col_indices ccol_indices row_indices empty empty_like zeros zero_ resize_ resize_as_sparse_ sparse_resize_ "
    "sparse_resize_and_clear_ copy_sparse_to_sparse_ _sparse_coo_tensor_with_dims "
    "_sparse_coo_tensor_with_dims_and_tensors is_pinned clone copy_".split()
)


@functools.cache
def names(key: str) -> tuple[str, ...]:
    """The aten operations that the CPU has for tensors of that kind."""
    found = torch_names._dispatch_get_registrations_for_dispatch_key(KEYS[key])
    return tuple(sorted(name.removeprefix("aten::") for name in found if name.startswith("aten::")))


def build(kernels: Kernels, name: str, key: str) -> Callable[..., object]:
    """The kernel of ``name`` at one of `KEYS`."""
    schema = schema_of(name)
    if key == "NestedTensorCUDA" or name.partition(".")[0] in _OF_PARTS:
        keys = torch.DispatchKeySet(getattr(torch.DispatchKey, KEYS[key]))

        def by_parts(*args: object, **kwargs: object) -> object:
            # The dispatcher hands out the number of ``nested * 2`` as Python's.
            numbers = [at for at in schema.tensors if at < len(args) and isinstance(args[at], (int, float, complex))]
            call = [torch.tensor(item) if at in numbers else item for at, item in enumerate(args)]
            return schema.op.redispatch(keys, *call, **kwargs)

        return by_parts

    def kernel(*args: object, **kwargs: object) -> object:
        kernels.sim.host_read()
        call = [_on_cpu(kernels, item) for item in args]
        keywords = {name: _on_cpu(kernels, item) for name, item in kwargs.items()}
        if schema.has_device:
            keywords["device"] = torch.device("cpu")
        result = schema.op(*call, **keywords)
        for at in schema.targets:
            _assign(kernels, argument(at, args, kwargs), call[at])
        for out in schema.outs:
            _assign(kernels, kwargs.get(out), keywords.get(out))
        results = (result,) if len(schema.returned) == 1 else tuple(result or ())
        made = [
            kernels.wrap(value, args) if where is None else argument(where, args, kwargs)
            for where, value in zip(schema.returned, results)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    return kernel


def on_device(kernels: Kernels, value: Tensor) -> Tensor:
    """The card's sparse tensor for one on the CPU."""
    return _made_of([kernels.wrap(part, ()) for part in _parts(value)], value)


def _made_of(parts: list[Tensor], like: Tensor) -> Tensor:
    is_coo = like.layout is torch.sparse_coo
    make = torch_names._sparse_coo_tensor_unsafe if is_coo else torch_names._sparse_compressed_tensor_unsafe
    made: Tensor = make.default(*parts, like.size(), dtype=like.dtype, layout=like.layout, device=parts[0].device)
    return torch_names._coalesced_.default(made, like.is_coalesced()) if is_coo else made


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _on_cpu(kernels: Kernels, item: object) -> object:
    if isinstance(item, (list, tuple)):
        return [_on_cpu(kernels, part) for part in item]
    if not isinstance(item, Tensor) or not item.is_cuda:
        return item
    if item.layout is torch.strided:
        return kernels.arena.twin(item)
    return _made_of([kernels.arena.twin(part).clone() for part in _parts(item)], item)


def _assign(kernels: Kernels, target: object, value: object) -> None:
    """Give a tensor of the card that the operation wrote what its copy on the CPU has become."""
    if not isinstance(target, Tensor) or not isinstance(value, Tensor) or target.layout is torch.strided:
        return  # computed in place
    made = on_device(kernels, value)
    if target.layout is torch.sparse_coo:
        torch.ops.aten.copy_sparse_to_sparse_.default(target, made)
    elif target._nnz() == made._nnz():
        target.copy_(made)
    else:
        target.resize_as_sparse_(made).copy_(made)
