"""The copy kernel of the simulated driver, launched separately and as nodes of a joined graph.

Enters: addresses on the card.
Stays out: a captured launch of it, which is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gfxgraph.driver.small_copies import MOST, Arguments
from gfxgraph.types import NodeKind
from gfxgraph_simulator import codes
from gfxgraph_simulator.graph_nodes import RecordedNode
from gfxgraph_simulator.runtime import CallRefused

if TYPE_CHECKING:
    from gfxgraph_simulator.driver import SimDriver


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
