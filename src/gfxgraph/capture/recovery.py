"""Cleans up the process after torch's own capture code has thrown half-way.

Problem: when a capture dies, torch's ``capture_end`` throws before it has taken the allocator, the
pinned-memory allocator and the random generators out of capture: the pool can never be captured
into again ("already recording to mempool_id"), every random operation fails, the pool's memory is
not freed, and with another ``MemPool`` alive the process aborts at exit.

Idea: end the dead capture through the driver, begin an empty one on the same stream in its place,
and let torch's own ``capture_end`` succeed on that one. All of torch's clean-up then runs, in every
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

from gfxgraph.driver.runtime_calls import GraphDriver
from gfxgraph.errors import DriverError
from gfxgraph.process import process
from gfxgraph.types import CaptureStatus

# capture_end's error if capture_begin refused its arguments before it changed anything.
_NEVER_BEGAN = "Capture must end on the same stream it began on."
# Its error if it has ended the capture before, and was interrupted since.
_HAD_ENDED = "endAllocatePool: not currently recording"


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
        side_streams: forked from ``stream`` inside the capture; HIP leaves them just as dead.
        end_was_refused: torch's capture_end asked the runtime to end the capture, and was refused.

    Returns:
        True if torch's own clean-up ran to its end.
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
            warnings.simplefilter("ignore")  # "the graph is empty": intended
            base.capture_end(graph)
    except (DriverError, RuntimeError, UnicodeDecodeError) as error:
        with suppress(DriverError):  # the empty capture is ours to end
            if driver.capture_info(handle).status is not CaptureStatus.NONE:
                driver.abandon_capture(handle)
        if _NEVER_BEGAN in str(error):
            return True
        if isinstance(error, UnicodeDecodeError):
            # An interrupt inside capture_begin: torch has started with the generators but has not set the device yet,
            # and
            # prints it in this error as an invalid character (seen on an H200, torch 2.11).
            return False
        if _HAD_ENDED in str(error):
            return False  # of what it does, only the generators are left
        # As text: a log record would keep the error's frames, and the graph with them.
        process.log.error("could not clean up after a failed capture: %s", str(error))
        return False
    return True


def is_lost(stream: Any, driver: GraphDriver | None) -> bool:
    """True if the runtime will not release the stream from a dead capture: work sent to it may vanish."""
    return driver is not None and driver.capture_info(stream.cuda_stream).status is not CaptureStatus.NONE


def clean_by_hand(device_index: int, pool: tuple[int, int] | None, generators: Iterable[Any]) -> None:
    """Do the clean-up of torch's capture_end by hand, when the stream is unusable and it cannot be called.

    Args:
        pool: the capture's pool, None if nothing was allocated in it.
    """
    if pool is not None:
        # torch from 2.12 on has already done this, and complains that nothing is being recorded.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device_index, pool)
            torch._C._cuda_releasePool(device_index, pool)
    for generator in generators:
        # A new state with the same seed and offset, which no capture has touched.
        generator.graphsafe_set_state(generator.clone_state())
    if torch.cuda.graph.default_capture_stream is not None and is_lost(
        torch.cuda.graph.default_capture_stream, process.require().driver
    ):
        torch.cuda.graph.default_capture_stream = None  # the next torch.cuda.graph() makes another
