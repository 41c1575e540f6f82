"""A captured graph with copies before and after it, as one graph exec.

    our kernel: the arguments, from wherever they lie ──> the captured graph, a child ──> our kernel: the results

Problem: a copy costs a launch of its own, and a launch costs the CPU more than all of Python around it.
Idea: the copies are nodes of a graph exec of our own; a call tells them new addresses, where those have
changed, and launches once. The captured graph and its own exec stay as they are: whoever validates,
guards or records replays goes on using those.

Invariants:
  - a change of a node is for later launches only; those that are enqueued keep their addresses. CUDA's
    documentation says so and AMD's does not, and AMD's runtime keeps the memory of every change;
  - the exec runs in the captured graph's memory, and must not outlive it;
  - one thread at a time: its owner's lock.

Source: cuGraphExecKernelNodeSetParams (CUDA 13.0); measured (decision 0100).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, byref, c_void_p
from typing import TYPE_CHECKING

from gfxgraph.driver.small_copies import THREADS, Arguments, CopyKernel, pointer
from gfxgraph.errors import DriverError

if TYPE_CHECKING:
    from gfxgraph.driver.graphs import GraphDriver

Parts = Sequence[tuple[int, int, int]]
Step = tuple[int, int]
USE_NODE_PRIORITY = 8  # as torch instantiates; its other flag is about memory nodes, which no child may have


class KernelCopyNode:
    """One launch of the copying kernel inside a graph.

    ``words`` are as `Arguments` has them; ``apply()`` makes them count from the next launch on and returns
    a status, 0 or a refusal, after which it is undefined what the node copies.
    """

    def __init__(
        self, driver: GraphDriver, kernel: CopyKernel, graph: int, parts: Parts, after: Sequence[int]
    ) -> None:
        self._arguments = made = Arguments(parts)
        self.words = made.words
        self._raw = raw = driver.node_struct()
        raw.func, raw.grid, raw.block = kernel.function, made.grid, (THREADS, 1, 1)
        raw.params = addressof(made.pointers)
        node = c_void_p()
        before = (c_void_p * len(after))(*after) if after else None
        driver.table.call("add_kernel", byref(node), graph, before, len(after), byref(raw))
        self.node = node.value or 0
        self.apply: Callable[[], int]

    def belongs_to(self, driver: GraphDriver, graph_exec: int) -> None:
        """Bind ``apply`` to this exec."""
        call = driver.table.undeclared("exec_kernel_params")
        self.apply = functools.partial(call, pointer(graph_exec), pointer(self.node), byref(self._raw))


class OwnedExec:
    """A graph built node by node and its one exec, on one stream at a time.

    ``launch()`` returns a status; 0 where it was accepted.
    """

    def __init__(self, driver: GraphDriver, stream: int, build: Callable[[], None]) -> None:
        """Have ``build`` fill the graph and instantiate it.

        Raises:
            DriverError: `driver_call_failed`, as for a graph that cannot be a child.
        """
        self._driver, self._pid = driver, os.getpid()
        self._graph = self._exec = 0
        self._graph = driver.create_graph()
        try:
            with driver.relaxed():
                build()
        except DriverError:
            self.close()
            raise
        self._stream = c_void_p(stream)
        self.launch: Callable[[], int] = driver.launcher(self._exec, self._stream)

    def on(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        self._stream.value = stream

    def close(self) -> None:
        """Destroy the exec; launches of it that still run are let finish."""
        graph, graph_exec = self._graph, self._exec
        self._graph = self._exec = 0
        if os.getpid() != self._pid or sys.is_finalizing():
            return  # a forked child has no context to destroy anything in; a process that ends takes all with it
        with self._driver.relaxed():
            # A refusal here cannot be reported: the runtime may be unloaded already.
            for handle, destroy in ((graph_exec, self._driver.destroy_exec), (graph, self._driver.destroy_graph)):
                if handle:
                    with suppress(DriverError):
                        destroy(handle)

    def __del__(self) -> None:
        if os and (self._graph or self._exec):  # at the interpreter's end modules are gone
            self.close()


class JoinedExec(OwnedExec):
    """A captured graph between copies.

    Args:
        driver: a `GraphDriver` with ``copy_node``, ``child_graph`` and ``launcher``.
        kernel: from its ``copy_kernel``.
        graph: what was captured; a copy of it is taken.
        into: (to, from, nbytes) of what is copied before it; may be empty.
        back: of what is copied after it.
    """

    def __init__(
        self, driver: GraphDriver, kernel: CopyKernel, graph: int, into: Parts, back: Parts, stream: int
    ) -> None:
        super().__init__(driver, stream, lambda: self._build(kernel, graph, into, back))

    def _build(self, kernel: CopyKernel, graph: int, into: Parts, back: Parts) -> None:
        driver = self._driver
        self.into = driver.copy_node(kernel, self._graph, into, ()) if into else None
        child = driver.add_child(self._graph, graph, [self.into.node] if self.into else [])
        self.back = driver.copy_node(kernel, self._graph, back, [child]) if back else None
        found, wanted = _shape(driver, driver.child_graph(child)), _shape(driver, graph)
        if found != wanted:
            raise DriverError("child_graph_incomplete", found=found, wanted=wanted)
        self._exec = driver.instantiate(self._graph, USE_NODE_PRIORITY)
        for node in (self.into, self.back):
            if node is not None:
                node.belongs_to(driver, self._exec)


def _shape(driver: GraphDriver, graph: int) -> tuple[int, int]:
    return len(driver.nodes(graph)), len(driver.edges(graph))
