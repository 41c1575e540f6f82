"""driver: locate, load, call and check the GPU runtime.

Enters: handles as integers, byte counts, status codes.
Stays out: torch, policy, the user's tensors.

    library.py       finds the runtime: the one mapped in the process first
    runtime_functions.py  the functions that are called, with their signatures
    layouts.py       structs of the graph API
    table.py         the functions of one runtime; where a status becomes an exception
    graphs.py        GraphDriver: the graph calls that HIP and CUDA answer alike; hip.py and cuda.py add the rest
    params.py        a kernel node's launch: geometry, function, arguments
    small_copies.py  several small copies in one launch; copies.ptx is that kernel for CUDA
    joined.py        a captured graph with copies before and after it, as one exec
    while_loop.py    captured steps in turn, as one exec; goes_on.ptx is the kernel between them
    hiprtc.py        AMD's runtime compiler
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfxgraph.driver import library
from gfxgraph.driver.cuda import CudaDriver
from gfxgraph.driver.hip import HipDriver
from gfxgraph.driver.table import Table

if TYPE_CHECKING:
    from gfxgraph.driver.graphs import GraphDriver
    from gfxgraph.driver.library import FoundLibrary


def locate(backend: str) -> GraphDriver:
    """Return the driver for the runtime of this process.

    Args:
        backend: "hip" or "cuda".

    Raises:
        DriverError: `driver_library_not_found`, with every place tried; `graph_api_missing`.
    """
    return open_driver(library.find(backend))


def open_driver(found: FoundLibrary) -> GraphDriver:
    """Return the driver over a library that is open."""
    return (HipDriver if found.backend == "hip" else CudaDriver)(Table(found))
