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
from typing import Any

import torch

from gfxgraph.driver.base import GraphDriver
from gfxgraph.errors import DriverError
from gfxgraph.runtime import process
from gfxgraph.types import CaptureStatus


def heal_capture(base: Any, graph: Any, stream: Any, driver: GraphDriver | None) -> bool:
    """End a dead or half-begun capture of ``graph`` so that nothing of it is left.

    Returns:
        True when torch's own cleaning ran to its end.
    """
    if driver is None:
        return False
    handle = stream.cuda_stream
    try:
        if driver.capture_info(handle).status is not CaptureStatus.NONE:
            driver.abandon_capture(handle)
        driver.begin_capture(handle)
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "the graph is empty": it is meant to be
            base.capture_end(graph)
    except (DriverError, RuntimeError) as error:
        process.log.error("could not clean up after a failed capture: %s", error)
        return False
    return True
