"""Device memory: one reserved address range, and tensors that live at chosen addresses in it.

Enters: addresses, sizes, dtypes.
Stays out: ownership of ranges (allocator.py), what kernels do.

A device tensor is a plain ``torch.Tensor`` whose device really is ``cuda:0``: DLPack lets a CPU build wrap any
pointer that way. Its *twin* is a CPU tensor over the same bytes that owns nothing; kernels compute on twins.
Twins carry the whole arena as their storage, so address arithmetic is the only bookkeeping there is.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from gfxgraph import torch_names

_NORESERVE: Final = 0x4000  # MAP_NORESERVE: pages cost memory only once they are written
_SLOT: Final = 512  # one DLManagedTensor with room for 28 dims
_MAX_DIMS: Final = 28
# data, device(type, id), ndim, dtype(code, bits, lanes), shape*, strides*, offset, context, deleter*
_MANAGED: Final = struct.Struct("<QiiiBBHQQQQQ")
_KDL_CUDA: Final = 2

_DTYPES: Final[dict[torch.dtype, tuple[int, int]]] = {
    getattr(torch, name): (code, 8 * getattr(torch, name).itemsize)
    for code, names in {
        0: "int8 int16 int32 int64",
        1: "uint8 uint16 uint32 uint64",
        2: "float16 float32 float64",
        4: "bfloat16",
        5: "complex64 complex128",
        6: "bool",
    }.items()
    for name in names.split()
}
"""DLPack's code and bits of each dtype that every version of torch wraps."""
_CPU_KEYS: Final = torch.DispatchKeySet(torch.DispatchKey.CPU)
_as_strided: Final = torch.ops.aten.as_strided.default
_view_dtype: Final = torch.ops.aten.view.dtype

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Slots:
    """Memory for DLManagedTensor structs. Never freed, because C++ reads their null deleter when a tensor dies."""

    def __init__(self, count: int = 64) -> None:
        page = mmap.mmap(-1, count * _SLOT)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(page))
        base = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self.free = [(ctypes.c_char * _SLOT).from_address(base + at * _SLOT) for at in range(count)]


_slots = _Slots()
# Weak references to the storages of live blocks; the callback of each frees its block.
_watched: set[weakref.ref[object]] = set()


class DeviceMemory:
    """The simulated card's memory: ``nbytes`` of addresses, backed by pages only where touched."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._map = mmap.mmap(-1, nbytes, flags=flags)
        # Never freed: tensors may outlive the simulator and must still find their bytes.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
        self.nbytes = nbytes
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.end = self.base + nbytes
        raw = torch.frombuffer(self._map, dtype=torch.uint8)
        self._flat: dict[torch.dtype, torch.Tensor] = {torch.uint8: raw}
        self._shift: dict[torch.dtype, int] = {torch.uint8: 0}
        for dtype in _DTYPES:
            self._add_dtype(dtype)

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.end

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """CPU tensor over the bytes of a device tensor."""
        dtype = tensor.dtype
        twin = self.twin_at(tensor.data_ptr(), tensor.size(), tensor.stride(), dtype)
        if dtype.is_complex and tensor.is_conj():
            twin = torch_names._conj(twin)
        if tensor.is_neg():
            twin = torch_names._neg_view(twin)
        return twin

    def twin_at(self, address: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """CPU tensor over device bytes, without a device tensor."""
        if dtype not in self._flat:
            self._add_dtype(dtype)
        if not address:
            return _empty(size, stride, dtype)
        return self._flat[dtype].as_strided(size, stride, (address - self.base) >> self._shift[dtype])

    def tensor_at(
        self,
        address: int,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        on_free: Callable[[], None] | None = None,
    ) -> torch.Tensor:
        """Device tensor at ``address``; ``on_free`` is called when its storage dies."""
        known = _DTYPES.get(dtype)
        if known is None or len(size) > _MAX_DIMS:
            return self._exotic(address, size, stride, dtype, on_free)
        ndim = len(size)
        code, bits = known
        slot = _slots.free.pop()
        at = ctypes.addressof(slot)
        shape_at = at + _MANAGED.size
        _MANAGED.pack_into(
            slot, 0, address, _KDL_CUDA, 0, ndim, code, bits, 1, shape_at, shape_at + 8 * ndim, 0, 0, 0
        )
        struct.pack_into(f"<{2 * ndim}q", slot, _MANAGED.size, *size, *stride)
        tensor: torch.Tensor = torch_names._from_dlpack(_new_capsule(at, b"dltensor", None))
        # Everything but the deleter has been copied by now, and the deleter is null in every slot.
        _slots.free.append(slot)
        if on_free is not None:
            watch(tensor, on_free)
        return tensor

    def drop_pages(self, address: int, nbytes: int) -> None:
        """Return the pages of an unmapped segment to the machine; they read as zero afterwards."""
        page = mmap.PAGESIZE
        start = -(-(address - self.base) // page) * page
        stop = (address - self.base + nbytes) // page * page
        if stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _exotic(
        self,
        address: int,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        on_free: Callable[[], None] | None,
    ) -> torch.Tensor:
        # float8 and similar: DLPack codes differ by torch version, so the bytes are viewed instead.
        nbytes = span_nbytes(size, stride, dtype)
        raw: Any = self.tensor_at(address, [nbytes], [1], torch.uint8, on_free)
        if nbytes == 0:
            raw = self.tensor_at(0, [0], [1], torch.uint8)
        typed = _view_dtype(raw, dtype)
        return _as_strided.redispatch(_CPU_KEYS, typed, list(size), list(stride), 0)  # type: ignore[no-any-return]

    def _add_dtype(self, dtype: torch.dtype) -> None:
        self._flat[dtype] = self._flat[torch.uint8].view(dtype)
        self._shift[dtype] = dtype.itemsize.bit_length() - 1


def watch(tensor: torch.Tensor, on_free: Callable[[], None]) -> None:
    """Call ``on_free`` when the storage of ``tensor`` dies."""

    # Not DLPack's deleter: a Python callback from C++ fails while an exception is being raised, and while
    # the interpreter shuts down. Torch keeps a storage's Python object as long as the storage lives.
    def died(reference: weakref.ref[object]) -> None:
        _watched.discard(reference)
        on_free()

    _watched.add(weakref.ref(tensor.untyped_storage(), died))


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):  # a node keeps its twins, and may be replayed outside the mode
        return torch.empty_strided(size, stride, dtype=dtype)


def span_nbytes(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes from the first to the last element, as torch sizes a storage; 0 for an empty tensor."""
    last = 0
    for extent, step in zip(size, stride):
        if extent == 0:
            return 0
        last += (extent - 1) * step
    return (last + 1) * dtype.itemsize
