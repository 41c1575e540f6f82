"""A while loop as one launch: captured steps in a conditional node, each followed by a kernel that decides.

    WHILE ── step A ── decide ── IF ── step B ── decide          until a step's flag is false, or none is left

Problem: steps that read each other's output in place must run in turn, and the host would have to read a flag after
each. Idea: the loop's body is the first of them, and each further one is in an IF node inside the one before. The
kernel after a step sets the condition of the loop and that of the next IF, and writes what the host reads at the end.

CUDA alone has conditional nodes (12.3; one inside another from 12.4). A graph with one has one exec, and is nobody's
child. goes_on.ptx begins with its source, compiled by NVRTC 12.4 for compute_75; the driver itself provides the
function ``cudaGraphSetConditional`` when it links the kernel.

Source: cuGraphConditionalHandleCreate, CUDA_CONDITIONAL_NODE_PARAMS (CUDA 12.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, addressof, byref, c_ulonglong, c_void_p, cast
from pathlib import Path
from typing import TYPE_CHECKING

from gfxgraph.driver.joined import OwnedExec, Step
from gfxgraph.driver.layouts import (
    CONDITION_IF,
    CONDITION_WHILE,
    CONDITIONAL_NODE,
    CudaConditionalNodeParams,
    CudaKernelNodeParams,
)

if TYPE_CHECKING:
    from gfxgraph.driver.graphs import GraphDriver

KERNEL = b"gfxgraph_goes_on"
_ASSIGN_DEFAULT = 1
_functions: dict[int, int] = {}
"""The kernel, by context."""


class WhileExec(OwnedExec):
    """The exec; `GraphDriver.while_loop` says of what."""

    def __init__(self, driver: GraphDriver, steps: Sequence[Step], left: int, stream: int) -> None:
        super().__init__(driver, stream, lambda: self._build(steps, left))

    def _build(self, steps: Sequence[Step], left: int) -> None:
        table, context = self._driver.table, c_void_p()
        table.call("context", byref(context))
        self._context, self._left = context.value or 0, left
        if self._context not in _functions:
            module, function = c_void_p(), c_void_p()
            table.call("load_module", byref(module), Path(__file__).with_name("goes_on.ptx").read_bytes())
            table.call("module_function", byref(function), module, KERNEL)
            _functions[self._context] = function.value or 0
        loop = self._condition(self._graph, holds=True)
        body = self._conditional(self._graph, loop, CONDITION_WHILE, ())
        for i, step in enumerate(steps):
            following = self._condition(body) if i + 1 < len(steps) else 0
            decided = self._step(body, step, loop, following)
            if following:
                body = self._conditional(body, following, CONDITION_IF, (decided,))
        self._exec = self._driver.instantiate(self._graph)

    def _condition(self, graph: int, *, holds: bool = False) -> int:
        """A condition of a node in ``graph``; one that ``holds`` does so whenever the graph is launched."""
        handle = c_ulonglong()
        how = (1, _ASSIGN_DEFAULT) if holds else (0, 0)
        self._driver.table.call("condition", byref(handle), graph, self._context, *how)
        return handle.value

    def _conditional(self, graph: int, handle: int, kind: int, after: Sequence[int]) -> int:
        """The body of a new conditional node."""
        node, before = c_void_p(), (c_void_p * len(after))(*after)
        about = CudaConditionalNodeParams(CONDITIONAL_NODE, (0, 0, 0), handle, kind, 1, None, self._context)
        self._driver.table.call("add_node", byref(node), graph, before if after else None, len(after), byref(about))
        return cast(about.bodies, POINTER(c_void_p))[0] or 0

    def _step(self, graph: int, step: Step, loop: int, following: int) -> int:
        """Add a step to ``graph``; the node that decides whether another follows."""
        captured, flag = step
        child = self._driver.add_child(graph, captured)
        values = (c_ulonglong * 4)(loop, following, flag, self._left)
        params = (c_void_p * 4)(*[addressof(values) + 8 * i for i in range(4)])
        one = (1, 1, 1)
        raw = CudaKernelNodeParams(
            _functions[self._context], one, one, 0, addressof(params), None, None, self._context
        )
        node = c_void_p()
        self._driver.table.call("add_kernel", byref(node), graph, (c_void_p * 1)(child), 1, byref(raw))
        return node.value or 0
