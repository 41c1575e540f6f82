"""The calls that are made below torch, by whichever runtime is mapped in the process.

What HIP and CUDA answer alike is here; hip.py and cuda.py add what differs, and gfxgraph_simulator answers for the
simulated card. Nothing decides: a call is made, its status checked, its answer handed on. Handles are integers
and are never looked into. Every method may raise ``gfxgraph.errors.DriverError``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p, sizeof
from typing import Any

from gfxgraph.driver import params as kernel_params
from gfxgraph.driver.joined import JoinedExec, KernelCopyNode, OwnedExec, Parts, Step
from gfxgraph.driver.params import KernelParams, Layout
from gfxgraph.driver.small_copies import CopyKernel, pointer, relaxed
from gfxgraph.driver.table import SUCCESS, Table, split_version
from gfxgraph.types import CaptureInfo, CaptureStatus, NodeKind

# hipStreamCaptureMode and its CUDA twin. Relaxed alone may be ended from any thread.
MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED = 0, 1, 2
_ACTIVE_AT_ONE_NODE = 1 << 32 | 1
_ADD_DEPENDENCIES = 0  # to those that the stream has; 1 would replace them


class GraphDriver(ABC):
    """Graph calls of one GPU runtime, over its function table.

    Attributes:
        name: "hip", "cuda" or "sim".
        version: hipRuntimeGetVersion or cuDriverGetVersion, split.
        missing: names of methods that this runtime cannot serve; none is half done.
    """

    name: str
    node_struct: type[Structure]
    node_kinds: Mapping[int, NodeKind]
    has_while_loop = False
    """Whether a graph can hold a loop: only CUDA's."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.library = table.found.path
        number = c_int()
        table.call("version", byref(number))
        self.version = split_version(table.backend, number.value)
        self.missing = table.missing

    @abstractmethod
    def kernel_name(self, node: int) -> str:
        """Name of a kernel node's function, mangled as the runtime has it; '' where it does not say."""

    @abstractmethod
    def param_layout(self, node: int) -> Layout | None:
        """(offset, nbytes) of each argument of ``node``'s kernel; None where the runtime does not say."""

    @abstractmethod
    def abandon_capture(self, stream: int, *, end_was_refused: bool = False) -> None:
        """Discard a capture, so that ``stream`` can be used again.

        Args:
            stream: where the capture began.
            end_was_refused: EndCapture was called on this capture before, by torch for one, and
                failed. HIP must not be asked to end it again, and does not tell.

        The handle that a refused end returns is garbage and is never touched.
        """

    # Captures ----------------------------------------------------------------------------------

    def frontier_reader(self, stream: int) -> Callable[[], int | tuple[int, ...]]:
        """Return a prepared call giving the last node (or nodes) of ``stream``'s capture, 0 before the first.

        Constant time on graphs of any length, where counting nodes is linear on some runtimes
        (0.7 us against 2.8 us at 800 nodes, measured on an H200, CUDA 13.0).
        """
        # This runs before and after every operation of a capture: no argument is converted, no object made.
        answers = (c_ulonglong * 2)()  # the status, an int, in bytes 4 to 7, and behind it the count
        first = POINTER(c_size_t)()
        call = self.table.undeclared("capture_info")
        handle = c_void_p.from_param(stream)
        arguments = (handle, byref(answers, 4), None, None, byref(first), byref(answers, sizeof(c_ulonglong)))
        status = memoryview(answers).cast("B").cast("i")
        count = memoryview(answers).cast("B").cast("Q")
        both = memoryview(answers).cast("B")[4:12].cast("Q")  # status and the count's lower half, read at once

        def frontier() -> int | tuple[int, ...]:
            if call(*arguments):
                return 0
            if both[0] == _ACTIVE_AT_ONE_NODE:
                return first[0]  # type: ignore[no-any-return]
            if status[1] != 1:
                return 0
            n_last = count[1]
            return tuple(first[:n_last]) if n_last else 0

        return frontier

    def frontier(self, stream: int) -> tuple[int, ...]:
        """The last nodes of ``stream``'s capture, once."""
        last = self.frontier_reader(stream)()
        return last if isinstance(last, tuple) else (last,) if last else ()

    def wait_for(self, stream: int, nodes: Sequence[int]) -> None:
        """Let ``stream``, which captures already, go on after ``nodes`` too: as a wait for an event recorded there.

        The wait itself would make ``stream`` a fork of the event's stream. Where two streams are so each other's,
        HIP's EndCapture never gets to the end of them, and the process dies (6.4.3 to 7.15).
        """
        if new := tuple(dict.fromkeys(nodes)):
            self.table.call("update_dependencies", stream, (c_void_p * len(new))(*new), len(new), _ADD_DEPENDENCIES)

    def capture_info(self, stream: int) -> CaptureInfo:
        """State of ``stream``'s capture; never raises because a capture is invalidated."""
        status, capture_id, graph = c_int(), c_ulonglong(), c_void_p()
        found = byref(status), byref(capture_id), byref(graph)
        answer = self.table.function("capture_info")(stream, *found, None, None)
        if answer != SUCCESS:
            if self._asked_about_legacy_stream(answer, stream):
                return CaptureInfo(CaptureStatus.NONE, 0, 0)
            self.table.check(answer, "capture_info")
        state = CaptureStatus(status.value)
        if state is CaptureStatus.NONE:
            return CaptureInfo(state, 0, 0)
        # Of an invalidated capture the runtimes set no id and no graph.
        return CaptureInfo(state, capture_id.value, graph.value or 0)

    def _asked_about_legacy_stream(self, answer: int, stream: int) -> bool:
        # The legacy stream cannot be captured; asked about it while another stream captures, both
        # runtimes refuse to answer. 1 is its named handle.
        return stream in (0, 1) and "IMPLICIT" in self.table.status_name(answer).upper()

    def begin_capture(self, stream: int, mode: int = MODE_THREAD_LOCAL) -> None:
        """Begin a bare capture on ``stream``, without an allocator or generators attached to it."""
        self.table.call("begin_capture", stream, mode)

    def end_capture(self, stream: int) -> int:
        """End the capture of ``stream`` and return its graph, which is then the caller's."""
        graph = c_void_p()
        # On failure HIP leaves garbage in the handle: the status alone says whether there is one.
        self.table.call("end_capture", stream, byref(graph))
        return graph.value or 0

    def _end_and_discard(self, stream: int) -> int:
        graph = c_void_p()
        status: int = self.table.function("end_capture")(stream, byref(graph))
        if status == SUCCESS:
            if graph.value:
                self.table.call("graph_destroy", graph)
        else:
            self.table.forget_last_error()  # and the handle is garbage: never touched
        return status

    def copy_kernel(self, arch: str) -> CopyKernel:
        """Load the kernel that copies several stretches of memory in one launch; raises as `CopyKernel`."""
        return CopyKernel(self.table, arch)

    def add_copies(self, kernel: CopyKernel, graph: int, parts: Parts, after: Sequence[int]) -> int:
        """Add copies (to, from, nbytes) to ``graph`` as one node that runs after the nodes ``after``."""
        return self.copy_node(kernel, graph, parts, after).node

    def copy_node(self, kernel: CopyKernel, graph: int, parts: Parts, after: Sequence[int]) -> KernelCopyNode:
        """The same as a node whose addresses can be changed."""
        return KernelCopyNode(self, kernel, graph, parts, after)

    def launcher(self, graph_exec: int, stream: c_void_p) -> Callable[[], int]:
        """Return the call that launches ``graph_exec`` on the stream that ``stream`` then names; 0 or a refusal."""
        return functools.partial(self.table.undeclared("launch"), pointer(graph_exec), stream)

    def joined(self, kernel: CopyKernel, graph: int, into: Parts, back: Parts, stream: int) -> JoinedExec:
        """Put copies before and after ``graph`` in one graph exec; `JoinedExec` says what it raises."""
        return JoinedExec(self, kernel, graph, into, back, stream)

    def while_loop(self, steps: Sequence[Step], left: int, stream: int) -> OwnedExec:
        """Put captured steps in a graph exec that runs them in turn; where ``has_while_loop``.

        Args:
            steps: (graph, address of the flag that it leaves, a bool) of each, one at least.
            left: address of an int32, which the caller sets to twice the most steps. Each step takes 2 off, and then
                adds its flag.

        Raises:
            DriverError: `driver_call_failed`, as for a step that a conditional node cannot hold.
        """
        raise NotImplementedError

    # Graphs ------------------------------------------------------------------------------------

    def nodes(self, graph: int) -> Sequence[int]:
        """Nodes of ``graph``: HIP gives them in topological order, CUDA in the order of insertion."""
        count = c_size_t()
        self.table.call("graph_nodes", graph, None, byref(count))
        if not count.value:
            return []
        found = (c_void_p * count.value)()
        self.table.call("graph_nodes", graph, found, byref(count))
        return [node or 0 for node in found[: count.value]]

    def node_kind(self, node: int) -> NodeKind:
        kind = c_int()
        self.table.call("node_type", node, byref(kind))
        return self.node_kinds.get(kind.value, NodeKind.OTHER)

    def child_graph(self, node: int) -> int:
        """The graph inside a child-graph node; it stays the node's."""
        graph = c_void_p()
        self.table.call("child_graph", node, byref(graph))
        return graph.value or 0

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """(from, to) pairs of ``graph``."""
        # CUDA's first form refuses graphs with programmatic edges, which only its second can express.
        with_data = self.table.has("graph_edges_v2")
        name = "graph_edges_v2" if with_data else "graph_edges"
        count = c_size_t()
        self.table.call(name, graph, None, None, *((None,) if with_data else ()), byref(count))
        if not count.value:
            return []
        before, after = (c_void_p * count.value)(), (c_void_p * count.value)()
        data = ((c_ulonglong * count.value)(),) if with_data else ()  # CUgraphEdgeData: 8 bytes
        self.table.call(name, graph, before, after, *data, byref(count))
        return [(a or 0, b or 0) for a, b in zip(before, after)][: count.value]

    def leaves(self, graph: int) -> list[int]:
        """Nodes of ``graph`` that nothing depends on."""
        followed = {before for before, _ in self.edges(graph)}
        return [node for node in self.nodes(graph) if node not in followed]

    def create_graph(self) -> int:
        graph = c_void_p()
        self.table.call("graph_create", byref(graph), 0)
        return graph.value or 0

    def add_child(self, graph: int, child: int, after: Sequence[int] = ()) -> int:
        """Add a copy of ``child`` to ``graph`` as one node that runs after the nodes ``after``."""
        node = c_void_p()
        before = (c_void_p * len(after))(*after) if after else None
        self.table.call("add_child", byref(node), graph, before, len(after), child)
        return node.value or 0

    def destroy_graph(self, graph: int) -> None:
        self.table.call("graph_destroy", graph)

    # Graph execs -------------------------------------------------------------------------------

    def instantiate(self, graph: int, flags: int = 0) -> int:
        graph_exec = c_void_p()
        # Both runtimes may write the handle on failure too; see end_capture.
        self.table.call("instantiate", byref(graph_exec), graph, flags)
        return graph_exec.value or 0

    def destroy_exec(self, graph_exec: int) -> None:
        self.table.call("exec_destroy", graph_exec)

    def launch(self, graph_exec: int, stream: int) -> None:
        self.table.call("launch", graph_exec, stream)

    def synchronize_stream(self, stream: int) -> None:
        """Wait for what was sent to ``stream``; captures of other threads go on."""
        with self.relaxed():  # else those of global mode are ended, and this is refused
            self.table.call("synchronize", stream)

    def relaxed(self) -> AbstractContextManager[None]:
        """Calls of this thread inside are not refused for a capture of another stream, and end none."""
        return relaxed(self.table)

    def set_node_enabled(self, graph_exec: int, node: int, enabled: bool) -> None:
        """Let ``graph_exec`` skip ``node``, or not. Kernel, copy and memset nodes of the top level only."""
        self.table.call("set_enabled", graph_exec, node, int(enabled))

    def node_enabled(self, graph_exec: int, node: int) -> bool:
        enabled = c_uint()
        self.table.call("get_enabled", graph_exec, node, byref(enabled))
        return bool(enabled.value)

    # Kernel nodes ------------------------------------------------------------------------------

    def node_params(self, node: int, layout: Layout | None = None) -> KernelParams:
        """Return how the kernel node ``node`` launches its kernel.

        Args:
            node: a kernel node.
            layout: (offset, nbytes) of each argument, where the caller knows what the runtime does
                not tell. A wrong layout reads memory that is not the arguments'.
        """
        raw = self._raw_params(node)
        known = self.param_layout(node) if layout is None else layout
        return kernel_params.read(raw, known, self._why_layout_unknown())

    def _raw_params(self, node: int) -> Any:
        raw = self.node_struct()
        self.table.call("kernel_params", node, byref(raw))
        return raw

    def _why_layout_unknown(self) -> str:
        symbol = self.table.symbol("func_param")
        if self.table.has("func_param"):
            return f"{symbol} does not know this kernel"
        return f"{self.library} has no {symbol}"

    def _walk_layout(self, name: str, function: int) -> Layout | None:
        """Ask for one argument after the other until the runtime says there are no more."""
        offset, nbytes = c_size_t(), c_size_t()
        call = self.table.function(name)
        layout: list[tuple[int, int]] = []
        while True:
            status = call(function, len(layout), byref(offset), byref(nbytes))
            if status != SUCCESS:
                ended = "INVALIDVALUE" in self.table.status_name(status).upper().replace("_", "")
                self.table.forget_last_error()
                # Refused at once is either no arguments or no such kernel; the same to a reader
                # who finds no argument array, and `read` looks.
                return layout if ended else None
            layout.append((offset.value, nbytes.value))
