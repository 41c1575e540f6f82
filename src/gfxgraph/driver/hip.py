"""`GraphDriver` over ``libamdhip64``.

What HIP does differently, and this module knows: kernels named by host stub
or by function, argument layouts only from 7.11 on, and captures that fail without ending (below).
"""

from __future__ import annotations

from ctypes import byref, c_void_p

from gfxgraph.driver import layouts
from gfxgraph.driver.graphs import MODE_RELAXED, GraphDriver
from gfxgraph.driver.params import Layout
from gfxgraph.driver.table import SUCCESS
from gfxgraph.errors import DriverError
from gfxgraph.types import CaptureInfo, CaptureStatus


class HipDriver(GraphDriver):
    name = "hip"
    node_struct = layouts.HipKernelNodeParams
    node_kinds = layouts.HIP_NODE_KINDS

    # Kernels -----------------------------------------------------------------------------------

    def kernel_name(self, node: int) -> str:
        function = self._raw_params(node).func
        if not function:
            return ""
        # A node launched by hipLaunchKernel holds the address of a host stub, one launched by
        # hipModuleLaunchKernel a function. Stubs are looked up in a map, so asking is safe for both;
        # the other call would follow a stub as if it were an object.
        name = self._stub_name(function)
        if name is None and self.table.has("func_name"):
            name = self.table.function("func_name")(function)
        return name.decode("utf-8", "replace") if name else ""

    def _stub_name(self, function: int) -> bytes | None:
        if not self.table.has("stub_name"):
            return None
        name: bytes | None = self.table.function("stub_name")(function, None)
        return name

    def param_layout(self, node: int) -> Layout | None:
        if not self.table.has("func_param"):
            return None
        function = self._raw_params(node).func or 0
        found = c_void_p()
        if self.table.function("func_of_stub")(byref(found), function) == SUCCESS and found.value:
            function = found.value
        else:
            self.table.forget_last_error()  # not a stub: a function already
        return self._walk_layout("func_param", function)

    # Dead captures -----------------------------------------------------------------------------

    def abandon_capture(self, stream: int, *, end_was_refused: bool = False) -> None:
        """End the capture of ``stream`` so that it can be used again; its graph is thrown away.

            ACTIVE ──join forks, EndCapture──> NONE
            ACTIVE, its end refused: an unjoined fork (904). The graph is gone, the stream lost.
            INVALIDATED ──EndCapture (901)──> NONE         from 7.14 on
                                         └──> INVALIDATED  until then, work sent to it vanishes
            INVALIDATED, its end refused ──BeginCapture, EndCapture──> NONE

        An end must be called exactly once: left out it stays in the runtime's lists, and hipMalloc
        is refused from then on; called twice it crashes. (6.4.3; tests/emulator.)

        Raises:
            DriverError: `capture_not_abandoned`, when the stream is lost or another thread's.
        """
        info = self.capture_info(stream)
        if info.status is CaptureStatus.NONE:
            return
        status = None
        if not end_was_refused:
            if info.status is CaptureStatus.ACTIVE:
                # With an unjoined fork the end would be refused for good.
                self.join_forks(info)
            status = self._end_and_discard(stream)
        if self.capture_info(stream).status is CaptureStatus.INVALIDATED:
            self.table.function("begin_capture")(stream, MODE_RELAXED)
            self.table.forget_last_error()
            status = self._end_and_discard(stream)
        if self.capture_info(stream).status is not CaptureStatus.NONE:
            said = "an earlier refusal" if status is None else self.table.status_name(status)
            raise DriverError("capture_not_abandoned", stream=hex(stream), status=said)

    def join_forks(self, info: CaptureInfo) -> bool:
        """Tie the loose ends of an active capture together; True when there were several.

        HIP refuses to end a capture whose graph has more than one last node.
        """
        leaves = self.leaves(info.graph)
        if len(leaves) < 2:
            return False
        node = c_void_p()
        self.table.call("add_empty", byref(node), info.graph, (c_void_p * len(leaves))(*leaves), len(leaves))
        return True
