"""GPU time inside graphs, by module, source line and kernel.

A graph is one launch, and profilers show one. Each of its nodes is timed here, and the recorder knows which
operation, line and module made it:

    profiler     one replay under torch.profiler, where that reports a kernel for each node (CUPTI)
    node walk    else: each node is launched by itself, between two events, less what a launch of no node takes

What a timed run changes is put back. Either way the sum is compared with the time of the whole graph, which is
measured on its own: a profile whose sum is more than a tenth off says so.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gfxgraph import files
from gfxgraph.capture import leaving
from gfxgraph.capture.graph import BridgedGraph
from gfxgraph.capture.replay.node_walk import can_walk, raw_exec, raw_graph, working_nodes
from gfxgraph.capture.replay.program import Program, SegmentStep
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.capture.undo import Undo
from gfxgraph.errors import GfxGraphError
from gfxgraph.guard.nodes import SegmentNode, nodes_of
from gfxgraph.process import process
from gfxgraph.reporting import origins
from gfxgraph.reporting.origins import Sources
from gfxgraph.reporting.profile_text import chrome_trace, text
from gfxgraph.reporting.read_capture import demangled, graphs_of, short

N_TIMES = 5
"""Launches of which the fastest counts: others wait for what the machine does besides."""
SHORT_MS, IN_A_ROW = 5.0, 8
TOLERANCE = 0.10
"""How far the sum of a graph's nodes may be from its own time."""
ELSEWHERE = "(none)"
_NUMBER = re.compile(r"\.\d+\b")
"""Of a layer among its equals."""


@dataclass(frozen=True, slots=True)
class TimedNode:
    """One node of a graph.

    Args:
        ms: GPU time of one run.
        module: path of the module that made it; "" if none did.
        where: the program's line.
    """

    ms: float
    module: str
    op: str
    kernel: str
    where: str
    kind: str


@dataclass(frozen=True, slots=True)
class GraphProfile:
    """One graph: its nodes in the order in which they run, and its own time.

    Args:
        ms: of one whole replay's graphs, measured without looking at nodes.
        gap_ms: of it, time in which no node ran, as far as the way of measuring tells.
        how: "profiler" or "node walk".
        overhead_ms: what measuring it took, beyond one replay.
    """

    name: str
    where: str
    nodes: tuple[TimedNode, ...]
    ms: float
    gap_ms: float
    how: str
    overhead_ms: float
    n_replays: int = 0

    @property
    def sum_ms(self) -> float:
        return sum(node.ms for node in self.nodes)

    @property
    def agrees(self) -> bool:
        """Whether the sum of the nodes, and what lies between them, is within a tenth of the graph's own time."""
        return abs(self.sum_ms + self.gap_ms - self.ms) <= TOLERANCE * self.ms


