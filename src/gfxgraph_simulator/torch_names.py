"""The simulated card's versions of the functions that torch's Python calls in ``torch._C`` on a CUDA build.

Enters: arguments as torch passes them.
Stays out: installing them (installation.py).
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from gfxgraph import torch_names
from gfxgraph.types import CaptureStatus
from gfxgraph_simulator import codes
from gfxgraph_simulator.allocator import Stat
from gfxgraph_simulator.runtime import CallRefused
from gfxgraph_simulator.torch_classes import CUDA_DEVICE_TYPE

if TYPE_CHECKING:
    from gfxgraph_simulator.allocator import PoolId
    from gfxgraph_simulator.card import Simulator


_NOTHING_TO_DO: Final = (
    "_cuda_init _cuda_ipc_collect _cuda_clearCublasWorkspaces _cuda_lock_mutex _cuda_unlock_mutex _host_emptyCache "
    "_cuda_resetPeakHostMemoryStats _cuda_resetAccumulatedHostMemoryStats _cuda_setMemoryMetadata "
    "_cuda_cudaCachingAllocator_enable _accelerator_setAllocatorSettings _accelerator_emptyHostCache"
)


def torch_c_names(sim: Simulator) -> dict[str, object]:
    """Names of ``torch._C``."""
    return {
        **dict.fromkeys(_NOTHING_TO_DO.split(), _nothing),
        **_device_names(sim),
        **_stream_names(sim),
        **_pool_names(sim),
        **_memory_names(sim),
        "_cuda_isCurrentStreamCapturing": lambda: sim.device.current().status is not CaptureStatus.NONE,
        "_graph_pool_handle": sim.allocator.new_user_pool_id,
    }


def _device_names(sim: Simulator) -> dict[str, object]:
    device = sim.device

    def set_device(index: int) -> None:
        if index not in (0, -1):
            raise codes.torch_error(101, sim.profile.platform)

    def blas_handle() -> int:
        if not device.threads.has_blas:
            sim.runtime_call("malloc")
            device.threads.has_blas = True
        return 1

    return {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": lambda index: 0,
        "_cuda_maybeExchangeDevice": lambda index: 0,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_synchronize": lambda: sim.call(device.synchronize),
        "_cuda_set_sync_debug_mode": lambda mode: setattr(device, "sync_debug_mode", int(mode)),
        "_cuda_get_sync_debug_mode": lambda: device.sync_debug_mode,
        "_cuda_sleep": lambda cycles: sim.launch_opaque("sim::spin_kernel", lambda: None),
        "_cuda_getCurrentBlasHandle": blas_handle,
        "_cuda_canDeviceAccessPeer": lambda one, other: False,
        "_cuda_getArchFlags": lambda: sim.profile.device.arch,
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_hasPrimaryContext": lambda index: True,
        "_has_cuda": True,
        "_get_device_properties": lambda index: device_properties(sim),
    }


def _stream_names(sim: Simulator) -> dict[str, object]:
    device = sim.device

    def of(stream_id: int) -> tuple[int, int, int]:
        return (stream_id, 0, CUDA_DEVICE_TYPE)

    def set_stream(stream_id: int, device_index: int = 0, device_type: int = CUDA_DEVICE_TYPE) -> None:
        device.stream(stream_id)
        torch_names._accelerator_setStream(
            torch.Stream(stream_id=stream_id, device_index=0, device_type=CUDA_DEVICE_TYPE)
        )

    return {
        "_cuda_getCurrentStream": lambda index: of(torch_names._accelerator_getStream(0).stream_id),
        "_cuda_getDefaultStream": lambda index: of(0),
        "_cuda_setStream": set_stream,
        "_cuda_getStreamFromExternal": lambda pointer, index: of(device.external_stream(pointer).id),
        "_cuda_getCurrentRawStream": lambda index: device.current().handle,
    }


def _pool_names(sim: Simulator) -> dict[str, object]:
    memory = sim.allocator

    def begin_for_thread(index: int, pool: PoolId) -> None:
        me = threading.get_ident()
        memory.begin_route((pool[0], pool[1]), lambda stream: threading.get_ident() == me)

    return {
        "_cuda_beginAllocateCurrentThreadToPool": begin_for_thread,
        "_cuda_beginAllocateToPool": lambda index, pool: memory.begin_route(tuple(pool), lambda stream: True),
        "_cuda_endAllocateToPool": lambda index, pool: memory.end_route(tuple(pool)),
        "_cuda_releasePool": lambda index, pool: memory.release_pool(tuple(pool)),
    }


def _nothing(*args: object, **kwargs: object) -> None:
    """For what a simulated card has nothing to do."""


def _memory_names(sim: Simulator) -> dict[str, object]:
    memory = sim.allocator

    def empty_cache(pool: Any = None) -> None:
        memory.empty_cache(tuple(pool) if pool else None)

    def record_history(enabled: str | None, *args: object, **kwargs: object) -> None:
        memory.history = enabled
        if enabled != "all":
            memory.trace.clear()

    def raw_alloc(nbytes: int, stream: int) -> int:
        known = sim.device.by_handle.get(stream)
        block = memory.allocate(nbytes, known.id if known is not None else 0)
        return block.address

    def raw_delete(address: int) -> None:
        block = memory.block_at(address)
        if block is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        memory.free(block)

    def tensor_from_storage(metadata: dict[str, Any], storage: Any) -> torch.Tensor:
        dtype = metadata["dtype"]
        address = storage.data_ptr() + metadata.get("storage_offset", 0) * dtype.itemsize
        made = torch.empty(0, dtype=dtype, device="cuda")
        made.set_(storage, metadata.get("storage_offset", 0), metadata["size"], metadata["stride"])
        assert made.data_ptr() in (address, 0)
        return made

    return {
        "_cuda_emptyCache": empty_cache,
        "_cuda_memoryStats": lambda index: memory_stats(sim),
        "_cuda_resetPeakMemoryStats": lambda index: memory.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda index: memory.reset_accumulated(),
        "_cuda_memorySnapshot": lambda request=None: memory_snapshot(sim, request),
        "_cuda_setMemoryFraction": lambda fraction, index: setattr(memory, "fraction", fraction),
        "_cuda_getMemoryFraction": lambda index: memory.fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_hostMemoryStats": lambda: {},
        "_cuda_cudaCachingAllocator_raw_alloc": raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": raw_delete,
        "_cuda_getMemoryMetadata": lambda: "",
        "_cuda_record_memory_history": record_history,
        "_cuda_isHistoryEnabled": lambda: memory.history is not None,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_accelerator_emptyCache": empty_cache,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": lambda index: memory_stats(sim),
        "_accelerator_resetPeakStats": lambda index: memory.reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda index: memory.reset_accumulated(),
        "_accelerator_getMemoryInfo": lambda index: mem_get_info(sim),
        "_accelerator_synchronizeDevice": lambda index: sim.call(sim.device.synchronize),
        "_construct_storage_from_data_pointer": lambda address, device, nbytes: sim.tensor_at(
            address, [nbytes], [1], torch.uint8
        ).untyped_storage(),
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": tensor_from_storage,
        # torch._inductor.cudagraph_trees imports it if there is a device.
        "_cuda_CUDAAllocator_AllocatorState": torch_names._cuda_CUDAAllocator_AllocatorState or object,
    }


def mem_get_info(sim: Simulator) -> tuple[int, int]:
    total = sim.allocator.total_nbytes
    return (max(0, total - sim.allocator.reserved_nbytes), total)


def memory_stats(sim: Simulator) -> dict[str, object]:
    """The nested statistics that torch.cuda.memory_stats flattens."""
    memory = sim.allocator
    segments = memory.stats["segment"]["all"]
    return {
        **{name: {kind: stat.as_dict() for kind, stat in kinds.items()} for name, kinds in memory.stats.items()},
        "num_ooms": memory.num_ooms,
        "num_alloc_retries": memory.num_retries,
        "num_sync_all_streams": 0,
        "num_device_alloc": segments.allocated,
        "num_device_free": segments.freed,
        "max_split_size": -1,
        "oversize_allocations": Stat().as_dict(),
        "oversize_segments": Stat().as_dict(),
    }


def memory_snapshot(sim: Simulator, request: Any = None) -> Any:
    """Segments with their blocks; ``request`` is a pool id with or without a flag for traces."""
    pool = tuple(request[:2]) if request else (0, 0)
    segments = []
    for segment in sim.allocator.all_segments(None if pool == (0, 0) else pool):
        blocks: list[dict[str, object]] = [
            {
                "address": block.address,
                "size": block.nbytes,
                "requested_size": block.requested if block.allocated else 0,
                "state": "active_allocated" if block.allocated else "inactive",
                "frames": block.frames,
            }
            for block in segment.blocks()
        ]
        segments.append(
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.nbytes,
                "allocated_size": segment.allocated_nbytes,
                "active_size": segment.allocated_nbytes,
                "requested_size": sum(block["requested_size"] for block in blocks),  # type: ignore[misc]
                "stream": sim.device.stream(segment.stream).handle,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": segment.pool.id,
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
            }
        )
    traces = [list(sim.allocator.trace)]
    return {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def device_properties(sim: Simulator) -> Any:
    """What torch.cuda.get_device_properties returns."""
    facts = sim.profile.device
    return types.SimpleNamespace(
        name=facts.name,
        major=facts.capability[0],
        minor=facts.capability[1],
        total_memory=sim.allocator.total_nbytes,
        multi_processor_count=facts.multiprocessors,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=65536,
        shared_memory_per_block_optin=65536,
        shared_memory_per_multiprocessor=65536,
        warp_size=facts.warp_size,
        L2_cache_size=4 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=facts.arch,
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        clock_rate=1,
        memory_clock_rate=1,
        memory_bus_width=1,
    )


def cudart_module(sim: Simulator) -> Any:
    """Stands in for torch.cuda.cudart(): the few calls that Python programs make through it."""

    def wrapped(function: Callable[..., object]) -> Callable[..., int]:
        def call(*args: object) -> int:
            try:
                function(*args)
            except CallRefused as refused:
                return refused.code
            return 0

        return call

    return types.SimpleNamespace(
        cudaError=types.SimpleNamespace(success=0),
        cudaGetErrorString=lambda code: codes.status_text(int(code)),
        cudaMemGetInfo=lambda index: mem_get_info(sim),
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaStreamSynchronize=wrapped(lambda handle: sim.device.synchronize_stream(sim.device.by_handle[handle])),
        cudaHostRegister=lambda pointer, nbytes, flags: 0,
        cudaHostUnregister=lambda pointer: 0,
    )


def nvtx_module() -> Any:
    """Stands in for torch._C._nvtx: ranges that are ignored."""

    class Ranges:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: 0

    return Ranges()
