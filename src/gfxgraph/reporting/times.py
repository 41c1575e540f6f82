"""The device time of each node of a graph, and a trace with the eager step above the graphed one.

Nodes are timed with the node walk: one is enabled, launched between two events, and waited for. This works even if a
profiler shows no kernels of a replay. The overhead of launching a single node is measured with the whole graph
and subtracted: times are scaled so that none is negative, never so that they add up.

Everything that the walks change outside the graph is restored.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gfxgraph import files
from gfxgraph.capture.execute import run_tape
from gfxgraph.capture.program import Program
from gfxgraph.capture.rollback import Rollback
from gfxgraph.capture.steps import SegmentStep
from gfxgraph.capture.walk import can_walk, walk
from gfxgraph.core.tape import Entry
from gfxgraph.guard.names import TensorNames
from gfxgraph.process import process
from gfxgraph.reporting.inspection import InspectedCapture, InspectedNode, InspectedStep, Inspection
from gfxgraph.reporting.reading import read_capture

N_PASSES = 3


def timed(
    graph: Any, label: str = "", names: TensorNames | None = None, *, passes: int = N_PASSES
) -> InspectedCapture:
    """``graph`` as ``inspect`` reads it, with ``device_us`` of every node: the minimum of several passes.

    Each pass runs a replay node by node, 40 us and a wait each; what it changes outside the graph is restored. The
    graph's own results are then those of a replay on its present inputs.

    Raises:
        ValueError: a segment cannot be run node by node here.
    """
    program: Program = graph._program
    for segment in program.segments:
        if segment.graph is None or not can_walk(segment):
            raise ValueError(
                "its nodes cannot be run one by one: a part runs from its tape, or the runtime has no way to"
            )
    read = read_capture(graph, label, names)
    best: dict[tuple[int, int], float] = {}
    with _undone(program):
        for _ in range(passes):
            for at, step in enumerate(program.steps):
                if not isinstance(step, SegmentStep):
                    step.run(program)
                    continue
                for index, us in enumerate(_one_pass(step, program)):
                    best[at, index] = min(us, best.get((at, index), us))
    floor = _floor()
    steps = tuple(
        replace(
            step,
            nodes=tuple(
                replace(node, device_us=max(0.0, best[at, node.index] - floor) if (at, node.index) in best else None)
                for node in step.nodes
            ),
        )
        for at, step in enumerate(read.steps)
    )
    return replace(read, steps=steps)


class _undone:
    """Restores what the program's steps write outside their graphs, and its generators."""

    def __init__(self, program: Program) -> None:
        self.before = Rollback([place for step in program.steps for place in step.mutated], program.random_states())

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self.before.put_back()


def _one_pass(segment: SegmentStep, program: Program) -> list[float]:
    found: list[float] = []
    stream = torch.cuda.current_stream()

    def around(launch: Callable[[], None]) -> None:
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record(stream)
        launch()
        ended.record(stream)
        ended.synchronize()
        found.append(1e3 * began.elapsed_time(ended))

    walk(segment, program, around=around)
    return found


def _floor() -> float:
    """Microseconds between two events with nothing in between."""
    stream, times = torch.cuda.current_stream(), []
    for _ in range(8):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record(stream)
        ended.record(stream)
        ended.synchronize()
        times.append(1e3 * began.elapsed_time(ended))
    return float(min(times))


def by(captures: Inspection | InspectedCapture, what: str) -> list[tuple[str, float, int]]:
    """(name, microseconds, nodes) summed by ``what``: "op", "where", "name" or "kind"; most expensive first."""
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for capture in captures if isinstance(captures, Inspection) else (captures,):
        for node in capture.nodes:
            name = str(getattr(node, what))
            spent[name] += node.device_us or 0.0  # type: ignore[assignment]
            count[name] += 1
    return [(name, us, count[name]) for name, us in spent.most_common()]


def replay_us(graph: Any, passes: int = N_PASSES) -> float:
    """Device time of one replay in microseconds: the minimum of several."""
    stream, times = torch.cuda.current_stream(), []
    with _undone(graph._program):
        for _ in range(passes):
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            times.append(1e3 * began.elapsed_time(ended))
    return float(min(times))


