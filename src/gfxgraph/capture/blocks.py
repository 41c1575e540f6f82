"""``with torch.cuda.graph(...)``: a block that is left by an error or an interrupt leaves nothing open.

Problem: up to torch 2.14 an error in ``capture_begin`` or ``capture_end`` leaves the capture stream current. And
an interrupt may strike before the first line of ``__exit__``: then nothing ends the capture, and all that the
program does afterwards goes into it.

Idea: the context manager holds a watch. Entered and left as usual it does nothing; where the manager is dropped
without having been left, which is when the interrupt has been handled, it ends the capture.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.capture.half_entered import ENDS, end_half_entered
from gfxgraph.capture.holdings import ThreadState
from gfxgraph.process import process


class _Watch:
    """What one block opened."""

    _is_over = True

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._around = ThreadState()
        self._thread = threading.get_ident()
        self._is_over = False

    def close(self) -> None:
        """End the block's capture and those begun inside it, innermost first; leave the thread as it was found."""
        self.leave()
        self._around.put_back()

    def leave(self) -> None:
        self._is_over = True
        self._graph = None

    def __del__(self) -> None:
        if self._is_over or self._thread != threading.get_ident() or sys.is_finalizing():
            return
        if getattr(self._graph, "_session", None) in process.sessions():  # else an outer block has ended it
            self.close()


def enter_of_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.cuda.graph.__enter__`` under watch."""

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
    """``torch.cuda.graph.__exit__`` under watch."""

    def __exit__(self: Any, *args: Any) -> Any:
        try:
            is_broken = end_half_entered(sys.exception())
            result = original(self, *args)
            watch = self.__dict__.pop("_gfxgraph_watch")
            watch.close() if is_broken else watch.leave()
            return result
        except BaseException:
            watch = self.__dict__.get("_gfxgraph_watch")
            if watch is not None:
                watch.close()
            raise

    ENDS[__exit__.__code__] = "self", _end_block
    return __exit__


def _end_block(block: torch.cuda.graph) -> bool:
    watch = block.__dict__.get("_gfxgraph_watch")
    if watch is None or watch._is_over:
        return False
    watch.close()
    return True
