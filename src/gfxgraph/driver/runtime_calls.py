"""The calls that the runtime makes below torch, by whichever runtime is mapped in the process.

One implementation stands on ``libamdhip64`` (hip.py), one on ``libcuda`` (cuda.py), one in the
simulator. Handles are plain integers. Every method may raise ``gfxgraph.errors.DriverError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gfxgraph.driver.params import KernelParams, Layout
from gfxgraph.types import CaptureInfo, NodeKind


class Copies(Protocol):
    """A launch that copies some stretches of memory: addresses are written into ``words`` before it."""

    words: Any
    """``words[i]``: where part ``i`` is copied from; ``words[MOST + i]`` (driver.small_copies): where to."""
    launch: Callable[[], int]
    """Makes the copies; its status is 0 or a refusal."""

    def on(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        ...


class CopyKernel(Protocol):
    """A kernel that copies, loaded on one device."""

    def prepare(self, parts: Sequence[tuple[int, int, int]], stream: int) -> Copies:
        """A launch of copies (to, from, nbytes), none of them empty."""
        ...


class CopyNode(Protocol):
    """The copies before or after a joined graph: write addresses into ``words``, then ``apply``."""

    words: Any
    apply: Callable[[], int]


class Joined(Protocol):
    """A graph with copies before and after it, as one exec of ours; one stream and one thread at a time."""

    into: CopyNode | None
    back: CopyNode | None
    launch: Callable[[], int]

    def on(self, stream: int) -> None:
        """Launch on ``stream`` from now on."""
        ...

    def close(self) -> None:
        """Destroy the exec."""
        ...


class GraphDriver(Protocol):
    """Graph calls of one GPU runtime. Missing features are named in ``missing``, never half done."""

    name: str  # "hip", "cuda" or "sim"
    version: tuple[int, ...]  # hipRuntimeGetVersion / cuDriverGetVersion, split
    missing: frozenset[str]  # method names that this runtime cannot serve

    def capture_info(self, stream: int) -> CaptureInfo:
        """State of ``stream``'s capture; never raises because a capture is invalidated."""
        ...

    def frontier_reader(self, stream: int) -> Callable[[], int | tuple[int, ...]]:
        """Return a prepared call giving the last node (or nodes) of ``stream``'s capture, 0 before the first.

        Constant time on graphs of any length, where counting nodes is linear on some runtimes
        (0.7 us against 2.8 us at 800 nodes, measured on an H200, CUDA 13.0).
        """
        ...

    def nodes(self, graph: int) -> Sequence[int]: ...

    def node_kind(self, node: int) -> NodeKind: ...

    def kernel_name(self, node: int) -> str:
        """Name of a kernel node's function, mangled as the runtime has it; '' where it does not say."""
        ...

    def set_node_enabled(self, graph_exec: int, node: int, enabled: bool) -> None: ...

    def node_enabled(self, graph_exec: int, node: int) -> bool: ...

    def node_params(self, node: int, layout: Layout | None = None) -> KernelParams:
        """How a kernel node launches its kernel; ``layout`` where the runtime does not tell it."""
        ...

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """(from, to) pairs of ``graph``."""
        ...

    def create_graph(self) -> int: ...

    def add_child(self, graph: int, child: int, after: Sequence[int] = ()) -> int:
        """Add a copy of ``child`` to ``graph`` as one node that runs after the nodes ``after``."""
        ...

    def destroy_graph(self, graph: int) -> None: ...

    def instantiate(self, graph: int, flags: int = 0) -> int: ...

    def destroy_exec(self, graph_exec: int) -> None: ...

    def launch(self, graph_exec: int, stream: int) -> None: ...

    def synchronize_stream(self, stream: int) -> None:
        """Wait for what was sent to ``stream``; captures of other threads go on."""
        ...

    def relaxed(self) -> AbstractContextManager[Any]:
        """Calls of this thread inside are not refused for a capture of another stream, and end none."""
        ...

    def device_copier(self) -> Callable[[int, int, int, int], int]:
        """Return the call ``copy(to, from, nbytes, stream)`` within one device; its status is 0 or a refusal."""
        ...

    def copy_kernel(self, arch: str) -> CopyKernel:
        """Load a kernel that makes several small copies in one launch on the current device, ``arch`` by name."""
        ...

    def add_copies(
        self, kernel: CopyKernel, graph: int, parts: Sequence[tuple[int, int, int]], after: Sequence[int]
    ) -> int:
        """Add copies (to, from, nbytes) to ``graph`` as one node that runs after the nodes ``after``."""
        ...

    def joined(
        self,
        kernel: CopyKernel,
        graph: int,
        into: Sequence[tuple[int, int, int]],
        back: Sequence[tuple[int, int, int]],
        stream: int,
    ) -> Joined:
        """An exec of a copy of ``graph`` with the copies (to, from, nbytes) of ``into`` before it, ``back`` after."""
        ...

    def begin_capture(self, stream: int) -> None:
        """Begin a bare capture on ``stream``, without an allocator or generators attached to it."""
        ...

    def abandon_capture(self, stream: int, *, end_was_refused: bool = False) -> None:
        """Discard a capture, so that ``stream`` can be used again.

        Args:
            stream: where the capture began.
            end_was_refused: EndCapture was called on this capture before, by torch for one, and
                failed. HIP must not be asked to end it again, and does not tell.

        The handle that a refused end returns is garbage and is never touched.
        """
        ...
