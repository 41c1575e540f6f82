"""A few HIP calls that the native self-test needs besides the driver room's: memory, streams, launches.

Everything goes through ctypes to the library that the driver found: no torch, no compiler but AMD's own.
"""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

from gfxgraph.driver.graphs import GraphDriver

N = 100  # ints in a buffer: not a multiple of the workgroup
NBYTES = 4 * N
ADD_LAYOUT = [(0, 8), (8, 8), (16, 4), (20, 4)]
PACKED_POINTER, PACKED_SIZE, PACKED_END = 1, 2, 3
KERNELS = """
extern "C" __global__ void add_to(int *out, const int *in, int value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + value;
}
extern "C" __global__ void times_two(int *data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = data[i] * 2;
}
"""


class HipCalls:
    """One GPU. Kernels are launched by host stub where a library of them is given, else by function."""

    def __init__(self, driver: GraphDriver, kernels: str = "", code_object: str = "") -> None:
        self.hip = driver.table.found.handle
        self.stubs = ctypes.CDLL(kernels) if kernels else None
        self.functions: dict[str, int] = {}
        self.code = Path(code_object).read_bytes() if code_object else b""
        if self.code:
            module = self.load()
            for name in ("add_to", "times_two"):
                function = c_void_p()
                self("hipModuleGetFunction", byref(function), module, name.encode())
                self.functions[name] = function.value or 0

    def __call__(self, symbol: str, *args: Any) -> None:
        """Call the runtime, which must not refuse."""
        status = self.status(symbol, *args)
        assert status == 0, f"{symbol} returned {status}, not 0"

    def status(self, symbol: str, *args: object) -> int:
        """Call the runtime and hand its status on; integers above 16 bits are handles."""
        wide = [c_void_p(a) if isinstance(a, int) and a > 0xFFFF else a for a in args]
        status = int(self.hip[symbol](*wide))
        self.hip.hipGetLastError()
        return status

    def load(self) -> c_void_p:
        """The kernels once more, as a module of its own."""
        module = c_void_p()
        self("hipModuleLoadData", byref(module), self.code)
        return module

    def stream(self, blocking: bool = False) -> int:
        made = c_void_p()
        self("hipStreamCreateWithFlags", byref(made), 0 if blocking else 1)
        return made.value or 0

    def event(self) -> int:
        made = c_void_p()
        self("hipEventCreateWithFlags", byref(made), c_uint(2))
        return made.value or 0

    def buffer(self, value: int = 0) -> int:
        made = c_void_p()
        self("hipMalloc", byref(made), c_size_t(NBYTES))
        self.fill(made.value or 0, value)
        return made.value or 0

    def fill(self, buffer: int, value: int) -> None:
        data = struct.pack(f"<{N}i", *([value] * N))
        self("hipMemcpy", buffer, data, c_size_t(NBYTES), 1)

    def read(self, buffer: int) -> int:
        """The value that every element of ``buffer`` has."""
        data = ctypes.create_string_buffer(NBYTES)
        self("hipMemcpy", data, buffer, c_size_t(NBYTES), 2)
        values = set(struct.unpack(f"<{N}i", data.raw))
        assert len(values) == 1, f"not one value: {sorted(values)}"
        return values.pop()

    # Work for a stream: each puts one node into a capture.

    def memset(self, buffer: int, byte: int, stream: int) -> None:
        self("hipMemsetAsync", buffer, byte, c_size_t(NBYTES), stream)

    def copy(self, out: int, source: int, stream: int) -> None:
        self("hipMemcpyAsync", out, source, c_size_t(NBYTES), 3, stream)

    def add_by_stub(self, out: int, source: int, value: int, stream: int) -> None:
        if self.stubs is None:
            return self.add_by_module(out, source, value, stream)
        where = (c_void_p(out), c_void_p(source), c_int(value), c_int(N), c_void_p(stream))
        assert self.stubs.launch_add_to(*where) == 0
        return None

    def double_by_stub(self, data: int, stream: int) -> None:
        assert self.double(data, N, stream) == 0

    def double(self, data: int, n: int, stream: int | None) -> int:
        """The status of a launch that doubles ``n`` elements; none of them makes a grid of no blocks."""
        if self.stubs is not None:
            return int(self.stubs.launch_times_two(c_void_p(data), c_int(n), c_void_p(stream)))
        arguments = [c_void_p(data), c_int(n)]
        slots = (c_void_p * 2)(*(ctypes.addressof(argument) for argument in arguments))
        shape = ((n + 63) // 64, 1, 1, 64, 1, 1, 0)
        return self.status("hipModuleLaunchKernel", self.functions["times_two"], *shape, stream, slots, None)

    def add_by_module(self, out: int, source: int, value: int, stream: int) -> None:
        arguments = [c_void_p(out), c_void_p(source), c_int(value), c_int(N)]
        slots = (c_void_p * 4)(*(ctypes.addressof(argument) for argument in arguments))
        self._launch("add_to", stream, slots, None)

    def add_packed(self, out: int, source: int, value: int, stream: int) -> None:
        """As Triton launches: all arguments in one buffer."""
        packed = ctypes.create_string_buffer(struct.pack("<QQii", out, source, value, N), 24)
        nbytes = c_size_t(24)
        extra = (c_void_p * 5)(
            PACKED_POINTER, ctypes.addressof(packed), PACKED_SIZE, ctypes.addressof(nbytes), PACKED_END
        )
        self._launch("add_to", stream, None, extra)

    def _launch(self, name: str, stream: int, slots: object, extra: object) -> None:
        blocks = (N + 63) // 64
        self(
            "hipModuleLaunchKernel", self.functions[name], blocks, 1, 1, 64, 1, 1, 0, stream, slots, extra
        )  # fmt: skip
