"""Captures over several streams, made at random from a number, and what they must leave in memory.

Problem: a capture may fork into streams, join them in any order and let them wait for one another, and what a runtime
makes of that is seen only by making many. Idea: a program is a list of steps on three to five streams and a few
buffers; a clock for each stream says what is ordered before what, and a step touches only buffers whose other uses
are ordered with it. So there is one right result, whatever runs at the same time, and plain Python has it.

``make`` needs no runtime: the programs also run on torch's streams (tests/gpu/test_stream_programs.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from ctypes import byref, c_int, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import Any

from gfxgraph.driver.graphs import GraphDriver
from gfxgraph.errors import DriverError
from gfxgraph.selftest.native.hip_calls import HipCalls
from gfxgraph.types import CaptureStatus

ADD, FILL, COPY, RECORD, WAIT = "add", "fill", "copy", "record", "wait"
Step = tuple[Any, ...]
N_EVENTS = 6
N_REPLAYS = 4
"""Two of the graph as captured, two after its exec was updated with a second capture, of other numbers."""


@dataclass(frozen=True)
class StreamProgram:
    """``steps``: (ADD, stream, out, source, constant) | (FILL, stream, out, byte) | (COPY, stream, out, source) |
    (RECORD, stream, event) | (WAIT, stream, event). Stream 0 is the capture's own."""

    seed: int
    n_streams: int
    n_buffers: int
    steps: tuple[Step, ...]

    def after(self, values: Sequence[int], constants: Sequence[int]) -> list[int]:
        """What the buffers hold after one replay; ``constants`` are added to those of the steps."""
        held = list(values)
        for kind, _, *given in self.steps:
            if kind == ADD:
                out, source, constant = given
                held[out] = held[source] + constant + constants[out % len(constants)]
            elif kind == FILL:
                held[given[0]] = 0x01010101 * given[1]
            elif kind == COPY:
                held[given[0]] = held[given[1]]
        return held


@dataclass
class _Maker:
    chance: random.Random
    n_streams: int
    n_buffers: int
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clocks = [[0] * self.n_streams for _ in range(self.n_streams)]
        self.inside = [0]
        self.marks: dict[int, list[int]] = {}
        self.writes = [(0, 0)] * self.n_buffers
        self.reads: list[dict[int, int]] = [{} for _ in range(self.n_buffers)]

    def may_read(self, stream: int, buffer: int) -> bool:
        who, when = self.writes[buffer]
        return self.clocks[stream][who] >= when

    def may_write(self, stream: int, buffer: int) -> bool:
        return self.may_read(stream, buffer) and all(
            self.clocks[stream][who] >= when for who, when in self.reads[buffer].items()
        )

    def work(self, stream: int) -> None:
        outs = [buffer for buffer in range(self.n_buffers) if self.may_write(stream, buffer)]
        sources = [buffer for buffer in range(self.n_buffers) if self.may_read(stream, buffer)]
        if not outs:
            return
        out, source = self.chance.choice(outs), self.chance.choice(sources or outs)
        kind = self.chance.choice((ADD, ADD, COPY, FILL))
        if kind == COPY and out == source:
            kind = ADD
        self.clocks[stream][stream] += 1
        now = self.clocks[stream][stream]
        if kind != FILL:
            self.reads[source][stream] = now
        self.writes[out], self.reads[out] = (stream, now), {}
        last = {ADD: (source, self.chance.randint(1, 9)), COPY: (source,), FILL: (self.chance.randint(1, 9),)}[kind]
        self.steps.append((kind, stream, out, *last))

    def record(self, stream: int, event: int) -> None:
        self.marks[event] = list(self.clocks[stream])
        self.steps.append((RECORD, stream, event))

    def wait(self, stream: int, event: int) -> None:
        self.clocks[stream] = [max(pair) for pair in zip(self.clocks[stream], self.marks[event])]
        if stream not in self.inside:
            self.inside.append(stream)
        self.steps.append((WAIT, stream, event))

    def wait_for(self, stream: int, other: int) -> None:
        event = self.chance.randrange(N_EVENTS)
        self.record(other, event)
        self.wait(stream, event)


