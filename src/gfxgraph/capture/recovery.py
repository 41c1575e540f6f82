"""Leaving the process clean after torch's own capture code has thrown half-way.

Problem: when a capture dies, torch's ``capture_end`` throws before it has taken the allocator, the
pinned-memory allocator and the random generators out of capture: the pool can never be captured
into again ("already recording to mempool_id"), every random operation fails, the pool's memory is
not given back, and with another ``MemPool`` alive the process aborts at exit.

Idea: end the dead capture through the driver, begin an empty one on the same stream in its place,
and let torch's own ``capture_end`` succeed on that one. All of its cleaning then happens, in every
version, without calling any of it by hand. On HIP 6.4 the same begin-and-end also frees a stream
that stays invalidated.

Source: torch 2.9.1 to 2.15 CUDAGraph sources; measured on an H200 (tests/gpu/test_recovery.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from gfxgraph.driver.base import GraphDriver
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus

# capture_end's answer where capture_begin refused its arguments before it had touched anything.
_NEVER_BEGAN = "Capture must end on the same stream it began on."


def heal_capture(
    base: Any,
    graph: Any,
    stream: Any,
    driver: GraphDriver | None,
    *,
    side_streams: Iterable[Any] = (),
    end_was_refused: bool = False,
) -> bool:
    """End a dead or half-begun capture of ``graph`` so that nothing of it is left.

    Args:
        side_streams: forked from ``stream`` inside the capture; HIP leaves them as dead as it.
        end_was_refused: torch's capture_end asked the runtime to end it, and was refused.

    Returns:
        True when torch's own cleaning ran to its end.
    """
    if driver is None:
        return False
    handle = stream.cuda_stream
    try:
        if driver.capture_info(handle).status is not CaptureStatus.NONE:
            driver.abandon_capture(handle, end_was_refused=end_was_refused)
        for side in side_streams:
            if driver.capture_info(side.cuda_stream).status is not CaptureStatus.NONE:
                driver.abandon_capture(side.cuda_stream, end_was_refused=True)
        driver.begin_capture(handle)
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "the graph is empty": it is meant to be
            base.capture_end(graph)
    except (DriverError, RuntimeError, UnicodeDecodeError) as error:
        with suppress(DriverError):  # the empty capture is ours to take away
            if driver.capture_info(handle).status is not CaptureStatus.NONE:
                driver.abandon_capture(handle)
        if _NEVER_BEGAN in str(error):
            return True
        if isinstance(error, UnicodeDecodeError):
            # An interrupt inside capture_begin: torch has begun with the generators and knows no device yet, and
            # names it in this error by a character that is no text (seen on an H200, torch 2.11).
            return False
        # As text: a log record would keep the error's frames, and the graph with them.
        process.log.error("could not clean up after a failed capture: %s", str(error))
        return False
    return True


def is_lost(stream: Any, driver: GraphDriver | None) -> bool:
    """True for a stream that the runtime will not let out of a dead capture: work sent to it may vanish."""
    return driver is not None and driver.capture_info(stream.cuda_stream).status is not CaptureStatus.NONE


def clean_by_hand(device_index: int, pool: tuple[int, int] | None, generators: Iterable[Any]) -> None:
    """What torch's capture_end would have cleaned, where the stream is lost and it cannot be called.

    Args:
        pool: the capture's pool, None where nothing was allocated in it.
    """
    if pool is not None:
        # torch from 2.12 on has cleaned this itself, and says that nothing is being recorded.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device_index, pool)
            torch._C._cuda_releasePool(device_index, pool)
    for generator in generators:
        # The same seed and offset in a state that no capture has touched.
        generator.graphsafe_set_state(generator.clone_state())
    if torch.cuda.graph.default_capture_stream is not None and is_lost(
        torch.cuda.graph.default_capture_stream, process.require().driver
    ):
        torch.cuda.graph.default_capture_stream = None  # the next torch.cuda.graph() makes another
