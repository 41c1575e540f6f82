"""The arena: the memory of captured callables. One per device.

Problem: a pool per graph costs a graph's whole working memory each time, 70 MB for 32 small
graphs. And the allocator keeps its blocks by stream, so captures on different streams do not
reuse each other's memory even in one pool. Idea: one pool, one capture stream, one lock.

Invariants:
  - work of one arena is ordered: a call on a new stream first waits for the stream used before;
  - what a graph leaves in the pool is copied out before another graph of the arena runs, or it is
    held (``hot``), so captures may reuse each other's memory freely;
  - the pool of a failed capture is never captured into again.

A graphed callable needs no ``enable()``: it makes graph objects of the bridged class and patches
nothing beyond the capture. Every capture is recorded: its tape says what a replay writes.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gfxgraph import torch_names
from gfxgraph.callables.buffers import Buffers, tensors_of
from gfxgraph.callables.signature import RunEagerly
from gfxgraph.capture.function_capture import CaptureDied, SharedPool, captured_function
from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.capture.record.streams import wait_for
from gfxgraph.capture.replay.graph_tensors import Layout, used_on
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.core.eviction import Held, shown, to_evict
from gfxgraph.core.locks import new_lock
from gfxgraph.core.tape import leaves
from gfxgraph.errors import GuardMismatch, ReplayError
from gfxgraph.guard import guard
from gfxgraph.process import process

_arenas: dict[int, Arena] = {}
"""By device."""
_lock = new_lock()


def arena_of(state: process.Process, device_index: int) -> Arena:
    """The arena of a device; a new one after the bridge was switched off and on."""
    with _lock:
        found = _arenas.get(device_index)
        if found is None or found.state is not state:
            found = _arenas[device_index] = Arena(state, device_index)
        return found


class Contexts(threading.local):
    """The context that driver calls need in each thread.

    A thread that has launched nothing through torch has none. There CUDA's driver refuses a launch, and crashes with
    a segmentation fault if a node of a graph exec is updated (CUDA 13.0, seen on an H100).
    """

    devices: frozenset[int] = frozenset()
    """Devices that this thread has used: the context of one of them is current in it."""

    def give(self, device_index: int) -> None:
        """Make a context current in this thread.

        Querying a stream would do this as well, but ends a capture of another thread.
        """
        if device_index not in self.devices:
            torch.zeros(1, device=f"cuda:{device_index}")
            self.devices |= {device_index}


class Order:
    """A memory whose captures run in turn: its pool, capture stream, lock and order of work."""

    last_stream: Any = None
    last_raw = -1
    """Handle of the stream that ran the last work."""
    buffers: Buffers | None = None
    _pool: weakref.ref[SharedPool] | None = None

    def __init__(self, state: process.Process, device_index: int, stream: Any = None) -> None:
        self.state, self.device_index, self.stream = state, device_index, stream
        self.lock = new_lock()

    @property
    def pool(self) -> SharedPool:
        """The pool for captures; when the last is gone its memory is freed, and the next capture makes a new one."""
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            pool = self.new_pool()
            self._pool = weakref.ref(pool)
        return pool

    def new_pool(self) -> SharedPool:
        """A pool that nothing else uses."""
        with torch.cuda.device(self.device_index):
            return SharedPool(self.state, self.stream)

    def follow(self, stream: Any) -> None:
        """Make ``stream`` wait for the last work, and record it as the latest."""
        if self.last_stream is not None and self.last_stream.cuda_stream != stream.cuda_stream:
            stream.wait_stream(self.last_stream)
        self.last_stream = stream
        self.last_raw = stream.cuda_stream


class Arena(Order):
    """Pool, capture stream, order of work and memory budget of one device."""

    def __init__(self, state: process.Process, device_index: int) -> None:
        super().__init__(state, device_index)
        guard.fill()
        self.contexts = Contexts()
        self.entries: weakref.WeakSet[Any] = weakref.WeakSet()
        self.n_uses = 0
        self.limit: int | None = None
        """Bytes that graphs may take; None for what the cap leaves of the device."""
        self.renew()

    def renew(self) -> None:
        """Use a new pool and stream for future captures; existing graphs keep theirs."""
        with torch.cuda.device(self.device_index):
            self._pool, self.stream = None, torch.cuda.Stream()
        self.backwards = Order(self.state, self.device_index, self.stream)
        """Of all backward graphs: nothing in it is needed once a replay's gradients are copied out."""

    def capture(self, call: Callable[[], Any], pool: SharedPool | None = None, **options: Any) -> tuple[Any, Any]:
        """Capture a function on the arena's stream, by default into its pool (`captured_function`).

        A pool in which a capture has died is not used again: then the arena has a new one.
        """
        try:
            return captured_function(self.state, self.stream, call, pool or self.pool, **options)
        except CaptureDied:
            self.renew()
            raise

    # -- order of work ----------------------------------------------------------------------------

    def advances(self, graph: Any, run: Callable[[], None]) -> bool:
        """Run a replay; return whether it advanced a random generator. torch's tags tell less: attention without
        dropout has them, too.
        """
        generators = [*graph._program.generators, torch.cuda.default_generators[self.device_index]]
        before = [each.get_offset() for each in generators]
        run()
        return before != [each.get_offset() for each in generators]

    def wait_for_all(self) -> None:
        """Wait until no work of the arena is running: each use waits for the one before, so waiting for the last is
        enough.

        Does not wait for the device: that is refused while anybody captures on it, and ends that capture.
        """
        for stream in (self.stream, self.last_stream, self.backwards.last_stream):
            if stream is None:
                continue
            with torch.cuda.stream(stream):
                is_capturing = torch.cuda.is_current_stream_capturing()
            if not is_capturing:
                wait_for(self.state, stream)

    # -- budget -----------------------------------------------------------------------------------

    def reserved(self) -> int:
        """Bytes that torch's allocator has reserved on the device."""
        return int(torch_names._cuda_memoryStats(self.device_index)["reserved_bytes"]["all"]["current"])

    def graph_nbytes(self) -> int:
        """Bytes that the arena's captures take."""
        return sum(entry.nbytes for entry in list(self.entries))

    def cap(self) -> int:
        """The most bytes that graphs may take: the limit, and never more than GFXGRAPH_VRAM_CAP leaves."""
        free, total = torch.cuda.mem_get_info(self.device_index)
        stats = torch_names._cuda_memoryStats(self.device_index)
        # What torch caches without using it is freed when needed; some of it may be the graphs' own.
        cached = stats["reserved_bytes"]["all"]["current"] - stats["allocated_bytes"]["all"]["current"]
        others = max(0, total - free - max(self.graph_nbytes(), cached))
        cap = max(0, int(total * self.state.settings.vram_cap) - others)
        return cap if self.limit is None else min(cap, self.limit)

    def report(self) -> list[dict[str, Any]]:
        """Memory of every capture, largest first."""
        return sorted((entry.report() for entry in list(self.entries)), key=lambda row: -row["pool_bytes"])

    def make_room(self, needed: int, keep: Any = None) -> bool:
        """Evict the least recently used captures until ``needed`` bytes fit under the cap.

        Returns:
            False if they cannot fit; then nothing was evicted.
        """
        cap, used = self.cap(), self.graph_nbytes()
        if needed <= cap - used:
            return True
        entries = {id(entry): entry for entry in list(self.entries) if entry is not keep and entry.is_captured}
        held = [Held(key, entry.nbytes, entry.used_at) for key, entry in entries.items()]
        if needed > cap - used + sum(item.nbytes for item in held):
            self.state.report(
                "over_cap", "a capture would exceed the limit for graphs; these calls run eagerly", shown(needed)
            )
            return False
        for key in to_evict(held, needed, cap - used):
            entries[key].evict("to make room under the memory limit")
        if not any(entry.is_captured for entry in list(self.entries)):
            torch.cuda.empty_cache()  # the pool is empty: return its memory to the device
        return True

    def account(self, needed: int) -> dict[str, str]:
        """The fields of `vram_cap_exceeded`."""
        return {"needed": shown(needed), "cap": shown(self.cap()), "used": shown(self.graph_nbytes())}

    def drop_all(self) -> None:
        """Evict everything, because a capture ran out of memory."""
        for entry in list(self.entries):
            entry.evict("a capture ran out of memory")
        self.renew()
        torch.cuda.empty_cache()


