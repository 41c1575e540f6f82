"""The GraphDriver of the simulated card.

Enters: handles as integers.
Stays out: torch's classes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from gfxgraph.driver.graphs import MODE_THREAD_LOCAL, GraphDriver
from gfxgraph.driver.params import KernelParams, Layout
from gfxgraph.driver.small_copies import MOST, Arguments
from gfxgraph.errors import DriverError
from gfxgraph.types import CaptureInfo, CaptureStatus, NodeKind
from gfxgraph_simulator import codes
from gfxgraph_simulator.card import Simulator
from gfxgraph_simulator.graph_nodes import ChildNode, Graph, GraphExec, RecordedNode
from gfxgraph_simulator.profiles import MODES
from gfxgraph_simulator.runtime import CallRefused, Stream

_T = TypeVar("_T")


class SimDriver(GraphDriver):
    """Every call that is made below torch, by the simulator's objects."""

    name = "sim"

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._device = sim.device
        self.version = sim.profile.version
        self.missing = frozenset()
        # Keeps graphs and graph execs made here alive until they are destroyed.
        self._made: dict[int, Graph | GraphExec] = {}

    def capture_info(self, stream: int) -> CaptureInfo:
        found = self._stream(stream)
        capture = found.capture
        if capture is None:
            return CaptureInfo(found.status, 0, 0)
        return CaptureInfo(found.status, capture.id, capture.graph.handle)

    def frontier_reader(self, stream: int) -> Callable[[], int | tuple[int, ...]]:
        found = self._stream(stream)

        def frontier() -> int | tuple[int, ...]:
            last = found.frontier if found.status is CaptureStatus.ACTIVE else ()
            if not last:
                return 0
            return last[0].handle if len(last) == 1 else tuple(node.handle for node in last)

        return frontier

    def wait_for(self, stream: int, nodes: Sequence[int]) -> None:
        found = self._stream(stream)
        known = {node.handle for node in found.frontier}
        found.frontier += tuple(self._node(node) for node in dict.fromkeys(nodes) if node not in known)

    def nodes(self, graph: int) -> Sequence[int]:
        return [node.handle for node in self._graph(graph).nodes]

    def node_kind(self, node: int) -> NodeKind:
        return self._node(node).kind

    def kernel_name(self, node: int) -> str:
        found = self._node(node)
        return found.name if found.kind is NodeKind.KERNEL else ""

    def set_node_enabled(self, graph_exec: int, node: int, enabled: bool) -> None:
        made, found = self._exec(graph_exec), self._node(node)
        self._belongs("hipGraphNodeSetEnabled", made, found)
        if enabled:
            made.disabled.discard(node)
        else:
            made.disabled.add(node)

    def node_enabled(self, graph_exec: int, node: int) -> bool:
        made, found = self._exec(graph_exec), self._node(node)
        self._belongs("hipGraphNodeGetEnabled", made, found)
        return node not in made.disabled

    def param_layout(self, node: int) -> Layout | None:
        return [(8 * i, 8) for i in range(len(self.node_params(node).params or ()))]

    def node_params(self, node: int, layout: Layout | None = None) -> KernelParams:
        """The address of each operand on the card as one argument; outputs come last.

        A host scalar is none: the launch itself carries its value.
        """
        found = self._node(node)
        tensors = [slot.tensor for slot in found.slots()]
        addresses = [each.data_ptr() for each in tensors if not each.numel() or each.data_ptr() in self._sim.arena]
        params = tuple(address.to_bytes(8, "little") for address in addresses)
        return KernelParams((1, 1, 1), (1, 1, 1), 0, id(found.run), params)

    def edges(self, graph: int) -> list[tuple[int, int]]:
        return [(parent.handle, node.handle) for node in self._graph(graph).nodes for parent in node.parents]

    # ---- graphs made node by node -----------------------------------------------------------------------

    def create_graph(self) -> int:
        graph = Graph(is_built=True)
        self._device.handles.graphs[graph.handle] = graph
        self._made[graph.handle] = graph
        return graph.handle

    def add_child(self, graph: int, child: int, after: Sequence[int] = ()) -> int:
        node = ChildNode(self._graph(child), tuple(self._node(before) for before in after))
        self._graph(graph).nodes.append(node)
        self._device.handles.nodes[node.handle] = node
        return node.handle

    def destroy_graph(self, graph: int) -> None:
        if self._made.pop(graph, None) is None:
            raise self._error("hipGraphDestroy", codes.INVALID_VALUE)

    def instantiate(self, graph: int, flags: int = 0) -> int:
        with self._answering("hipGraphInstantiateWithFlags"):
            made = self._device.instantiate(self._graph(graph))
        self._made[made.handle] = made
        return made.handle

    def destroy_exec(self, graph_exec: int) -> None:
        if self._made.pop(graph_exec, None) is None:
            raise self._error("hipGraphExecDestroy", codes.INVALID_VALUE)

    # ---- work -------------------------------------------------------------------------------------------

    def launch(self, graph_exec: int, stream: int) -> None:
        made = self._exec(graph_exec)
        with self._answering("hipGraphLaunch"):
            self._device.launch(made, self._stream(stream))

    def synchronize_stream(self, stream: int) -> None:
        with self._answering("hipStreamSynchronize"), self.relaxed():
            self._device.synchronize_stream(self._stream(stream))

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        before, self._device.threads.mode = self._device.threads.mode, "relaxed"
        try:
            yield
        finally:
            self._device.threads.mode = before

    def copy_kernel(self, arch: str) -> SimulatedCopyKernel:  # type: ignore[override]
        with self._answering("hipModuleLoadData"):
            self._device.check_below("load")
        return SimulatedCopyKernel(self)

    def copy_node(  # type: ignore[override]
        self, kernel: SimulatedCopyKernel, graph: int, parts: Sequence[tuple[int, int, int]], after: Sequence[int]
    ) -> SimulatedCopyNode:
        node = SimulatedCopyNode(self, parts, tuple(self._node(before) for before in after))
        self._graph(graph).nodes.append(node)
        self._device.handles.nodes[node.handle] = node
        return node

    def child_graph(self, node: int) -> int:
        found = self._node(node)
        assert isinstance(found, ChildNode)
        self._device.handles.graphs[found.inner.handle] = found.inner
        return found.inner.handle

    def launcher(self, graph_exec: int, stream: ctypes.c_void_p) -> Callable[[], int]:
        made = self._exec(graph_exec)

        def launch() -> int:
            try:
                self._device.check_below("joined")
                self._device.launch(made, self._stream(stream.value or 0))
            except CallRefused as refused:
                return refused.code
            return 0

        return launch

    def begin_capture(self, stream: int, mode: int = MODE_THREAD_LOCAL) -> None:
        with self._answering("hipStreamBeginCapture"):
            self._device.begin_capture(self._stream(stream), MODES[mode])

    def abandon_capture(self, stream: int, *, end_was_refused: bool = False) -> None:
        with self._answering("hipStreamEndCapture"):
            self._device.abandon_capture(self._stream(stream))

    # ---- handles ----------------------------------------------------------------------------------------

    def _stream(self, handle: int) -> Stream:
        return self._known(self._device.by_handle, handle, "hipStreamGetCaptureInfo", 400)

    def _graph(self, handle: int) -> Graph:
        return self._known(self._device.handles.graphs, handle, "hipGraphGetNodes")

    def _exec(self, handle: int) -> GraphExec:
        return self._known(self._device.handles.execs, handle, "hipGraphLaunch")

    def _node(self, handle: int) -> RecordedNode:
        return self._known(self._device.handles.nodes, handle, "hipGraphNodeGetType")

    def _known(self, table: Mapping[int, _T], handle: int, api: str, code: int = codes.INVALID_VALUE) -> _T:
        found = table.get(handle)
        if found is None:
            raise self._error(api, code)
        return found

    @contextmanager
    def _answering(self, api: str) -> Iterator[None]:
        """Make a refusal in this block the error of a call of ``api``."""
        try:
            yield
        except CallRefused as refused:
            raise self._error(api, refused.code) from None

    def _belongs(self, api: str, made: GraphExec, node: RecordedNode) -> None:
        # Both runtimes refuse nodes of other kinds (HIP 6.4.3 and 7.15: status 1).
        if node not in made.nodes or node.kind not in (NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.MEMSET):
            raise self._error(api, codes.INVALID_VALUE)

    def _error(self, api: str, code: int) -> DriverError:
        platform = self._sim.profile.platform
        return DriverError(
            "driver_call_failed",
            api=api if platform == "hip" else api.replace("hip", "cuda", 1),
            status=codes.status_name(code, platform),
            number=code,
            detail=codes.status_text(code),
        )