@dataclass(slots=True)
class TimedGraphs:
    """The result of ``gfxgraph.profile``; ``str()`` gives tables.

    Args:
        graphs: those that were replayed.
    """

    graphs: list[GraphProfile] = field(default_factory=list)
    seconds: float = 0.0
    """From the first capture to the end, without what measuring took."""

    def by(self, key: str, alike: Callable[[str], str] = str) -> list[tuple[str, float, int]]:
        """GPU milliseconds of all replays, and nodes of one, by "module", "where", "kernel" or "op"; most first.

        Args:
            alike: gives one name to what is to be one row.
        """
        found: dict[str, tuple[float, int]] = {}
        for graph in self.graphs:
            for node in graph.nodes:
                name = alike(str(getattr(node, key)) or ELSEWHERE)
                ms, n = found.get(name, (0.0, 0))
                found[name] = ms + node.ms * max(1, graph.n_replays), n + 1
        return sorted(((name, ms, n) for name, (ms, n) in found.items()), key=lambda row: -row[1])

    @property
    def share_named(self) -> float:
        """The share of nodes whose module is known."""
        nodes = [node for graph in self.graphs for node in graph.nodes]
        return sum(bool(node.module) for node in nodes) / len(nodes) if nodes else 0.0

    @property
    def busy_ms(self) -> float:
        """GPU time of all replays."""
        return sum(graph.ms * graph.n_replays for graph in self.graphs)

    def __str__(self) -> str:
        return text(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        graphs = [{**asdict(g), "sum_ms": g.sum_ms, "agrees": g.agrees} for g in self.graphs]
        return {
            "graphs": graphs,
            "seconds": self.seconds,
            "busy_ms": self.busy_ms,
            "named": self.share_named,
            "by_module": self.by("module", lambda name: _NUMBER.sub(".*", name)),
            "by_part": self.by("module", lambda name: _NUMBER.split(name)[0]),
            "by_where": self.by("where"),
            "by_kernel": self.by("kernel"),
        }

    def chrome_trace(self, path: str | Path) -> None:
        """Write one replay of each graph in Chrome's format, which Perfetto opens.

        Kernels have the program's lines as names, and modules above them.
        """
        files.write(Path(path), json.dumps(chrome_trace(self.as_dict()["graphs"])))


def profile_graph(graph: BridgedGraph, name: str = "") -> GraphProfile:
    """Time every node of one captured graph; what the replays change is put back.

    Raises:
        GfxGraphError, RuntimeError: it was not captured, or the device does not run it.
    """
    program: Program = graph._program  # type: ignore[assignment]  # it was captured
    if not graph._is_instantiated:
        graph.instantiate()
    nodes: list[TimedNode] = []
    own, gap, how, begun = 0.0, 0.0, "profiler", time.perf_counter()
    before = Rollback(program.writes(), program.random_states())
    try:
        for step in program.due_steps():
            if not isinstance(step, SegmentStep) or step.graph is None:
                step.run(program)
                continue
            known = nodes_of(step, program)
            with _put_back(step, program):
                found = _by_profiler(step, program, known)
                if found is None:
                    how, found = "node walk", _by_walk(step, program, known)
                times, none = found
                gap += none
            with _put_back(step, program):
                program.launch(step.graph)  # sets what random operations read
                own += _own_time(_launch_of(step))
            program.launch(step.graph)
            nodes += _described(step, known, times)
    finally:
        torch.cuda.synchronize()
        before.restore()
    overhead = (time.perf_counter() - begun) * 1e3 - own
    where = next((node.where for node in nodes if node.where), "")
    return GraphProfile(name or f"graph of {where}", where, tuple(nodes), own, gap, how, overhead, graph.n_replays)


@contextmanager
def _put_back(step: SegmentStep, program: Program) -> Iterator[None]:
    before = Rollback([*step.writes(), *program.pool_inputs(step)], program.generators)
    try:
        yield
    finally:
        before.restore()


def _launch_of(step: SegmentStep) -> Callable[[], object]:
    """The driver's launch of a segment's exec, and nothing else."""
    return partial(process.require().driver.launch, raw_exec(step.graph), torch.cuda.current_stream().cuda_stream)


def _own_time(run: Callable[[], object]) -> float:
    """Milliseconds of a whole launch; of a short one many in a row, for a device that waits for it is not at work."""
    is_real = process.require().platform != "simulator"
    n = IN_A_ROW if is_real and _timed(run) < SHORT_MS else 1
    return min(_timed(lambda: [run() for _ in range(n)]) for _ in range(N_TIMES)) / n


def _timed(run: Callable[[], object]) -> float:
    """GPU milliseconds of some work."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun.record()
    run()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended))


def _by_profiler(
    step: SegmentStep, program: Program, nodes: Sequence[SegmentNode]
) -> tuple[list[float], float] | None:
    """Milliseconds of each node and between them, if torch's profiler reports all of them."""
    activity = torch.profiler.ProfilerActivity.CUDA
    if process.require().platform == "simulator" or activity not in torch.profiler.supported_activities():
        return None
    try:
        with torch.profiler.profile(activities=[activity]) as profiler:
            program.launch(step.graph)
            torch.cuda.synchronize()
    except RuntimeError:  # another profiler is on, or this one may not count
        return None
    seen = [each for each in profiler.events() or () if each.device_type.name in ("CUDA", "HIP", "PrivateUse1")]
    seen = [each for each in seen if not getattr(each, "is_user_annotation", False)]
    seen.sort(key=lambda each: each.time_range.start)
    times = matched([(each.name, each.time_range.elapsed_us() / 1e3) for each in seen], nodes)
    if times is None:
        return None
    gap, end = 0.0, seen[0].time_range.start if seen else 0.0
    for each in seen:
        gap += max(0.0, each.time_range.start - end)
        end = max(end, each.time_range.end)
    return times, gap / 1e3


def matched(events: Sequence[tuple[str, float]], nodes: Sequence[SegmentNode]) -> list[float] | None:
    """Give each node the time of its event: by kernel name in order, or by place where names are not the runtime's.

    Returns:
        None if there is not one event for each node.
    """
    if len(events) != len(nodes):
        return None
    queues: dict[str, list[float]] = {}
    for name, ms in events:
        queues.setdefault(_plain_kernel(name), []).append(ms)
    found = []
    for node in nodes:
        name = _plain_kernel(demangled(node.kernel)) if node.kernel else _KINDS.get(str(node.kind), "")
        queue = queues.get(name)
        if not queue:
            return [ms for _, ms in events]
        found.append(queue.pop(0))
    return found


_KINDS = {"memcpy": "Memcpy", "memset": "Memset"}


def _plain_kernel(name: str) -> str:
    for kind in _KINDS.values():
        if name.startswith(kind):
            return kind
    return re.sub(r"\s+", "", name).removeprefix("void").removesuffix(".kd")


def _by_walk(step: SegmentStep, program: Program, nodes: Sequence[SegmentNode]) -> tuple[list[float], float]:
    """Milliseconds of each node, launched by itself between two events, less a launch of none; and those of that."""
    if not can_walk(step):
        return [], 0.0
    driver = process.require().driver
    graph, graph_exec = raw_graph(step.graph), raw_exec(step.graph)
    working = set(working_nodes({node: driver.node_kind(node) for node in driver.nodes(graph)}))
    enabled = [node for node in working if driver.node_enabled(graph_exec, node)]
    run = _launch_of(step)
    undo = Undo(partial(driver.set_node_enabled, graph_exec, handle, True) for handle in enabled)
    times = [0.0] * len(nodes)
    try:
        for handle in enabled:
            driver.set_node_enabled(graph_exec, handle, False)
        program.launch(step.graph)
        none = min(_timed(run) for _ in range(N_TIMES))
        for n_round in range(
            N_TIMES
        ):  # all nodes in each round: one that runs twice in a row finds its data in caches
            for at, node in enumerate(nodes):
                if node.handle not in enabled:
                    continue
                if process.require().decisions.node_walk_resets:
                    run()
                driver.set_node_enabled(graph_exec, node.handle, True)
                ms = max(0.0, _timed(run) - none)
                driver.set_node_enabled(graph_exec, node.handle, False)
                times[at] = min(times[at], ms) if n_round else ms
    finally:
        undo.undo_all()
    return times, none


def _described(step: SegmentStep, nodes: Sequence[SegmentNode], times: Sequence[float]) -> Iterator[TimedNode]:
    sources = Sources()
    places = {id(entry): at for at, entry in enumerate(step.tape.entries)}
    for node, ms in zip(nodes, times):
        at = places[id(node.entry)] if node.entry is not None else node.opaque.before_entry if node.opaque else 0
        module = origins.module_of(step.tape, at, node.entry, sources)
        yield TimedNode(ms, module, node.op, short(demangled(node.kernel)), sources.of(node.where), str(node.kind))


class profile:  # noqa: N801  # a function and a context, as torch.no_grad is
    """Time what runs in graphs, by module, line and kernel.

        with gfxgraph.profile() as found:      what is captured and replayed in the block
            train()
        print(found)
        gfxgraph.profile.of(step, x)           one graph, or the graphs of a callable

    Graphs captured in the block note the modules of their operations; those captured before are named by line, and by
    module where Dynamo traced them. New in 2.0.
    """

    def __init__(self) -> None:
        self.found = TimedGraphs()
        self._before: dict[int, int] = {}
        self._noting, self._measuring = origins.Noting(), 0.0

    def __enter__(self) -> TimedGraphs:
        state = process.require()
        process.note_module = self._noting
        self._before = {id(graph): graph.n_replays for graph in list(state.graphs)}
        leaving.append(self._leaving)
        self._begun = time.perf_counter()
        return self.found

    def __exit__(self, *error: object) -> None:
        torch.cuda.synchronize()
        self.found.seconds = time.perf_counter() - (self._noting.begun or self._begun) - self._measuring
        process.note_module = process.no_note
        leaving.remove(self._leaving)
        for graph in list(process.require().graphs):
            self._leaving(graph)
        self.found.graphs.sort(key=lambda each: -each.ms * each.n_replays)

    def _leaving(self, graph: BridgedGraph) -> None:
        """Time a graph that was replayed in the block, at its end or when it is about to be destroyed."""
        n = graph.n_replays - self._before.get(id(graph), 0)
        if graph._program is None or n <= 0 or torch.cuda.is_current_stream_capturing():
            return
        begun = time.perf_counter()
        with suppress(GfxGraphError, RuntimeError):  # the device may be gone
            made = profile_graph(graph, graph.account.name if graph.account is not None else "")
            self.found.graphs.append(replace(made, n_replays=n))
        self._measuring += time.perf_counter() - begun

    @staticmethod
    def of(obj: Any, *args: Any, **kwargs: Any) -> TimedGraphs:
        """Profile a captured graph, or what a graphed callable has captured, or captures for these arguments.

        Args:
            obj: a graph, a graphed callable, or an object that holds such.
            args: arguments with which it is called first, until it is captured and replayed.
            kwargs: likewise.

        Returns:
            What was measured; ``str()`` gives tables.

        Raises:
            TypeError: ``obj`` holds no graph.
        """
        if args or kwargs:
            with profile() as found:
                for _ in range(3):  # trace or warm-up, capture, replay
                    obj(*args, **kwargs)
            return found
        found = TimedGraphs()
        for label, graph in graphs_of(obj)[0]:
            if graph._program is not None:
                found.graphs.append(profile_graph(graph, label))
        return found
