"""The steps of a loop as one launch, where the driver has conditional nodes (driver/while_loop.py).

The driver launches it, bypassing torch, so it is made only of graphs whose replay does nothing besides a launch, as a
joined graph is (joined_launch.py); that is known once each was replayed alone. It is trusted on a device once a loop
of ours has run that way and ended where it should. What the runtime refuses is launched step by step, which is
counted, and reported once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gfxgraph.callables.arena import Arena
from gfxgraph.callables.joined_launch import MOST_NODES, copy_kernel, hooks_of, why_not_graph
from gfxgraph.capture.function_capture import kind_and_line
from gfxgraph.capture.undo import is_interrupt

if TYPE_CHECKING:
    from gfxgraph.callables.captured import Instance
    from gfxgraph.driver.graphs import GraphDriver
    from gfxgraph.driver.joined import OwnedExec
    from gfxgraph.driver.small_copies import CopyKernel

MOST_STEPS = 1 << 30


class DeviceLoop:
    """Steps that follow each other in a ring.

    Args:
        steps: of one callable; the last is followed by the first.
        flags: the condition that each leaves: one element, device.
    """

    def __init__(self, arena: Arena, name: str, steps: Sequence[Instance], flags: Sequence[Tensor]) -> None:
        self._arena, self._name, self._steps, self._flags = arena, name, steps, flags
        self._exec: OwnedExec | None = None
        self._left: Tensor
        driver = arena.state.driver
        self.why_not = "" if driver is not None and driver.has_while_loop else "the driver has no conditional nodes"
        """Why they are launched one by one."""
        if any(flag.dtype is not torch.bool for flag in flags):
            self.why_not = "its condition is not a bool"

    def __call__(self, most: int) -> tuple[int, bool]:
        """Make steps, the first of them first, until the condition fails or there were ``most``.

        Returns:
            How many there were, 0 if nothing was launched; and the condition after them.
        """
        # A graph that has no replays left has to be replayed by itself: it is timed, or compared.
        if self.why_not or any(each.graph._left <= 0 or any(hooks_of(each.graph)) for each in self._steps):
            return 0, True
        if any(getattr(getattr(each.graph, "_retained", None), "sync_before_fire", False) for each in self._steps):
            return 0, True
        stream = torch.cuda.current_stream(self._arena.device_index).cuda_stream
        if self._exec is None:
            try:
                self._make(stream)
            except RuntimeError as error:  # a DriverError is one
                if is_interrupt(error):
                    raise
                self._stop(kind_and_line(error))
        if self._exec is None:
            return 0, True
        self._exec.on(stream)
        most = min(most, MOST_STEPS)
        self._left.fill_(2 * most)
        if self._exec.launch():
            self._stop("a launch was refused")
            return 0, True
        left = int(self._left)
        n = most - (left >> 1)
        for i, each in enumerate(self._steps):
            each.graph._left -= (n - i + len(self._steps) - 1) // len(self._steps)
        return n, bool(left & 1)

    def _make(self, stream: int) -> None:
        """Build the exec, unless something speaks against it."""
        state, device = self._arena.state, self._arena.device_index
        why = next((why for each in self._steps if (why := why_not_graph(state, each.graph, 0, MOST_NODES))), "")
        if any(each.draws is not False for each in self._steps):
            why = "its steps draw random numbers, which torch's own replay provides"
        driver, kernel = state.driver, copy_kernel(state, device)
        if driver is None or kernel is None:
            why = state.why_not_joined
        elif not why and not _runs_right(driver, kernel, device):
            why = "a loop of ours did not end where it should"
        if why or driver is None:
            return self._stop(why)
        with torch.inference_mode(False):
            self._left = torch.zeros((), dtype=torch.int32, device=f"cuda:{device}")
        raw = state.base.raw_cuda_graph
        steps = [(int(raw(each.graph)), flag.data_ptr()) for each, flag in zip(self._steps, self._flags)]
        self._exec = driver.while_loop(steps, self._left.data_ptr(), stream)

    def _stop(self, why: str) -> None:
        self.why_not, self._exec = why, None
        self._arena.state.report(
            "not_joined", f"a loop is launched step by step: {why}", self._name, level=logging.INFO
        )


@functools.cache
def _runs_right(driver: GraphDriver, kernel: CopyKernel, device: int) -> bool:
    """Run a loop of two steps that hand a row of flags to and fro, each without the first."""
    with torch.cuda.device(device), torch.inference_mode(False):
        rows = [torch.tensor([1] * 5 + [0] * 11, dtype=torch.uint8, device="cuda") for _ in range(2)]
        left, steps = torch.tensor(2 * 9, dtype=torch.int32, device="cuda"), []
        for here, there in (rows, rows[::-1]):
            graph = driver.create_graph()
            driver.add_copies(kernel, graph, [(there.data_ptr(), here.data_ptr() + 1, 15)], [])
            steps.append((graph, there.data_ptr()))
        try:
            loop = driver.while_loop(steps, left.data_ptr(), torch.cuda.current_stream().cuda_stream)
        finally:
            for graph, _ in steps:
                driver.destroy_graph(graph)
        return not loop.launch() and int(left) == 2 * (9 - 5)