# -- its copying kernel ----------------------------------------------------------------------------------------


class SimulatedCopyNode(RecordedNode):
    """The copy kernel in a graph; changed words take effect only when applied."""

    def __init__(
        self, driver: SimDriver, parts: Sequence[tuple[int, int, int]], parents: tuple[RecordedNode, ...]
    ) -> None:
        super().__init__(NodeKind.KERNEL, "gfxgraph_copy", _run_copies, parents=parents)
        self._driver = driver
        self._made = SimulatedCopies(driver, parts, 0)
        self.words = self._made.words
        self._applied = list(self.words)

    def apply(self) -> int:
        try:
            self._driver._device.check_below("exec_params")
        except CallRefused as refused:
            if refused.code == codes.INVALID_CONTEXT:
                raise SystemError("a node is changed in a thread without a context: CUDA dies of that") from None
            return refused.code
        self._applied = list(self.words)
        return 0

    @property
    def node(self) -> int:
        return self.handle

    def belongs_to(self, driver: SimDriver, graph_exec: int) -> None:
        """A node has one exec here, as one that ``JoinedExec`` adds has."""

    def copies(self) -> None:
        if not self._made.copy(self._applied):
            raise IndexError("the copying kernel leaves the card")


def _run_copies(node: RecordedNode, _: object) -> None:
    assert isinstance(node, SimulatedCopyNode)
    node.copies()


class SimulatedCopyKernel:
    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver

    def prepare(self, parts: Sequence[tuple[int, int, int]], stream: int) -> SimulatedCopies:
        return SimulatedCopies(self._driver, parts, stream)


class SimulatedCopies:
    """A launch of the copy kernel; launching it in a capture is not modelled and is refused."""

    def __init__(self, driver: SimDriver, parts: Sequence[tuple[int, int, int]], stream: int) -> None:
        self._driver, self._stream = driver, stream
        self.words = Arguments(parts).words
        self._n = len(parts)

    def on(self, stream: int) -> None:
        self._stream = stream

    def launch(self) -> int:
        driver = self._driver
        try:
            driver._device.check_below("copy_kernel")
        except CallRefused as refused:
            return refused.code
        if driver._stream(self._stream).capture is not None:
            return codes.INVALID_VALUE
        return 0 if self.copy(self.words) else codes.INVALID_VALUE

    def copy(self, words: Any) -> bool:
        """Do the copies in ``words``; False if an address is not on the card."""
        arena = self._driver._sim.arena
        for i in range(self._n):
            to, source, nbytes = words[MOST + i], words[i], words[2 * MOST + i]
            if to not in arena or source not in arena:
                return False
            ctypes.memmove(to, source, nbytes)
        return True
