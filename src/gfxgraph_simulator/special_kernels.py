"""Kernels that need more than a schema: factories, copies between devices, storage changes.

Enters: calls from torch's dispatcher.
Stays out: everything that kernels.py builds from schemas.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.types import CaptureStatus, NodeKind
from gfxgraph_simulator.cuda_only_kernels import cuda_only_kernels
from gfxgraph_simulator.device_memory import span_nbytes
from gfxgraph_simulator.graph_nodes import Operand, RecordedNode

if TYPE_CHECKING:
    from gfxgraph_simulator.card import Simulator
    from gfxgraph_simulator.kernels import Kernels

_CPU_KEYS: Final = torch.DispatchKeySet(torch.DispatchKey.CPU)
_COMPOSITE: Final = torch.DispatchKey.CompositeExplicitAutograd
_OF_LIBRARIES: Final = tuple(
    name for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss") if hasattr(torch.ops.aten, name)
)
"""Questions whether a library of the GPU's takes a call: there is none."""
_UNPINNED: Final = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def special_kernels(sim: Simulator, kernels: Kernels) -> dict[str, Callable[..., object]]:
    """Kernels by op name."""
    return {
        "empty.memory_format": partial(_empty, sim),
        "empty_strided": partial(_empty_strided, sim),
        "copy_": partial(_copy, sim),
        "_to_copy": partial(_to_copy, sim),
        "_foreach_copy_": partial(_foreach_copy, kernels.build("_foreach_copy_")),
        "resize_": partial(_resize, sim),
        # torch's own code for these only gives a tensor another storage, wherever that is.
        **{
            f"set_.source_{how}": kernels.view_kernel(getattr(torch.ops.aten.set_, f"source_{how}"))
            for how in ("Storage", "Storage_storage_offset", "Tensor")
        },
        "set_": partial(_set_empty, sim),
        "record_stream": lambda self, stream: None,
        "is_pinned": lambda self, device=None: False,
        "repeat_interleave.Tensor": partial(_repeat_interleave, kernels.build("repeat_interleave.Tensor")),
        **{f"{name}{overload}": lambda *args: False for name in _OF_LIBRARIES for overload in ("", ".Tensor")},
        **cuda_only_kernels(kernels),
    }


def host_kernels(sim: Simulator) -> dict[str, Callable[..., object]]:
    """Kernels of CPU tensors that involve the card: page-locked memory."""
    return {
        "_pin_memory": lambda self, device=None: sim.pin(self),
        "is_pinned": lambda self, device=None: sim.is_pinned(self),
    }


def _check_device(device: torch.device | None) -> None:
    if device is not None and device.index not in (None, 0):
        raise RuntimeError("CUDA error: invalid device ordinal")


