"""A memory pool in which every allocation has its own segment, with unused bytes on both sides.

torch's caching allocator packs tensors side by side, so that an overrun hits a neighbour. Under
a ``MemPool`` it takes whole segments from an allocator of ours and, told not to split them, puts
one allocation in each. The rest of the segment is unused.

The pool object must outlive every graph that uses it: otherwise its destructor ends the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import secrets
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gfxgraph import config, files
from gfxgraph.capture.replay.graph_tensors import all_segments
from gfxgraph.errors import CaptureError
from gfxgraph.process import process

SOURCE = Path(__file__).with_name("redzone_allocator.cpp")
ZONE_NBYTES = 65536
_CALLS = {
    "hip": ("hipMalloc", "hipFree", "hipThreadExchangeStreamCaptureMode"),
    "cuda": ("cuMemAlloc_v2", "cuMemFree_v2", "cuThreadExchangeStreamCaptureMode"),
}


class SimulatedFences:
    """Replaces the allocator if the simulator is the device; the simulator's MemPool knows it."""

    fence_nbytes = 4096


class RedZonePool:
    """One capture's pool."""

    def __init__(self) -> None:
        if "no_split" not in inspect.signature(torch.cuda.MemPool.__init__).parameters:
            raise CaptureError(
                "red_zones_unavailable", why=f"torch {torch.__version__} cannot keep a pool from splitting segments"
            )
        self.pool: Any = torch.cuda.MemPool(_allocator(), no_split=True)
        self.zone_nbytes = SimulatedFences.fence_nbytes if process.require().platform == "simulator" else ZONE_NBYTES
        self.id: tuple[int, int] = tuple(self.pool.id)
        self.made_under = process.require()
        # Kept from the interpreter's teardown: graphs may be freed after it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.pool))
        _pools.append(self)

    def segments(self) -> list[tuple[int, int]]:
        """(address, nbytes) of each segment."""
        found = all_segments()
        own = [s for s in found if tuple(s.get("segment_pool_id", (0, 0))) == self.id]
        return sorted((s["address"], s["total_size"]) for s in own)


_pools: list[RedZonePool] = []


def release_unused() -> None:
    """Free the pools whose graphs are gone."""
    for zoned in list(_pools):
        if zoned.made_under.platform == "simulator" and zoned.made_under is not process.current():
            _pools.remove(zoned)  # that device is gone, and so is its memory
        elif zoned.pool.use_count() == 1:
            _pools.remove(zoned)
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(zoned.pool))
            del zoned.pool


@lru_cache(maxsize=1)
def _of_library(path: str, library: str, backend: str) -> Any:
    opened = ctypes.CDLL(path)
    names = [name.encode() for name in _CALLS[backend]]
    status = opened.gfxgraph_zone_open(library.encode(), *names)
    if status:
        why = f"{library} cannot be opened" if status == 1 else f"{library} lacks one of {', '.join(_CALLS[backend])}"
        raise CaptureError("red_zones_unavailable", why=why)
    return torch.cuda.memory.CUDAPluggableAllocator(path, "gfxgraph_zone_alloc", "gfxgraph_zone_free")


def _allocator() -> Any:
    state = process.require()
    if state.platform == "simulator":
        return SimulatedFences()
    backend = "hip" if state.platform == "rocm" else "cuda"
    return _of_library(str(build()), str(state.driver.library), backend).allocator()  # type: ignore[attr-defined]


def build() -> Path:
    """Compile the allocator into the state directory, once per version of its source.

    Raises:
        CaptureError: `red_zones_unavailable`, with the compiler's output.
    """
    source = SOURCE.read_bytes()
    folder = config.state_folder() / "build"
    target = folder / f"redzones-{hashlib.sha256(source).hexdigest()[:12]}.so"
    if files.is_private(target):
        return target
    files.new_folder(folder, 0o700)
    temporary = target.with_suffix(f".{secrets.token_hex(8)}.tmp")
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-o", str(temporary), str(SOURCE), "-ldl"]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError("red_zones_unavailable", why=f"g++ could not be run: {error}") from error
    if made.returncode:
        raise CaptureError("red_zones_unavailable", why="g++ failed", quote=made.stderr.strip())
    temporary.chmod(0o700)
    files.move(temporary, target)  # several processes may build at once
    if not files.is_private(target):
        raise CaptureError("red_zones_unavailable", why=f"others may write to {target} or its folder")
    return target
