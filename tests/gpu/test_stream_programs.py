"""Random programs of several streams in stock captures of torch: legal on this GPU, and the same under gfxgraph.

    python -m pytest tests/gpu/test_stream_programs.py

Side streams that wait for each other end the process in HIP's end of capture; CUDA takes every one of them.
"""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from gfxgraph.selftest.native import stream_programs as programs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
N = 1000


def replayed(seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """What the buffers should hold after each of four replays, and what they hold."""
    program = programs.make(seed)
    streams = [torch.cuda.Stream() for _ in range(program.n_streams)]
    events = [torch.cuda.Event() for _ in range(programs.N_EVENTS)]
    buffers = [torch.full((N,), number, dtype=torch.int32, device="cuda") for number in range(program.n_buffers)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=streams[0]):
        for kind, stream, *given in program.steps:
            with torch.cuda.stream(streams[stream]):
                if kind == programs.ADD:
                    torch.add(buffers[given[1]], given[2], out=buffers[given[0]])
                elif kind == programs.FILL:
                    buffers[given[0]].fill_(0x01010101 * given[1])
                elif kind == programs.COPY:
                    buffers[given[0]].copy_(buffers[given[1]])
                elif kind == programs.RECORD:
                    events[given[0]].record(streams[stream])
                else:
                    streams[stream].wait_event(events[given[0]])
    values, expected, seen = list(range(program.n_buffers)), [], []
    for _ in range(programs.N_REPLAYS):
        graph.replay()
        torch.cuda.synchronize()
        values = program.after(values, [0])
        expected.append(values)
        seen.append([int(buffer[0]) if bool((buffer == buffer[0]).all()) else -1 for buffer in buffers])
    return expected, seen


def has_mutual_wait(program: programs.StreamProgram, joins_parent: bool) -> bool:
    """Whether HIP's end of this capture follows its streams round a circle.

    HIP makes a stream that waits for another's event that stream's fork, the capture's own excepted, and ends each
    stream after its forks. ``joins_parent``: not so where the other is that stream's fork already (7.2).
    """
    forks: dict[int, set[int]] = {}
    parent: dict[int, int] = {}
    by: dict[int, int] = {}
    for kind, stream, *given in program.steps:
        if kind == programs.RECORD:
            by[given[0]] = stream
        elif kind == programs.WAIT and stream:
            other = by[given[0]]
            if joins_parent and parent.get(other) == stream:
                continue
            forks.setdefault(other, set()).add(stream)
            parent[stream] = other
    return _turns_round(0, forks, ())


def _turns_round(stream: int, forks: dict[int, set[int]], above: tuple[int, ...]) -> bool:
    if stream in above:
        return True
    return any(_turns_round(fork, forks, (*above, stream)) for fork in sorted(forks.get(stream, ())))


@pytest.mark.parametrize("is_on", [False, True])
def test_random_streams_are_legal_and_right(is_on: bool) -> None:
    """200 programs, 151 of which have streams that wait for each other; with gfxgraph no call falls back."""
    seeds = range(200)
    assert sum(has_mutual_wait(programs.make(seed), False) for seed in seeds) == 151
    if is_on:
        gfxgraph.enable(allow_cuda=True)
    try:
        wrong = []
        for seed in seeds:
            expected, seen = replayed(seed)
            if expected != seen:
                wrong.append((seed, expected, seen))
        assert not wrong
        assert not is_on or gfxgraph.stats()["fallback_count"] == 0
    finally:
        if is_on:
            gfxgraph.disable()