def _empty(
    sim: Simulator,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    _check_device(device)
    stride = _strides(size, memory_format)
    return sim.allocate(size, stride, dtype or torch.get_default_dtype())


def _strides(size: Sequence[int], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    return torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format).stride()


def _empty_strided(
    sim: Simulator,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    _check_device(device)
    return sim.allocate(size, stride, dtype or torch.get_default_dtype())


def _copy(sim: Simulator, self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    arena = sim.arena
    if self.is_cuda and src.is_cuda:
        if not sim.device.busy:
            arena.twin(self).copy_(arena.twin(src))
            return self
        same = self.dtype == src.dtype and self.is_contiguous() and src.is_contiguous()
        kind = NodeKind.MEMCPY if same and self.size() == src.size() else NodeKind.KERNEL
        _submit_copy(sim, kind, arena.twin(self), arena.twin(src), "memcpy_async")
        return self
    host = src if self.is_cuda else self
    ours = arena.twin(self) if self.is_cuda else self
    theirs = arena.twin(src) if src.is_cuda else src
    if sim.device.busy and sim.device.current().status is not CaptureStatus.NONE:
        pinned = sim.is_pinned(host)
        if not pinned:
            raise RuntimeError(_UNPINNED)
        if non_blocking:
            _submit_copy(sim, NodeKind.MEMCPY, ours, theirs, "memcpy_async")
            return self
    if not non_blocking:
        sim.host_read()
    ours.copy_(theirs)
    return self


def _to_copy(sim: Simulator, self: Tensor, **kwargs: object) -> Tensor:
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cpu" or not kwargs.get("non_blocking"):
        return torch_names._to_copy.default._op_dk(_COMPOSITE, self, **kwargs)  # type: ignore[no-any-return]
    # torch uses pinned memory here, which a CPU build does not have.
    like = torch.empty_like(
        sim.arena.twin(self), dtype=kwargs.get("dtype"), memory_format=kwargs.get("memory_format")
    )
    return sim.pin(like).copy_(self, non_blocking=True)


def _submit_copy(sim: Simulator, kind: NodeKind, ours: Tensor, theirs: Tensor, call: str) -> None:
    def make() -> RecordedNode:
        operands: list[Any] = [ours, theirs]
        slots = [Operand(operands, 0), Operand(operands, 1)]
        if sim.is_pinned(ours):
            operands[0] = _Place(sim, ours)  # a graph keeps no host memory alive
            slots = slots[1:]
        return RecordedNode(kind, "sim::aten::copy_", _run_copy, call=(operands, {}), input_slots=slots)

    sim.call(sim.device.submit, sim.device.current(), make, call)


class _Place:
    """The location of a tensor in page-locked memory, without holding it."""

    def __init__(self, sim: Simulator, tensor: Tensor) -> None:
        self._sim = weakref.ref(sim)
        self._storage = weakref.ref(tensor.untyped_storage())
        self._layout = tensor.storage_offset(), tuple(tensor.size()), tuple(tensor.stride())
        self._dtype = tensor.dtype

    def copy_(self, source: Tensor) -> None:
        storage = self._storage()
        if storage is not None:
            torch.empty(0, dtype=self._dtype).set_(storage, *self._layout).copy_(source)  # type: ignore[call-overload]
        elif (sim := self._sim()) is not None:
            sim.crashes.append("a graph wrote into page-locked memory that was given back")


def _run_copy(node: RecordedNode, generator: torch.Generator | None) -> None:
    ours, theirs = node.call[0]
    ours.copy_(theirs)


def _foreach_copy(
    together: Callable[..., None], self: list[Tensor], src: list[Tensor], non_blocking: bool = False
) -> None:
    if all(tensor.is_cuda for tensor in (*self, *src)):
        together(self, src, non_blocking)
        return
    for ours, theirs in zip(self, src):
        ours.copy_(theirs, non_blocking)


def _resize(
    sim: Simulator, self: Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> Tensor:
    stride = _strides(size, memory_format)
    room = self.untyped_storage().nbytes() - self.storage_offset() * self.dtype.itemsize
    need = span_nbytes(size, stride, self.dtype)
    if need <= room:
        torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
            _CPU_KEYS, self, self.untyped_storage(), self.storage_offset(), list(size), stride
        )
        return self
    made = sim.allocate(size, stride, self.dtype)
    kept = min(self.untyped_storage().nbytes(), made.untyped_storage().nbytes())
    if kept:
        ctypes.memmove(made.data_ptr(), self.untyped_storage().data_ptr(), kept)
    _replace_storage(self, made)
    return self


def _replace_storage(self: Tensor, made: Tensor) -> None:
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        _CPU_KEYS, self, made.untyped_storage(), 0, list(made.size()), list(made.stride())
    )


def _set_empty(sim: Simulator, self: Tensor) -> Tensor:
    _replace_storage(self, sim.allocate([0], [1], self.dtype))
    return self


def _repeat_interleave(general: Callable[..., Tensor], repeats: Tensor, output_size: int | None = None) -> Tensor:
    if output_size is None:
        return general(repeats)
    # With a given size no value has to be read back: one kernel over a known shape.
    positions = torch.arange(output_size, device=repeats.device)
    ends = torch.cumsum(repeats, 0)
    return torch.searchsorted(ends, positions, right=True).to(repeats.dtype)