# -- running on the arena's stream ----------------------------------------------------------------


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Run the block on ``stream``, in order with the current stream of its device before and after."""
    current = torch.cuda.current_stream(stream.device_index)
    if current == stream:
        yield
        return
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


def beside(place: Arena, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a function on the capture stream, as part of the current stream's work.

    Some libraries make a handle for each stream, which must exist before the capture.
    """
    current = torch.cuda.current_stream()
    with on_stream(place.stream):
        made = fn(*args, **kwargs)
    for tensor in tensors_of(made):
        if tensor.is_cuda:
            used_on(tensor, current)  # made on one stream, used on the other: it must not be reused meanwhile
    return made


def replay(graph: BridgedGraph, writes: Iterable[Tensor | Layout] | None = None) -> None:
    """Launch a graph; if that fails half-way, undo it and leave the call to the function.

    Args:
        writes: what to restore; by default everything visible outside, the graph's results included.

    Raises:
        RunEagerly: the launch failed, or a value that the capture read has changed: with the old one it can be
            replayed again.
    """
    program = getattr(graph, "_program", None)
    before = None
    if program is not None and not graph.is_plain:  # it may stop half-way, at a guard
        before = Rollback(program.writes() if writes is None else writes, program.random_states())
    try:
        graph.replay()
    except (GuardMismatch, ReplayError) as error:
        if before is not None:
            before.restore()
        if isinstance(error, GuardMismatch):
            question = error.fields.get("question", "")
            raise RunEagerly(f"a value that the capture read has changed: {question}") from error
        raise RunEagerly(f"the replay failed: {error.code}") from error


