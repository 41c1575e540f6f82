"""A call's small copies in one launch: which tensors, by which kernel, and the fallback.

The kernel (driver/small_copies.py) is loaded once per device, and trusted once it has correctly copied ranges of odd
lengths and alignments. If it is not available, or a launch is refused, torch copies. Both are
counted, and reported the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gfxgraph.callables.arena import arena_of
from gfxgraph.callables.inputs import copy_all, is_one_copy
from gfxgraph.driver.runtime_calls import Copies, CopyKernel
from gfxgraph.errors import DriverError, first_line

if TYPE_CHECKING:
    from gfxgraph.process.process import Process

LARGEST_NBYTES = 1 << 20
"""Larger tensors are copied by the driver or by torch: for them only device time matters."""


class CopyLaunches:
    """The prepared launches of one fast path, all on one stream.

    Args:
        stream: the stream of the first calls.
    """

    __slots__ = ("_copies", "_state", "stream")

    def __init__(self, state: Process, stream: int) -> None:
        self._state = state
        self._copies: list[Copies] = []
        self.stream = stream

    def prepare(self, kernel: CopyKernel, parts: Sequence[tuple[int, int, int]]) -> Copies:
        made = kernel.prepare(parts, self.stream)
        self._copies.append(made)
        return made

    @property
    def n(self) -> int:
        return len(self._copies)

    def to(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        for copies in self._copies:
            copies.on(stream)
        self.stream = stream

    def refused(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        """A launch was refused: let torch copy, which raises if it is refused too."""
        why = "a launch of the copying kernel was refused; torch copied"
        self._state.report("copy_refused", why, level=logging.INFO)
        copy_all(targets, sources)


def takes(target: Tensor, source: Tensor) -> bool:
    """True if the kernel may copy ``source`` to ``target``."""
    nbytes = target.numel() * target.element_size()
    return 0 < nbytes <= LARGEST_NBYTES and is_one_copy(target, source)


def part(target: Tensor, source: Tensor) -> tuple[int, int, int]:
    """The kernel's arguments: destination, source, number of bytes."""
    return target.data_ptr(), source.data_ptr(), target.numel() * target.element_size()


def copy_kernel(state: Process, device_index: int) -> CopyKernel | None:
    """The kernel of a device, loaded and tested at the first call; None if it is not available."""
    if device_index not in state.copy_kernels:
        state.copy_kernels[device_index] = _load(state, device_index)
    return state.copy_kernels[device_index]


def what_said(error: Exception) -> str:
    """One line that says why the driver refused something."""
    if isinstance(error, DriverError):
        for shown in ("{api} returned {status}", "{said}", "{api} is missing"):
            try:
                return shown.format(**error.fields)
            except KeyError:
                continue
    return first_line(error)


def _load(state: Process, device_index: int) -> CopyKernel | None:
    driver = state.driver
    if driver is None or "copy_kernel" in driver.missing:
        state.why_not_joined = "the runtime cannot load a kernel"
        return None
    try:
        with torch.cuda.device(device_index):
            arena_of(state, device_index).contexts.give(device_index)
            arch = getattr(torch.cuda.get_device_properties(device_index), "gcnArchName", "")
            kernel = driver.copy_kernel(arch)
            if _copies_right(kernel):
                return kernel
            why = "it did not copy correctly"
    except (DriverError, RuntimeError) as error:
        why = what_said(error)
    state.why_not_joined = f"the copying kernel is not available: {why}"
    state.report("no_copy_kernel", f"small tensors are copied one by one: {why}", level=logging.INFO)
    return None


def _copies_right(kernel: CopyKernel) -> bool:
    """Test lengths and alignments that take every path through the kernel, and the bytes next to the copies."""
    given = torch.arange(251, dtype=torch.uint8, device="cuda").repeat(400)
    spans = [(0, 0, 64), (16, 32, 4096), (4, 8, 20), (1, 3, 7), (5, 5, 70_001)]
    made = [torch.zeros(to + n + 16, dtype=torch.uint8, device="cuda") for _, to, n in spans]
    parts = [(made[i].data_ptr() + to, given.data_ptr() + at, n) for i, (at, to, n) in enumerate(spans)]
    copies = kernel.prepare([(to, 0, n) for to, _, n in parts], torch.cuda.current_stream().cuda_stream)
    for i, (_, source, _) in enumerate(parts):
        copies.words[i] = source
    if copies.launch():
        return False
    wanted = [torch.zeros_like(m) for m in made]
    for want, (at, to, n) in zip(wanted, spans):
        want[to : to + n] = given[at : at + n]
    return all(torch.equal(a, b) for a, b in zip(made, wanted))
