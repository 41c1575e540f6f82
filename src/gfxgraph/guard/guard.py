"""The guard of one captured graph: its checks before, during and after each replay."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gfxgraph import torch_names
from gfxgraph.capture import rooms
from gfxgraph.capture.replay.graph_tensors import pool_id
from gfxgraph.capture.replay.node_walk import can_walk, walk
from gfxgraph.core.fault_report import NodeInfo
from gfxgraph.core.memory_map import Allocation
from gfxgraph.errors import CaptureError, DriverError, GfxGraphFault
from gfxgraph.guard import flight_recorder, redzone_pool
from gfxgraph.guard.layout import repaired
from gfxgraph.guard.live_memory import Lines, LiveMemory, allocations, when_there_is_a_device
from gfxgraph.guard.localize import fault_at, is_fault
from gfxgraph.guard.nodes import SegmentNode, nodes_of
from gfxgraph.guard.pointers import PointerGuard, describe_arguments
from gfxgraph.guard.redzones import RedZones
from gfxgraph.guard.tensor_names import TensorNames, device_tensors
from gfxgraph.process import process
from gfxgraph.types import GuardTier

if TYPE_CHECKING:
    from gfxgraph.capture.replay.program import Program, SegmentStep

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """Made when a capture has ended; graphs captured at tier 0 have none."""

    def __init__(
        self, program: Program, tier: GuardTier, pool: Any, where: str, zones: RedZones | None = None
    ) -> None:
        self.tier = tier
        self.program = program
        self.where = where
        self.zones = zones
        self.pointers = PointerGuard()
        self.n_replays = 0
        self.memory: list[Allocation] = []
        self._nodes: dict[int, list[SegmentNode]] = {}
        self._recorder: flight_recorder.FlightRecorder | None = None
        self._graph_number = 0
        self._frees: object = None
        names = TensorNames()
        own = {tuple(pool)} if pool is not None else set()
        for segment in program.segments:
            try:
                nodes = nodes_of(segment, program, names)
                self.pointers.add(nodes, program, own, names)
                describe_arguments(nodes, names)
            except (DriverError, RuntimeError) as error:
                process.require().report("guard_skipped", f"the graph's nodes cannot be read: {error}", "", where)
                nodes = []
            self._nodes[id(segment)] = nodes
        if zones is not None:
            zones.place([node for nodes in self._nodes.values() for node in nodes])
        process.require().counters.add("guard_unchecked", len(self.pointers.unchecked))
        if tier >= GuardTier.LOCALIZE:
            self._start_recording(names)
            program.by_nodes = self.walk
        _guards.add(self)

    @property
    def is_slow(self) -> bool:
        """True if every replay does more than the bare launch."""
        return self.tier >= GuardTier.LOCALIZE

    def close(self) -> None:
        """Called when the graph is reset or freed."""
        _guards.discard(self)
        self.program.by_nodes = None
        memory_may_be_gone()

    # -- before ------------------------------------------------------------------------------------------

    def before_replay(self) -> None:
        """Raise if the graph would touch freed memory.

        Raises:
            ReplayError: `stale_pointer`.
        """
        self.pointers.check()
        self.n_replays += 1
        if self.zones is not None:
            self.zones.arm(self.program)

    # -- during ------------------------------------------------------------------------------------------

    def _start_recording(self, names: TensorNames) -> None:
        self._recorder = flight_recorder.recorder()
        self._graph_number = self._recorder.next_graph()
        for number, segment in enumerate(self.program.segments):
            self._recorder.describe(self._graph_number, number, self.infos(segment), self.where)
        self._remember_memory(names)

    def nodes(self, segment: SegmentStep) -> list[SegmentNode]:
        return self._nodes.get(id(segment), [])

    def infos(self, segment: SegmentStep) -> list[NodeInfo]:
        return [node.info(position) for position, node in enumerate(self._nodes.get(id(segment), ()))]

    def _remember_memory(self, names: TensorNames | None = None) -> None:
        """Write which memory belongs to what, if that may have changed."""
        frees = torch_names._cuda_memoryStats(torch.cuda.current_device())["allocation"]["all"]
        now = frees["allocated"], frees["freed"]
        if now == self._frees:
            return
        self._frees = now
        self.memory = allocations(LiveMemory(), device_tensors(), names or TensorNames())
        if self._recorder is not None:
            self._recorder.remember(self.memory)

    def walk(self, segment: SegmentStep, program: Program) -> None:
        """Replay the segment node by node, recording each node before it runs.

        Raises:
            GfxGraphFault: `memory_fault`, `fault_before_replay`.
        """
        driver = process.require().driver
        stream = torch.cuda.current_stream().cuda_stream
        infos = self.infos(segment)
        number = program.segments.index(segment)
        running: list[int] = []
        self._remember_memory()

        def before(position: int, node: int) -> None:
            running.append(position)
            if self._recorder is not None:
                self._recorder.running(self._graph_number, number, position, len(infos), self.n_replays)

        try:
            if not can_walk(segment):
                self._whole(segment, program, before)
            else:
                driver.synchronize_stream(stream)
                walk(segment, program, before=before)
        except (RuntimeError, IndexError) as error:
            if not is_fault(error) or isinstance(error, GfxGraphFault):
                raise
            at = infos[running[-1]] if running and running[-1] < len(infos) else None
            fault = fault_at(at, len(infos), self.n_replays, error, self.memory, segment)
            if self._recorder is not None:
                self._recorder.faulted(str(fault))
            process.require().counters.add("guard_faults")
            raise fault from error
        if self._recorder is not None:
            self._recorder.idle()

    def _whole(self, segment: SegmentStep, program: Program, before: Any) -> None:
        """Launch the graph as a whole if its nodes cannot run one by one; reported once."""
        process.require().report(
            "guard_not_localized",
            "the graph's nodes cannot be run one by one: a fault is reported for the graph (gfxgraph doctor --why)",
            "",
            self.where,
        )
        before(0, 0)
        program.launch(segment.graph)
        torch.cuda.current_stream().synchronize()

    # -- after -------------------------------------------------------------------------------------------

    def after_replay(self) -> None:
        """At tier 3, check the red zones.

        Raises:
            GfxGraphFault: `red_zone_overwritten`.
        """
        if self.zones is not None:
            self.zones.check(self)


def guard_for(graph: object, program: Program, pool: Any, where: str, zones: RedZones | None = None) -> Guard | None:
    """The guard that the current settings require; None at tier 0."""
    tier = process.require().settings.guard
    if tier is GuardTier.OFF:
        return None
    return Guard(program, tier, pool_id(pool) if pool is not None else None, where, zones)


def replay_by_nodes(guard: Guard | None, program: Program, pool: object) -> None:
    """Replay a program once with every fault localized, whatever tier it was captured at.

    Raises:
        GfxGraphFault: `memory_fault`, `fault_before_replay`.
    """
    if guard is None or not guard.is_slow:
        guard = Guard(program, GuardTier.LOCALIZE, pool_id(pool), "")
        guard.before_replay()
        try:
            program.run()
        finally:
            guard.close()
        return
    guard.before_replay()
    program.run()


def fill() -> None:
    """Install the hooks of this room that graphs call."""
    if torch_names.why_off("guard"):
        return
    rooms.deep_capture, rooms.guard_for, rooms.replay_by_nodes = DeepCapture, guard_for, replay_by_nodes
    rooms.repaired = repaired


def memory_may_be_gone() -> None:
    """Tell all guards that memory was freed in bulk; costs nothing if no graph is guarded."""
    for guard in list(_guards):
        guard.pointers.memory_may_be_gone()


_prepared: list[GuardTier] = []


def prepare_process(
    tier: GuardTier, replace: Callable[[object, str, object], None], undo: list[Callable[[], None]]
) -> None:
    """Prepare a process for guarded graphs: notice bulk frees, and record the lines of allocations.

    Args:
        replace: ``replace(owner, name, new)`` installs ``new`` until ``disable``.
        undo: further calls for ``disable`` to make.
    """
    if not _prepared:
        cuda = torch.cuda
        undo.append(_prepared.clear)
        replace(cuda.memory, "empty_cache", empty := _noticing(cuda.memory.empty_cache))
        replace(cuda, "empty_cache", empty)
        clear = torch_names._cuda_clearCublasWorkspaces
        replace(*torch_names.place("_cuda_clearCublasWorkspaces"), _noticing(clear))
    if not _prepared or tier > max(_prepared):
        undo.append(Lines(every_event=tier >= GuardTier.DEEP).forget)
        if tier >= GuardTier.DEEP:
            undo.append(lambda: when_there_is_a_device(lambda: use_cache(True)))
            when_there_is_a_device(lambda: use_cache(not _is_deep()))
        _prepared.append(tier)


def _noticing(call: Any) -> Any:
    @functools.wraps(call)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            memory_may_be_gone()

    return noticed


class DeepCapture:
    """The setting of a capture at tier 3: a pool with red zones, no memory reuse, and the cache on.

    Outside captures the cache is off, so that freed memory is unmapped at once and
    faulty eager work faults immediately. A capture needs the cache.
    """

    def __init__(self) -> None:
        redzone_pool.release_unused()
        self.zones: RedZones | None = None
        try:
            self.zones = RedZones(redzone_pool.RedZonePool())
        except CaptureError as error:
            process.require().report("guard_without_red_zones", str(error.fields.get("why")), "", "")
        use_cache(True)

    def pool(self, asked: object) -> object:
        """The pool to capture into, overriding the program's choice."""
        return self.zones.pool.id if self.zones is not None else asked

    def ended(self) -> None:
        use_cache(False)


def use_cache(on: bool) -> None:
    """Switch the caching allocator's cache on or off."""
    # Not torch.cuda.memory.caching_allocator_enable, which does nothing while the device is being initialized.
    torch_names._cuda_cudaCachingAllocator_enable(on)  # type: ignore[attr-defined]


def _is_deep() -> bool:
    state = process.current()
    return state is not None and state.settings.guard >= GuardTier.DEEP
