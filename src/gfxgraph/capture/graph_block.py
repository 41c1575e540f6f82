"""``with torch.cuda.graph(...)``: clean up when an error or an interrupt leaves the block.

Problem: up to torch 2.14 an error in ``capture_begin`` or ``capture_end`` leaves the capture stream current. And
an interrupt may strike before the first line of ``__exit__``: then nothing ends the capture, and everything that the
program does afterwards goes into it.

Idea: the context manager holds a watch, which does nothing if the block is entered and left as usual. If the manager
is dropped without having been left, which happens once the interrupt has been handled, the watch ends the capture.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import NoneType
from typing import Any

import torch

from gfxgraph.capture.half_entered import ENDS, end_half_entered
from gfxgraph.capture.undo import ThreadState
from gfxgraph.process import process


class _Watch:
    """Ends the capture of one block that was never left."""

    _is_over = True

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._around = ThreadState()
        self._thread = threading.get_ident()
        self._is_over = False

    def close(self) -> None:
        """End the block's capture and any begun inside it, innermost first, and restore the thread's state."""
        self.leave()
        self._around.put_back()

    def leave(self) -> None:
        self._is_over = True
        self._graph = None

    def __del__(self) -> None:
        if self._is_over or self._thread != threading.get_ident() or sys.is_finalizing():
            return
        if getattr(self._graph, "_session", None) in process.sessions():  # otherwise an outer block has ended it
            self.close()


def enter_of_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``torch.cuda.graph.__enter__`` so that the block is watched."""

    def __enter__(self: Any) -> Any:
        watch = _Watch(self.cuda_graph)
        try:
            result = original(self)
            self._gfxgraph_watch = watch
            return result
        except BaseException:
            watch.close()
            raise

    return __enter__


def exit_of_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``torch.cuda.graph.__exit__`` so that the watch is released."""

    def __exit__(self: Any, *args: Any) -> Any:
        try:
            is_broken = end_half_entered(sys.exception()) or _is_interrupt(sys.exception())
            result = original(self, *args)
            watch = self.__dict__.pop("_gfxgraph_watch", None)  # none if the bridge was switched on in between
            if watch is not None:
                watch.close() if is_broken else watch.leave()
            return result
        except BaseException:
            watch = self.__dict__.get("_gfxgraph_watch")
            if watch is not None:
                watch.close()
            raise

    ENDS[__exit__.__code__] = "self", _end_block
    return __exit__


def _is_interrupt(error: BaseException | None) -> bool:
    """What may have struck anywhere, also where torch changes the thread; a generator's end may come much later."""
    return isinstance(error, MemoryError) or not isinstance(error, (Exception, GeneratorExit, NoneType))


def _end_block(block: torch.cuda.graph) -> bool:
    watch = block.__dict__.get("_gfxgraph_watch")
    if watch is None or watch._is_over:
        return False
    watch.close()
    return True
