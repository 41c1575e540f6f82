"""`GraphDriver` over ``libcuda``, the reference GPU's driver.

The driver library rather than ``libcudart``: its versioned names keep one signature for ever, and a
process has one of it however many runtimes it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_char_p

from gfxgraph.driver import layouts
from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.driver.joined import Step
from gfxgraph.driver.params import Layout
from gfxgraph.driver.while_loop import WhileExec
from gfxgraph.errors import DriverError
from gfxgraph.types import CaptureStatus


class CudaDriver(GraphDriver):
    name = "cuda"
    node_struct = layouts.CudaKernelNodeParams
    node_kinds = layouts.CUDA_NODE_KINDS

    def kernel_name(self, node: int) -> str:
        raw = self._raw_params(node)
        call, handle = ("func_name", raw.func) if raw.func else ("kern_name", raw.kern)
        if not handle or not self.table.has(call):
            return ""
        name = c_char_p()
        self.table.call(call, byref(name), handle)
        return name.value.decode("utf-8", "replace") if name.value else ""

    def param_layout(self, node: int) -> Layout | None:
        raw = self._raw_params(node)
        call, handle = ("func_param", raw.func) if raw.func else ("kern_param", raw.kern)
        if not handle or not self.table.has(call):
            return None
        return self._walk_layout(call, handle)

    @property
    def has_while_loop(self) -> bool:  # type: ignore[override]
        return not self.missing & {"while_loop", "copy_kernel"}

    def while_loop(self, steps: Sequence[Step], left: int, stream: int) -> WhileExec:
        return WhileExec(self, steps, left, stream)

    def abandon_capture(self, stream: int, *, end_was_refused: bool = False) -> None:
        """End the capture of ``stream``; CUDA resets the stream even when the end is refused.

        Raises:
            DriverError: `capture_not_abandoned`, as for a capture that another thread began.
        """
        if self.capture_info(stream).status is CaptureStatus.NONE:
            return
        status = self._end_and_discard(stream)
        if self.capture_info(stream).status is not CaptureStatus.NONE:
            raise DriverError("capture_not_abandoned", stream=hex(stream), status=self.table.status_name(status))
