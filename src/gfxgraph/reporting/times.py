"""The device time of each node of a graph.

Nodes are timed with the node walk: one is enabled, launched between two events, and waited for. This works even if a
profiler shows no kernels of a replay. The overhead of launching a single node is measured with the whole graph
and subtracted: times are scaled so that none is negative, never so that they add up.

Everything that the walks change outside the graph is restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gfxgraph.capture.replay.captured_program import Program
from gfxgraph.capture.replay.node_walk import can_walk, walk
from gfxgraph.capture.replay.replay_steps import SegmentStep
from gfxgraph.capture.replay.rollback import Rollback
from gfxgraph.guard.tensor_names import TensorNames
from gfxgraph.reporting.inspection import InspectedCapture
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
