"""A function's capture into a pool that several captures share.

The function runs once, recorded, and nothing is executed; if its capture dies the process is as before, and whoever
asked runs the function itself.

Source: torch 2.9 to 2.14: a pool's memory is freed with its last graph, and an id without a graph is refused.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from gfxgraph.capture import capture_lock
from gfxgraph.capture.failures import end_by_hand, end_dead_capture
from gfxgraph.capture.graph import BridgedGraph, bridged_class
from gfxgraph.capture.patches import patch_table
from gfxgraph.capture.record.random_generators import CaptureIsDead, begin_capture, end_capture
from gfxgraph.capture.replay import runtime_workarounds
from gfxgraph.capture.undo import is_interrupt
from gfxgraph.errors import GfxGraphError
from gfxgraph.process import process
from gfxgraph.process.calls import Account
from gfxgraph.types import OnUnsafe

_class_over = functools.cache(bridged_class)


class SharedPool:
    """A memory pool for several captures. Its graphs hold this object, and whoever is going to capture into it.

    torch refuses an id whose graphs are all gone (``use_count > 0``), and frees a pool's memory only
    when they are. So an empty graph keeps the pool alive, and is freed with the last holder.

    Args:
        pool_id: an existing pool; None for a new one.

    Raises:
        CaptureDied: not even the empty graph could be captured.
    """

    def __init__(self, state: process.Process, stream: Any, pool_id: Any = None) -> None:
        self.state = state
        self.id = torch.cuda.graph_pool_handle() if pool_id is None else pool_id
        self._graph = patch_table.own_graph_class(state.base)(keep_graph=True)  # never launched or instantiated
        runtime_workarounds.own_pools.add(tuple(self.id))
        try:
            with (
                patch_table.capturing(self._graph),
                torch.cuda.stream(stream),
                capture_lock.relaxed(),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")  # that the graph is empty
                begin_capture(state.base, self._graph, (), self.id, "thread_local")
                end_capture(state.base, self._graph, state.driver, stream)
        except BaseException as error:
            self._end_dead(stream)
            if not isinstance(error, RuntimeError) or is_interrupt(error):
                raise
            raise CaptureDied(kind_and_line(error)) from error

    def _end_dead(self, stream: torch.cuda.Stream) -> None:
        base, driver = self.state.base, self.state.driver
        try:
            with capture_lock.relaxed(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                end_capture(base, self._graph, driver, stream)
        except RuntimeError as error:
            was_asked = not isinstance(error, CaptureIsDead)
            if not end_dead_capture(base, self._graph, stream, driver, end_was_refused=was_asked):
                end_by_hand(stream.device_index, self.id, [torch.cuda.default_generators[stream.device_index]])
        with suppress(RuntimeError):
            base.reset(self._graph)


class CaptureDied(RuntimeError):
    """The function could not be captured; what it raised is the cause."""


def captured_function(
    state: process.Process,
    stream: Any,
    call: Callable[[], Any],
    pool: SharedPool,
    *,
    on_unsafe: OnUnsafe | None = None,
    account: Account | None = None,
    after: BridgedGraph | None = None,
) -> tuple[Any, Any]:
    """Capture ``call`` on a stream, after the current stream's work; nothing is executed.

    Args:
        pool: what it is captured into; the graph holds it.
        on_unsafe: overrides the settings', where values that are computed with are constants.
        account: where its replays that are not one launch are counted; its other replays are the caller's to count.
        after: the graph whose results it finds in memory: a backward's forward.

    Returns:
        The graph, and what the call returned.

    Raises:
        CaptureDied: the capture failed, whatever the reason; the process is as before, the pool no longer usable.
        torch.OutOfMemoryError: as torch raised it.
    """
    chosen = state.settings.on_unsafe
    stream.wait_stream(torch.cuda.current_stream(stream.device_index))
    # Weights cached by autocast must neither enter the graph nor leave it: outside, they are freed with
    # the context; inside, only replays compute them.
    torch.clear_autocast_cache()
    is_bridged = issubclass(torch.cuda.CUDAGraph, BridgedGraph)  # by ``enable()``
    graph: Any = (torch.cuda.CUDAGraph if is_bridged else _class_over(state.base))(
        on_unsafe=on_unsafe or (OnUnsafe.PIN if chosen is OnUnsafe.SPLIT else chosen)
    )
    graph.account = account or Account("a part of a callable", is_part=True)
    graph._follows = False  # what it reads is watched already (worlds.py)
    graph._reads_after, graph.pool_held = after, pool
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
            result = call()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the graph is empty, as that of a backward pass may be
                graph.capture_end()
    except BaseException as error:
        with suppress(GfxGraphError, RuntimeError):
            graph.reset()
        if isinstance(error, torch.OutOfMemoryError) or is_interrupt(error):
            raise
        raise CaptureDied(kind_and_line(error)) from error
    finally:
        torch.clear_autocast_cache()
    if after is None and graph._program.is_outdated:  # the next one has no guards on what that operation read
        del result
        graph.reset()
        return captured_function(state, stream, call, pool, on_unsafe=on_unsafe, account=account)
    return graph, result


def kind_and_line(error: BaseException) -> str:
    """An error's type and the first line of its text."""
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
