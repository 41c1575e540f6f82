"""Copies of several small tensors by one launch of a kernel of our own.

Problem: a driver copy costs the CPU twice what a launch does, and each tensor needs one; torch's fused
copy costs its dispatcher. Idea: one kernel that copies up to `MOST` stretches of memory, launched with
its arguments prepared: a call writes addresses into them and makes one foreign call.

Invariants:
  - the runtime copies the arguments when it is called, so they may be changed right after a launch;
  - a prepared launch belongs to one stream at a time, and to one thread at a time: its owner's lock;
  - the kernel is loaded for the context that is current then, and never unloaded.

CUDA's driver compiles copies.ptx, which tools/make_copy_kernel.py writes from `SOURCE`; on AMD's runtime
`SOURCE` itself is compiled by hiprtc.

Source: measured (benchmarks/bench_callables.py); decision 0100.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import Structure, addressof, byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

from gfxgraph.driver import hiprtc
from gfxgraph.driver.table import SUCCESS, Table

KERNEL = "gfxgraph_copy"
MOST = 32
"""Stretches that one launch can copy."""
THREADS = 256
MOST_BLOCKS = 1024
MODE_RELAXED = 2

PTX = Path(__file__).with_name("copies.ptx")
SOURCE = """
struct Parts { unsigned long long from[32], to[32], nbytes[32]; };

template <class T> __device__ void copied(unsigned long long from, unsigned long long to, unsigned long long n) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    ((T*)to)[i] = ((const T*)from)[i];
}

extern "C" __global__ void gfxgraph_copy(Parts parts) {
  unsigned long long from = parts.from[blockIdx.y], to = parts.to[blockIdx.y], n = parts.nbytes[blockIdx.y];
  unsigned long long all = from | to | n;
  if (!(all & 15)) copied<uint4>(from, to, n >> 4);
  else if (!(all & 3)) copied<unsigned>(from, to, n >> 2);
  else copied<unsigned char>(from, to, n);
}
"""


class LaunchConfig(Structure):
    """CUlaunchConfig: 56 bytes."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_nbytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("n_attributes", c_uint),
    ]


class Arguments:
    """The kernel's arguments, in memory that stays where it is.

    ``words[i]`` is where part ``i`` is copied from, ``words[MOST + i]`` where to.
    """

    def __init__(self, parts: Sequence[tuple[int, int, int]]) -> None:
        self.words = (c_ulonglong * (3 * MOST))()
        for i, (to, source, nbytes) in enumerate(parts):
            self.words[i], self.words[MOST + i], self.words[2 * MOST + i] = source, to, nbytes
        longest = max(nbytes for _, _, nbytes in parts)
        self.grid = (min(MOST_BLOCKS, -(-longest // (16 * THREADS))), len(parts), 1)
        self.pointers = (c_void_p * 1)(addressof(self.words))
        self.pointers.alive = self.words  # type: ignore[attr-defined]  # the launch keeps them alive


class PreparedCopies:
    """One prepared launch.

    ``launch()`` returns a status, 0 where the launch was accepted; a refusal is the caller's to handle, by
    another copy.
    """

    def __init__(self, table: Table, function: int, parts: Sequence[tuple[int, int, int]], stream: int) -> None:
        made = Arguments(parts)
        self.words, grid = made.words, made.grid
        self._config = LaunchConfig(grid, (THREADS, 1, 1), 0, stream, None, 0)
        self._stream = c_void_p(stream)
        self.launch: Callable[[], int]
        # Functions without a signature, and arguments that are pointers already: converting four integers
        # costs a third of a microsecond.
        handle, arguments = pointer(function), byref(made.pointers)
        if table.has("launch_kernel_ex"):
            call = table.undeclared("launch_kernel_ex")
            self.launch = functools.partial(call, byref(self._config), handle, arguments, None)
        else:
            call = table.undeclared("launch_kernel")
            self.launch = functools.partial(call, handle, *grid, THREADS, 1, 1, 0, self._stream, arguments, None)

    def on(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        self._config.stream = self._stream.value = stream


class CopyKernel:
    """The kernel, loaded into the context that is current."""

    def __init__(self, table: Table, arch: str) -> None:
        """Compile and load it.

        Args:
            arch: the GPU as the runtime names it, for AMD's compiler.

        Raises:
            DriverError: `graph_api_missing`, `driver_call_failed`, `kernel_not_compiled`.
        """
        self._table = table
        image = hiprtc.compile_kernel(table.found, SOURCE, arch) if table.backend == "hip" else PTX.read_bytes()
        module, function = c_void_p(), c_void_p()
        with relaxed(table):
            table.call("load_module", byref(module), image)
            table.call("module_function", byref(function), module, KERNEL.encode())
        self.function = function.value or 0

    def prepare(self, parts: Sequence[tuple[int, int, int]], stream: int) -> PreparedCopies:
        """A launch that copies (to, from, nbytes), up to `MOST` of them, none of them empty."""
        return PreparedCopies(self._table, self.function, parts, stream)


def pointer(address: int) -> Any:
    """``address`` as an argument that needs no conversion; nothing is read there."""
    return byref(c_char.from_address(address))


@contextmanager
def relaxed(table: Table) -> Iterator[None]:
    """What is done here must not end the captures of other threads: load a module, destroy a graph."""
    mode = c_int(MODE_RELAXED)
    is_changed = table.has("exchange_mode") and table.function("exchange_mode")(byref(mode)) == SUCCESS
    try:
        yield
    finally:
        if is_changed:
            table.function("exchange_mode")(byref(mode))
