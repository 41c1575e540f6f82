"""core: addresses, layouts, runtimes' words and recorder pages that the guard works with."""

from __future__ import annotations

import itertools

import pytest

from gfxgraph.core.fault_report import Fault, NodeInfo, TensorUse, read_words
from gfxgraph.core.flight_page import Page, Phase, unpack
from gfxgraph.core.memory_map import Allocation, MemoryMap
from gfxgraph.core.strides import Oddity, oddities

KV = Allocation(0x10000, 2 << 20, "kv_cache", "model.py:31", "[512, 1024] float32")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (KV.end + 511, "512 bytes past the end of `kv_cache`, [512, 1024] float32, 2 MiB, allocated at model.py:31"),
        (KV.end, "1 byte past the end of `kv_cache`, [512, 1024] float32, 2 MiB, allocated at model.py:31"),
        (KV.address - 1, "1 byte before `kv_cache`, [512, 1024] float32, 2 MiB, allocated at model.py:31"),
        (KV.address, "0 bytes into `kv_cache`, [512, 1024] float32, 2 MiB, allocated at model.py:31"),
    ],
)
def test_an_address_is_told_relative_to_the_nearest_allocation(address: int, words: str) -> None:
    """Distance, side, name, size and the line that made it."""
    far = Allocation(0x900000000, 64, "far")
    assert MemoryMap([far, KV]).place(address) == words


def test_the_smallest_live_allocation_answers() -> None:
    """A tensor inside its block; what was freed only where nothing else is there."""
    inner = Allocation(0x10100, 64, "inner")
    dead = Allocation(0x10100, 32, "dead", is_live=False)
    assert MemoryMap([KV, inner, dead]).holding(0x10110) is inner
    assert MemoryMap([dead]).place(0x10104) == "4 bytes into `dead`, 32 bytes, since freed"
    assert MemoryMap().place(1) == ""


@pytest.mark.parametrize(
    ("size", "stride", "offset", "n_storage", "found"),
    [
        ((4, 8), (8, 1), 0, 32, ()),
        ((), (), 0, 1, ()),
        ((0, 4), (4, 1), 0, 0, ()),
        ((1, 8), (99, 1), 0, 8, ()),
        ((4, 8), (0, 1), 0, 8, (Oddity.BROADCAST,)),
        ((8, 4), (1, 8), 0, 32, (Oddity.PERMUTED,)),
        ((4, 4), (8, 1), 0, 32, (Oddity.GAPS, Oddity.SHARED)),
        ((6, 3), (1, 1), 0, 8, (Oddity.OVERLAPPING,)),
        ((4,), (1,), 4, 8, (Oddity.SHARED,)),
        ((4,), (-1,), 0, None, (Oddity.NEGATIVE,)),
    ],
)
def test_layouts_are_told_apart(size, stride, offset, n_storage, found) -> None:  # type: ignore[no-untyped-def]
    """One name for each way in which a tensor is not plain memory of its own."""
    assert oddities(size, stride, offset, n_storage) == found


def test_overlap_is_found_exactly() -> None:
    """Against every index pair, for every small layout without broadcasting."""
    for size in itertools.product(range(1, 4), repeat=2):
        for stride in itertools.product(range(1, 5), repeat=2):
            places = [a * stride[0] + b * stride[1] for a in range(size[0]) for b in range(size[1])]
            shares = len(set(places)) != len(places)
            said = Oddity.OVERLAPPING in oddities(size, stride)
            assert said or not shares  # never missed; steps that interleave without meeting may be named too


ROCR = "Memory access fault by GPU node-2 (Agent handle: 0x36a6960) on address 0x7ea2e0c00000. Reason: Unknown.\n"
VAGUE = (
    "Memory access fault by GPU node-1 (Agent handle: 0x55d0) on address 0x1000(may not be exact address). "
    "Reason: Page not present or supervisor privilege."
)
NAMED = (
    ":0:rocdevice.cpp            :3685: 71 us:  Memory Fault Error [host: box, GPU index: 0, "
    "faulting addr: 0x7f0000001200, kernel: _Z3addPfS_i]\nWarning: Queue error - HSA_STATUS_ERROR_MEMORY_FAULT\n"
)
NULL = "Memory access fault by GPU node-1 (Agent handle: 0x1) on address (nil). Reason: Page not present.\n"


@pytest.mark.parametrize(
    ("text", "address", "is_exact", "kernel"),
    [
        (ROCR, 0x7EA2E0C00000, True, ""),
        (VAGUE, 0x1000, False, ""),
        (NAMED, 0x7F0000001200, True, "_Z3addPfS_i"),
        (NULL, 0, True, ""),
        ("RuntimeError: HIP error: an illegal memory access was encountered\n", None, True, ""),
        ("CUDA error: device-side assert triggered\n", None, True, ""),
    ],
)
def test_the_runtimes_words_are_read(text: str, address: int | None, is_exact: bool, kernel: str) -> None:
    """Address, whether it is exact, and the kernel, from each of the endings."""
    words = read_words(f"loading\n{text}more\n")
    assert words is not None
    assert (words.address, words.is_exact, words.kernel) == (address, is_exact, kernel)
    assert words.line in text


def test_ordinary_output_is_no_fault() -> None:
    """Words about memory alone mean nothing."""
    assert read_words("memory access is fast; no fault\nCUDA error handling enabled\n") is None


def test_a_fault_is_told_with_the_tensors_of_its_node() -> None:
    """An address that no allocation explains is placed relative to the node's own tensors."""
    use = TensorUse("output", "out", "[8] float32", 0x2000, 32)
    node = NodeInfo(3, "kernel", "k", "aten::gather", "a.py:7", (use,))
    fields = Fault(node, 9, 2, "SIGABRT", read_words(ROCR.replace("7ea2e0c00000", "2020"))).fields()
    assert fields["nearest"] == "1 byte past the end of `out`, [8] float32, 32 bytes"
    assert fields["layout"] == "output `out` [8] float32 at 0x2000 (32 bytes)"
    assert NodeInfo.from_dict(node.as_dict()) == node


def test_a_page_survives_and_a_torn_one_is_noticed() -> None:
    """What was packed is read; a page cut or half written is not."""
    page = Page(77, Phase.RUNNING, 3, 1, 12, 40, 9, 123456789, 5)
    assert unpack(page.pack()) == page
    assert unpack(page.pack()[:40]) is None
    torn = bytearray(page.pack())
    torn[8] = 6  # the first copy of the sequence number
    assert unpack(bytes(torn)) is None
    assert unpack(b"\0" * 4096) is None
