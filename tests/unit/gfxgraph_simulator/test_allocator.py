"""The caching allocator: addresses, pools, figures and running out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gfxgraph_simulator as simulator

Install = Callable[..., simulator.Simulator]


def test_freed_addresses_come_again_with_stale_contents(sim: simulator.Simulator) -> None:
    """The next tensor of the size gets the block, and what the last one left in it."""
    x = torch.full((100,), 7.0, device="cuda")
    address = x.data_ptr()
    del x
    y = torch.empty(100, device="cuda")
    assert y.data_ptr() == address and y[0].item() == 7


def test_views_keep_their_storage_alive(sim: simulator.Simulator) -> None:
    """A block is free only when the last view of its storage is gone."""
    before = torch.cuda.memory_allocated()
    x = torch.ones(1000, device="cuda")
    view = x[10:20].view(2, 5)
    del x
    assert torch.cuda.memory_allocated() == before + 4096
    assert view.tolist() == [[1] * 5] * 2
    del view
    assert torch.cuda.memory_allocated() == before


def test_figures_follow_torchs_rounding(sim: simulator.Simulator) -> None:
    """512-byte blocks; 2 MiB and 20 MiB segments; empty_cache gives segments back."""
    torch.cuda.empty_cache()
    base, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    large = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - base == 3 << 20
    assert torch.cuda.memory_reserved() - reserved == 20 << 20
    torch.cuda.reset_peak_memory_stats()
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved
    assert torch.cuda.max_memory_allocated() - base == 3 << 20
    free, total = torch.cuda.mem_get_info()
    assert total == 8 << 30 and free == total - reserved
    assert torch.cuda.memory_stats()["segment.large_pool.current"] == 0


def test_out_of_memory_is_torchs_error_and_frees_the_cache_first(install: Install) -> None:
    """Cached segments are given back before OutOfMemoryError is raised."""
    install(total_memory=64 << 20)
    cached = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    del cached
    kept = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 30.00 MiB"):
        torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    del kept


def test_private_pools_share_nothing(sim: simulator.Simulator) -> None:
    """Memory freed in a private pool is reused there only, and shows under the pool's id."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1000, device="cuda")
        address = x.data_ptr()
        del x
    outside = torch.ones(1000, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(1000, device="cuda")
    assert outside.data_ptr() != address == inside.data_ptr()
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert segment["address"] <= address < segment["address"] + segment["total_size"]
    assert [block["state"] for block in segment["blocks"]] == ["active_allocated", "inactive"]


def test_captures_allocate_in_their_pool(sim: simulator.Simulator) -> None:
    """A graph's tensors lie in its pool; temporaries of a capture are recycled within it."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    with torch.cuda.graph(graph):
        addresses = set()
        for _ in range(5):
            t = x * 2
            addresses.add(t.data_ptr())
            del t
        y = x + 1
    assert len(addresses) == 1
    segments = torch.cuda.memory_snapshot()
    owner = [s for s in segments if s["address"] <= y.data_ptr() < s["address"] + s["total_size"]]
    assert [s["segment_pool_id"] for s in owner] == [graph.pool()]


def test_pool_goes_when_its_last_user_goes(sim: simulator.Simulator) -> None:
    """reset() gives the use back; empty_cache then unmaps the pool."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(1000, device="cuda") + 1
    reserved = torch.cuda.memory_reserved()
    del y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved
    graph.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved - (2 << 20)


def test_shared_pool_reuses_memory_of_dead_outputs(sim: simulator.Simulator) -> None:
    """A second graph in the pool overwrites what the first one left, as upstream's tests expect."""
    x, first, second = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = x + 1
        address = a.data_ptr()
    del a
    with torch.cuda.graph(second, pool=first.pool()):
        b = x * 5
    assert b.data_ptr() == address
    second.replay()
    first.replay()
    assert b.tolist() == [2] * 8


def test_tensor_at_aliases_without_owning(sim: simulator.Simulator) -> None:
    """tensor_at sees and changes memory, and does not keep it."""
    x = torch.zeros(4, device="cuda")
    alias = simulator.tensor_at(x.data_ptr(), (2, 2), (2, 1), torch.float32)
    alias.fill_(3)
    assert alias.is_cuda and x.tolist() == [3] * 4
    allocated = torch.cuda.memory_allocated()
    del alias
    assert torch.cuda.memory_allocated() == allocated


def test_storage_from_pointer(sim: simulator.Simulator) -> None:
    """The two torch._C constructors that cudagraph trees use."""
    x = torch.arange(4.0, device="cuda")
    storage = torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, 16)
    made = torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(
        {"dtype": torch.float32, "size": (2, 2), "stride": (2, 1), "storage_offset": 0}, storage
    )
    assert made.tolist() == [[0, 1], [2, 3]] and made.data_ptr() == x.data_ptr()


def test_errors_do_not_leak_blocks(sim: simulator.Simulator) -> None:
    """A tensor that dies while an exception is under way is freed, and the exception survives."""
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            torch.ones(1000, device="cuda").numpy()
    assert torch.cuda.memory_allocated() == before