# -- what a captured graph reads, writes and draws, from its tape -----------------------------------------------


def writes_of(graph: Any) -> list[Tensor | Layout]:
    """External tensors that a replay of a captured graph writes, as tensors or layouts."""
    program = graph._program
    return [place for step in program.steps for place in step.mutated]


def reads_of(graph: Any) -> list[Tensor | Layout]:
    """Everything that a replay reads from outside its own memory."""
    program = graph._program
    found: list[Tensor | Layout] = []
    for step in program.segments:
        for entry in step.tape.entries:
            for value in itertools.chain(leaves(entry.args), leaves(entry.kwargs)):
                if value.is_external and value in program.externals:
                    found.append(program.externals[value])
    return found


def draws(graph: Any) -> bool:
    """True if a replay draws random numbers, as far as the tape shows."""
    program = graph._program
    return any(step.tape.generators for step in program.segments) or any(
        True for step in program.steps for _ in step.random_states()
    )


def span(place: Tensor | Layout) -> tuple[int, int]:
    """First address and the one past the last."""
    layout = place if isinstance(place, Layout) else Layout.of(place)
    return layout.address, layout.address + layout.span_nbytes


def overlap(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> bool:
    theirs = list(other)
    return any(a < d and c < b for a, b in one for c, d in theirs)


def written_inputs(graph: Any, inputs: list[Tensor]) -> list[int]:
    """Positions of the static inputs that a replay writes."""
    places = [span(place) for place in writes_of(graph)]
    return [at for at, tensor in enumerate(inputs) if overlap([span(tensor)], places)]


_ONLY_UPDATE = ("with_update", "stats", "with_counts")
"""How those operations end that only update their running statistics."""


def carries(graph: Any) -> bool:
    """Whether a replay reads what earlier ones have written, other than to update it."""
    program, written = graph._program, [span(place) for place in writes_of(graph)]

    def is_written(value: Any) -> bool:
        place = program.externals.get(value.root or value)
        return place is not None and overlap([span(place)], written)

    for entry in (each for step in program.segments for each in step.tape.entries):
        if "batch_norm" in entry.name and (list(entry.args[5:6]) == [True] or entry.name.endswith(_ONLY_UPDATE)):
            continue  # its results come of the batch
        if any(map(is_written, leaves((entry.args, entry.kwargs)))) and not all(
            map(is_written, leaves(entry.outputs))
        ):
            return True
    return bool(written) and graph.is_opaque


def memory_report() -> dict[str, Any]:
    """Memory that graphed callables take, by device, function and bucket, in bytes.

    Returns:
        ``{"devices": [{"device", "cap_bytes", "graph_bytes", "captures": [...]}]}``; each capture says
        ``function``, ``signature``, ``input_bytes``, ``output_bytes``, ``pool_bytes`` (what it added to
        the shared pool), ``n_graphs``, ``n_calls``.
    """
    devices = []
    for arena in list(_arenas.values()):
        captures = arena.report()
        if captures and arena.state is process.current():  # others are from before the bridge was switched
            devices.append(
                {
                    "device": f"cuda:{arena.device_index}",
                    "cap_bytes": arena.cap(),
                    "graph_bytes": arena.graph_nbytes(),
                    "captures": captures,
                }
            )
    return {"devices": devices}