def eager_timeline(graph: Any) -> list[tuple[str, str, float, float]]:
    """(operation, line, begin, duration) of the same work run eagerly, in microseconds of device time.

    An operation's interval begins where the previous one ended, so it includes the gap before its kernels.

    Raises:
        ValueError: it includes launches outside torch, which no tape can run.
    """
    program: Program = graph._program
    marks: list[tuple[str, str, Any]] = []
    stream = torch.cuda.current_stream()

    def mark(op: str, where: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        marks.append((op, where, event))

    def after(position: int, entry: Entry, env: Any) -> None:
        if entry.code is not None:  # a view launches nothing
            mark(entry.name, str(entry.where))

    with _undone(program):
        for _ in ("warm-up", "timed"):
            marks.clear()
            stream.synchronize()
            mark("", "")
            for step in program.steps:
                if not isinstance(step, SegmentStep):
                    step.run(program)
                    mark(getattr(step, "name", "host step"), "")
                    continue
                if not step.tape.is_complete:
                    raise ValueError("it contains launches outside torch, whose eager time is not known")
                run_tape(step.tape, program.lookup, {value for value, _ in step.live}, after)
            stream.synchronize()
    first = marks[0][2]
    ends = [1e3 * first.elapsed_time(event) for _, _, event in marks]
    return [(op, where, begin, end - begin) for (op, where, _), begin, end in zip(marks[1:], ends, ends[1:])]


def chrome_trace(graph: Any) -> dict[str, Any]:
    """A trace for Perfetto and chrome://tracing: the eager step above, the replay below, on one time axis.

    The nodes of a replay follow their edges; nodes that may run concurrently get separate rows. The replay's
    total time is measured; the nodes' intervals are their own times, so gaps between nodes are drawn, too.
    """
    capture = timed(graph, names=TensorNames(sys._getframe(1)))
    events: list[dict[str, Any]] = []
    try:
        eager = eager_timeline(graph)
    except ValueError as error:
        eager = []
        events.append(_named(1, f"eager: {error}"))
    if eager:
        events.append(_named(1, "eager, operation by operation"))
    for op, where, begin, duration in eager:
        events.append(_stretch(1, 1, op, begin, duration, {"where": where}))
    whole = replay_us(graph)
    events.append(_named(2, "one replay of the graph"))
    events.append(_stretch(2, 0, "replay", 0.0, whole, {"nodes": capture.n_nodes}))
    at = 0.0
    for step in capture.steps:
        at = _place_nodes(events, step, at)
    saved = (eager[-1][2] + eager[-1][3] if eager else 0.0) - whole
    kernels = sum(node.device_us or 0.0 for node in capture.nodes)
    other = {"replay_us": whole, "kernels_us": kernels, "eager_us": whole + saved if eager else None}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _place_nodes(events: list[dict[str, Any]], step: InspectedStep, at: float) -> float:
    if not step.is_segment:
        events.append(_stretch(2, 1, f"host: {step.op}", at, 1.0, {"where": step.where, "why": step.why}))
        return at + 1.0
    ends: dict[int, float] = {}
    rows: list[float] = []
    for node in step.nodes:
        begin = max((ends.get(parent, at) for parent in node.after), default=at)
        row = next((i for i, end in enumerate(rows) if end <= begin + 1e-9), len(rows))
        if row == len(rows):
            rows.append(0.0)
        us = node.device_us or 0.0
        rows[row] = ends[node.index] = begin + us
        events.append(_stretch(2, 1 + row, node.name or node.kind, begin, us, _about(node)))
    return max(ends.values(), default=at)


def _about(node: InspectedNode) -> dict[str, Any]:
    return {"op": node.op, "where": node.where, "kernel": node.kernel, "grid": node.grid, "block": node.block}


def _stretch(pid: int, tid: int, name: str, begin: float, us: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin, "dur": us, "args": args}


def _named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def trace(graph: Any, path: str | Path | None = None) -> dict[str, Any]:
    """A Chrome trace of a graph's nodes, for Perfetto (ui.perfetto.dev). Each node is run and timed separately.

    Args:
        graph: a captured ``torch.cuda.CUDAGraph``.
        path: where to also write it as JSON; None for nowhere.

    Returns:
        The trace: ``traceEvents`` with times in microseconds.

    Raises:
        ValueError: its nodes cannot be run one by one here, or nothing was captured.
    """
    if getattr(graph, "_program", None) is None or process.current() is None:
        raise ValueError("gfxgraph.trace needs a torch.cuda.CUDAGraph captured after gfxgraph.enable()")
    made = chrome_trace(graph)
    if path is not None:
        files.write(Path(path), json.dumps(made))
    return made