def make(seed: int) -> StreamProgram:
    """The program of a number: the same on every machine."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    n_streams = chance.randint(3, 5)
    maker = _Maker(chance, n_streams, chance.randint(n_streams + 1, 2 * n_streams))
    maker.work(0)
    for _ in range(chance.randint(20, 45)):
        stream = chance.choice(maker.inside)
        roll = chance.random()
        if roll < 0.6:
            maker.work(stream)
        elif roll < 0.75 and len(maker.inside) < n_streams:
            fork = chance.choice([each for each in range(n_streams) if each not in maker.inside])
            maker.wait_for(fork, stream)
        elif roll < 0.92 and len(maker.inside) > 1:
            other = chance.choice([each for each in maker.inside if each != stream])
            maker.wait_for(stream, other)
            if chance.random() < 0.5:  # and the other for it
                maker.work(stream)
                maker.wait_for(other, stream)
        elif maker.marks:
            maker.wait(stream, chance.choice(sorted(maker.marks)))  # an event recorded earlier
    sides = maker.inside[1:]
    chance.shuffle(sides)
    for side in sides:
        maker.wait_for(0, side)
    maker.work(0)
    return StreamProgram(seed, n_streams, maker.n_buffers, tuple(maker.steps))


class Refused(Exception):
    """The runtime refused a call: ``NAME STATUS``."""


def run(driver: GraphDriver, gpu: HipCalls, seed: int, how: str) -> dict[str, object]:
    """Capture, instantiate, launch twice, update, launch twice.

    Args:
        how: "plain" makes the runtime's calls; "driver" goes through the driver room, as gfxgraph's captures do.

    Returns:
        ``outcome``: "right"; "wrong", with what was expected and seen; "refused", by which call with what.
    """
    program = make(seed)
    told: dict[str, object] = {"streams": program.n_streams, "steps": len(program.steps)}
    try:
        return told | {"outcome": "right"} | _StreamRun(driver, gpu, program, how).all()
    except Refused as refused:
        return told | {"outcome": "refused", "by": str(refused)}
    except DriverError as error:
        return told | {"outcome": "refused", "by": error.code}


class _StreamRun:
    def __init__(self, driver: GraphDriver, gpu: HipCalls, program: StreamProgram, how: str) -> None:
        self.driver, self.gpu, self.program, self.is_driver = driver, gpu, program, how == "driver"
        self.streams = [gpu.stream() for _ in range(program.n_streams)]
        self.events = [gpu.event() for _ in range(N_EVENTS)]
        self.buffers = [gpu.buffer(number) for number in range(program.n_buffers)]
        self.mode = program.seed % 3

    def ask(self, symbol: str, *args: object) -> None:
        status = self.gpu.status(symbol, *args)
        if status:
            raise Refused(f"{symbol} {status}")

    def capture(self, constants: Sequence[int]) -> int:
        self.driver.begin_capture(self.streams[0], self.mode)
        marks: dict[int, tuple[int, ...]] = {}
        for kind, stream, *given in self.program.steps:
            handle = self.streams[stream]
            if kind == ADD:
                out, source, constant = given
                value = constant + constants[out % len(constants)]
                self.gpu.add_by_module(self.buffers[out], self.buffers[source], value, handle)
            elif kind == FILL:
                self.gpu.memset(self.buffers[given[0]], given[1], handle)
            elif kind == COPY:
                self.gpu.copy(self.buffers[given[0]], self.buffers[given[1]], handle)
            elif kind == RECORD:
                self.ask("hipEventRecord", self.events[given[0]], handle)
                marks[given[0]] = self.driver.frontier(handle)
            elif self.is_driver and stream and self.captures(handle):
                self.driver.wait_for(handle, marks[given[0]])
            else:
                self.ask("hipStreamWaitEvent", handle, self.events[given[0]], 0)
        graph = c_void_p()
        self.ask("hipStreamEndCapture", self.streams[0], byref(graph))
        return graph.value or 0

    def captures(self, stream: int) -> bool:
        return self.driver.capture_info(stream).status is CaptureStatus.ACTIVE

    def all(self) -> dict[str, object]:
        chance = random.Random(self.program.seed)  # noqa: S311 - no secret
        values = list(range(self.program.n_buffers))
        graph_exec = 0
        told: dict[str, object] = {}
        for part in range(2):
            constants = [0] if not part else [chance.randint(1, 5) for _ in range(3)]
            graph = self.capture(constants)
            told["nodes"] = len(self.driver.nodes(graph))
            if graph_exec and self.gpu.status(
                "hipGraphExecUpdate", graph_exec, graph, byref(c_void_p()), byref(c_int())
            ):
                told["update"] = "refused, instantiated anew"
                graph_exec = 0
            graph_exec = graph_exec or self.instantiate(graph)
            for _ in range(N_REPLAYS // 2):
                self.ask("hipGraphLaunch", graph_exec, self.streams[0])
                self.ask("hipStreamSynchronize", self.streams[0])
                values = self.program.after(values, constants)
                seen = [self.gpu.read(buffer) for buffer in self.buffers]
                if seen != values:
                    return told | {"outcome": "wrong", "expected": values, "seen": seen}
            self.ask("hipGraphDestroy", graph)
        return told

    def instantiate(self, graph: int) -> int:
        made = c_void_p()
        self.ask("hipGraphInstantiateWithFlags", byref(made), graph, c_ulonglong(0))
        return made.value or 0

