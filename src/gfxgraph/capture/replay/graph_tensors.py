"""Tensors over memory that a graph uses: built from an address, without owning the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from gfxgraph import torch_names

_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: enough to read its memory again after the tensor is gone."""

    address: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        return cls(tensor.data_ptr(), tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.device)

    @property
    def span_nbytes(self) -> int:
        """Bytes from the first to past the last element; strides are never negative in torch."""
        if 0 in self.size:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.size, self.stride))
        return (last + 1) * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """A tensor over that memory; valid as long as the graph's pool is."""
        return tensor_at(self)


def tensor_of(place: Tensor | Layout) -> Tensor:
    """The tensor itself, or a tensor over the memory that the layout describes."""
    return place.tensor() if isinstance(place, Layout) else place


def has_layout(tensor: Tensor) -> bool:
    """Whether a `Layout` describes it: False if it is sparse, nested or quantized, or holds other tensors."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or is_wrapper(tensor))


def kind_of(tensor: Tensor) -> str:
    """What it is instead of a plain tensor: an object of another class, a nested or quantized tensor, of a layout."""
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return f"a {type(tensor).__qualname__}"
    return f"a {'nested' if tensor.is_nested else 'quantized' if tensor.is_quantized else tensor.layout} tensor"


def is_wrapper(tensor: Tensor) -> bool:
    """Whether it is of a subclass that keeps its content in other tensors, as DTensor does."""
    if type(tensor) is Tensor or type(tensor) is Parameter or tensor.layout not in (torch.strided, torch.jagged):
        return False
    try:
        storage_address(tensor)
    except RuntimeError:
        return True
    return tensor.layout is torch.jagged


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors whose memory holds its content; the tensor itself if it has a layout, or if they are unknown."""
    if is_wrapper(tensor):
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        return [part for name in names for part in parts_of(getattr(tensor, name))]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in _COLUMNS:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.values()] if tensor.is_nested else [tensor]


def size_of(tensor: Tensor) -> Sequence[object]:
    """Its size, comparable; of a nested tensor, that of each part."""
    if tensor.is_nested and is_wrapper(tensor):
        return [tuple(part.size()) for part in parts_of(tensor)]
    return tensor._nested_tensor_size().tolist() if tensor.is_nested else tuple(tensor.size())


def used_on(tensor: Tensor, stream: object) -> None:
    """``tensor.record_stream``, which torch refuses for tensors with a pending conjugation or negation."""
    for part in parts_of(tensor):
        if not part.is_cuda:  # a jagged tensor's lengths
            continue
        plain = part.conj() if part.is_conj() else part
        (torch_names._neg_view(plain) if plain.is_neg() else plain).record_stream(stream)


def overwrite(target: Tensor, source: Tensor) -> None:
    """Copy into a tensor that may be expanded: elements that share memory are written once.

    As after a graph's launch, autograd is not told of the write.
    """
    version = nullcontext() if target.is_inference() else torch_names._unsafe_preserve_version_counter(target)
    for dim, (size, stride) in enumerate(zip(target.size(), target.stride()) if has_layout(target) else ()):
        if stride == 0 and size > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    with version:
        if target.layout in _ROWS + _COLUMNS:
            target.resize_as_sparse_(source)
        target.copy_(source)


def tensor_at(layout: Layout) -> Tensor:
    nbytes = layout.span_nbytes
    if nbytes == 0:
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=layout.device)
    storage = torch_names._construct_storage_from_data_pointer(layout.address, layout.device, nbytes)
    metadata: dict[str, Any] = {
        "nbytes": nbytes,
        "data_ptr": layout.address,
        "size": layout.size,
        "stride": layout.stride,
        "dtype": layout.dtype,
        "device": layout.device,
        "storage_offset": 0,
    }
    return torch_names._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)


def storages_at(tensors: Sequence[Tensor]) -> list[Tensor]:
    """For each tensor, a byte tensor over the used part of its storage, which it does not own."""
    ends: dict[int, int] = {}
    for tensor in tensors:
        end = tensor.storage_offset() * tensor.element_size() + Layout.of(tensor).span_nbytes
        ends[storage_address(tensor)] = max(end, ends.get(storage_address(tensor), 0))
    whole = {home: Layout(home, (n,), (1,), torch.uint8, tensors[0].device).tensor() for home, n in ends.items()}
    return [whole[storage_address(tensor)] for tensor in tensors]


def storage_address(tensor: Tensor) -> int:
    """Address of the tensor's storage; 0 if it has none."""
    return tensor.untyped_storage().data_ptr()


_storage_of = Tensor.untyped_storage  # the original, which captures replace


def memory_of(tensor: Tensor) -> int:
    """Identity of the tensor's memory: the same for all views, and unique while ``kept_identity`` is held."""
    try:
        return _storage_of(tensor)._cdata
    except RuntimeError:  # it has no storage
        return id(tensor)


def kept_identity(tensor: Tensor) -> object:
    """An object that keeps ``memory_of`` from being reused for another tensor, without keeping the memory."""
    try:
        return StorageWeakRef(_storage_of(tensor))
    except RuntimeError:
        return tensor


def taken_from_device(make: Callable[[], object]) -> int | None:
    """Device memory that ``make()`` took outside torch's allocator: what the runtime keeps for a graph exec.

    The runtime allocates in chunks, so the first of several execs pays for all. Other processes' use is included.
    None if the runtime does not tell.
    """
    before = _free()
    make()
    after = _free()
    return max(0, before - after) if before is not None and after is not None else None


def _free() -> int | None:
    """Free bytes of the device; None if the runtime cannot tell just now."""
    try:
        return int(torch.cuda.mem_get_info()[0])
    except RuntimeError:
        return None


def pool_id(pool: object) -> Any:
    """The id of the ``pool`` that a program passed; None if it asks for a new one."""
    identity = getattr(pool, "id", pool)
    return None if identity == (0, 0) else identity


def pool_of(graph: Any) -> tuple[int, int] | None:
    """The id of a graph's memory pool; None if nothing was captured."""
    try:
        first, second = graph.pool()
    except RuntimeError:
        return None
    return int(first), int(second)


def pool_ranges(pool: tuple[int, int]) -> list[tuple[int, int]]:
    """Address ranges of a private pool's segments, sorted."""
    segments = [s for s in all_segments() if tuple(s.get("segment_pool_id", (0, 0))) == pool]
    return sorted((s["address"], s["address"] + s["total_size"]) for s in segments)


def all_segments() -> list[dict[str, Any]]:
    """Every segment of the caching allocator, with its blocks.

    Avoids ``torch.cuda.memory_snapshot()``, which up to torch 2.14 drops one reference too many to each number of the
    pool's id: a live integer is freed in the end, and the process crashes later, anywhere (torch 2.11 on).
    """
    found: list[dict[str, Any]] = torch_names._snapshot()["segments"]
    return found


def is_within(address: int, ranges: list[tuple[int, int]]) -> bool:
    return any(start <= address < end for start, end in ranges)


# -- among the arguments and results of an operation ---------------------------------------------------


def flat(*items: object) -> list[Tensor]:
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
