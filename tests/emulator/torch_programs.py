"""Programs for a torch built for ROCm, run by test_torch.py as

    rocjitsu --config gfx1030.json -- python torch_programs.py NAME
    rocjitsu --config gfx1030.json -- python -m gfxgraph run torch_programs.py NAME
    python torch_programs.py NAME --simulate hip-7.14

Each prints one line of JSON. They use plain torch alone, so that the same program can be put before AMD's runtime,
before the simulator's account of it, and before both with gfxgraph.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

N = 4


def first_steps() -> dict[str, Any]:
    """A tensor, a stream, an event."""
    ones = torch.zeros(N, device="cuda") + 1
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        doubled = ones * 2
        event.record()
    event.synchronize()
    torch.cuda.current_stream().wait_event(event)
    return {"hip": torch.version.hip, "sum": (ones + doubled).tolist(), "queried": event.query()}


def graph(is_warm: bool = True) -> dict[str, Any]:
    """A capture, and replays that follow their input; the random numbers differ from replay to replay."""
    weight = torch.arange(N * N, device="cuda", dtype=torch.float32).view(N, N) / 8
    x = torch.ones(N, N, device="cuda")
    if is_warm:
        x @ weight
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = torch.softmax(x @ weight, -1) + x.sum()
        noise = torch.rand(N, device="cuda")
    found, draws = [], []
    for value in (1.0, 2.0, -0.5):
        x.fill_(value)
        captured.replay()
        found.append(torch.equal(y, torch.softmax(x @ weight, -1) + x.sum()))
        draws.append(tuple(noise.tolist()))
    return {"equal": found, "different_draws": len(set(draws)), "graph": type(captured).__module__}


def cold_graph() -> dict[str, Any]:
    """The same, whose capture holds the process's first matrix product: hipBLASLt begins there, which HIP refuses."""
    return graph(is_warm=False)


def two_streams() -> dict[str, Any]:
    """A fork and a join inside a capture, two graphs in one pool."""
    x = torch.ones(N, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            theirs = x * 3
        ours = x + 1
        torch.cuda.current_stream().wait_stream(side)
        y = ours + theirs
    with torch.cuda.graph(second, pool=first.pool()):
        z = y * 2
    x.fill_(5)
    first.replay()
    second.replay()
    return {"y": y.tolist(), "z": z.tolist()}


def _unjoined(x: Any, stream: Any, kept: list[Any]) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        kept.append(x + 5)


def _on_the_default_stream(x: Any, stream: Any, kept: list[Any]) -> None:
    with torch.cuda.stream(torch.cuda.default_stream()):
        kept.append(torch.ones(N, device="cuda") + 1)


def _query_recorded(x: Any, stream: Any, kept: list[Any]) -> None:
    event = torch.cuda.Event()
    event.record(stream)
    event.query()


UNSAFE: dict[str, Callable[[Any, Any, list[Any]], object]] = {
    "nothing": lambda x, stream, kept: None,
    "item": lambda x, stream, kept: x.sum().item(),
    "to the host": lambda x, stream, kept: x.cpu(),
    "from the host": lambda x, stream, kept: x.copy_(torch.zeros(N)),
    "from pinned memory": lambda x, stream, kept: x.copy_(torch.zeros(N).pin_memory(), non_blocking=True),
    "nonzero": lambda x, stream, kept: x.nonzero(),
    "synchronize": lambda x, stream, kept: torch.cuda.synchronize(),
    "synchronize the stream": lambda x, stream, kept: stream.synchronize(),
    "synchronize another stream": lambda x, stream, kept: torch.cuda.Stream().synchronize(),
    "allocate": lambda x, stream, kept: kept.append(torch.empty(64 << 20, device="cuda", dtype=torch.uint8)),
    "empty_cache": lambda x, stream, kept: torch.cuda.empty_cache(),
    "query a new event": lambda x, stream, kept: torch.cuda.Event().query(),
    "query a recorded event": _query_recorded,
    "random numbers": lambda x, stream, kept: kept.append(torch.rand(N, device="cuda")),
    "on the default stream": _on_the_default_stream,
    "mem_get_info": lambda x, stream, kept: torch.cuda.mem_get_info(),
    "an unjoined stream": _unjoined,  # last: its stream captures for ever
}


def unsafe() -> dict[str, list[str]]:
    """What each call does to a capture: at the call, at its end, at a replay, and to the stream afterwards."""
    return {name: _attempt(body) for name, body in UNSAFE.items()}


def _attempt(body: Callable[[Any, Any, list[Any]], object]) -> list[str]:
    torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that failed leaves its own current
    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x, kept = torch.ones(N, device="cuda"), []  # type: ignore[var-annotated]
    torch.cuda.synchronize()
    said = ["ok", "ok", "none", "ok"]
    try:
        with torch.cuda.graph(captured, stream=stream):
            y = x * 2
            said[0] = _outcome(lambda: body(x, stream, kept))
            y = y + 1
    except RuntimeError as error:
        said[1] = _words(error)
    else:
        x.fill_(3)
        captured.replay()
        said[2] = "right" if y.tolist() == [7.0] * N else f"wrong: {y.tolist()}"

    def again() -> None:
        with torch.cuda.stream(stream):
            assert (torch.ones(2, device="cuda") + 1).tolist() == [2.0, 2.0]

    said[3] = _outcome(again)
    return said


def died_in_a_pool() -> dict[str, Any]:
    """A call that nobody sees ends a capture: what that and a later capture of the same pool give."""
    runtime = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libamdhip64.so" in line))
    x, pool = torch.ones(N, device="cuda"), torch.cuda.graph_pool_handle()
    found: dict[str, Any] = {}
    for name in ("died", "after it"):
        captured = torch.cuda.CUDAGraph()

        def whole(captured: Any = captured, name: str = name) -> None:
            with torch.cuda.graph(captured, pool=pool):
                y = x * 2
                if name == "died":
                    found["status"] = runtime.hipDeviceSynchronize()
                y = y + torch.rand(N, device="cuda") * 0
            x.fill_(5.0)
            captured.replay()
            found["result of " + name] = y.tolist()

        found[name] = _outcome(whole)
    return found


def _outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return _words(error)
    return "ok"


def _words(error: RuntimeError) -> str:
    """The runtime's own words; torch's say CUDA or HIP according to its build."""
    line = str(error).splitlines()[0]
    return line.partition(" error: ")[2] if " error: " in line else line.partition(".")[0]


PROGRAMS = {each.__name__: each for each in (first_steps, graph, cold_graph, two_streams, unsafe, died_in_a_pool)}

if __name__ == "__main__":
    if "--simulate" in sys.argv:
        import gfxgraph_simulator as simulator

        simulator.install(sys.argv[sys.argv.index("--simulate") + 1], guards_memcpy_and_sync=True)
    print("FACTS " + json.dumps(PROGRAMS[sys.argv[1]]()))
