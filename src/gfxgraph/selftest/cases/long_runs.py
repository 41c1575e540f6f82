"""Over many replays and graphs: results, memory, the settings that users get, and speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import gfxgraph
from gfxgraph.process import process
from gfxgraph.selftest.bench import MIB, RTOL, Bench, case, expect, same, skip

# -- memory ------------------------------------------------------------------------------------------------------


@case(limit_s=180)
def dropped_graphs(bench: Bench) -> None:
    """A hundred graphs captured, replayed and dropped give their memory back."""
    x = bench.randn(256, 1024)

    def one() -> None:
        graph, y = bench.capture(lambda: (x * 2).sin() + x)
        graph.replay()
        same([y[0]], [((x * 2).sin() + x)[0]], "a replay and eager execution")

    for _ in range(2):
        one()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        one()
    torch.cuda.empty_cache()
    grown = torch.cuda.memory_reserved() - before
    bench.figures.update(reserved_grown=grown, device_grown=free - torch.cuda.mem_get_info()[0])
    expect(grown <= 2 * MIB, f"{grown} bytes were not given back")


_left_alive: list[object] = []


@case()
def alive_at_exit(bench: Bench) -> None:
    """A process that ends with graphs and a memory pool alive ends with status 0."""
    x, pool = bench.randn(64), torch.cuda.MemPool()
    first, _ = bench.follows_eager(lambda: x + 1, [x])
    second, _ = bench.capture(lambda: x * 2 if x.sum().item() > -1e9 else x, pool=pool.id)
    second.replay()
    _left_alive.extend([first, second, pool])


# -- the kinds of wrong replays that ROCm releases are known for -------------------------------------------------
# Another corrupted replays in one process out of five: every case is a process, and compares with eager.


@case(limit_s=240)
def many_replays(bench: Bench) -> None:
    """300 replays of a graph of 300 nodes, all launched without a wait between, equal eager execution."""
    n_replays, n_nodes = (100 if bench.is_simulated else 300), 300
    table, x = bench.randn(n_nodes, 64), torch.zeros(64, device="cuda")

    def body() -> Tensor:
        y = x
        for row in table.unbind(0)[: n_nodes // 2]:
            y = (y + row).sin()
        return y

    bench.warm_up(body)
    inputs = bench.randn(n_replays, 64)
    wanted = torch.stack([_after(x, value, body) for value in inputs])
    graph, y = bench.capture(body)
    bench.figures["n_nodes"] = sum(segment.n_nodes for segment in graph._program.segments)
    got = torch.empty_like(wanted)
    for source, target in zip(inputs, got):
        x.copy_(source)
        graph.replay()
        target.copy_(y)
    _same_rows(got, wanted)


@case(limit_s=180)
def copy_before_replay(bench: Bench) -> None:
    """A host-to-device copy issued right before a replay has arrived when the replay reads it."""
    n_replays, width = 200, 1 << 16 if not bench.is_simulated else 1 << 10
    x = torch.zeros(width, device="cuda")
    graph, y = bench.capture(lambda: (x * 2).sin() + 1)
    for kind in ("pinned", "pageable"):
        host = bench.host(n_replays, width)
        host = host.pin_memory() if kind == "pinned" else host
        wanted = (host.to("cuda") * 2).sin() + 1
        got = torch.empty_like(wanted)
        torch.cuda.synchronize()
        for source, target in zip(host, got):
            x.copy_(source, non_blocking=kind == "pinned")
            graph.replay()
            target.copy_(y)
        _same_rows(got, wanted, f" ({kind} memory)")


def _after(x: Tensor, value: Tensor, body: Callable[[], Tensor]) -> Tensor:
    x.copy_(value)
    return body().clone()


def _same_rows(got: Tensor, wanted: Tensor, where: str = "") -> None:
    wrong = (got != wanted).any(1).nonzero().flatten().tolist()
    expect(not wrong, f"{len(wrong)} of {len(got)} replays differ from eager{where}, first {wrong[:10]}")


# -- as users get it ---------------------------------------------------------------------------------------------


@case(validate=None)
def default_settings(bench: Bench) -> None:
    """With the settings that users get, replays equal eager and no validation finds a difference."""
    n_replays = 12
    x, w = bench.randn(64, 64), bench.randn(64, 64)
    bench.follows_eager(lambda: (x @ w).relu().sum(0), [x], times=n_replays, rtol=RTOL[torch.float32])
    bench.follows_eager(lambda: torch.dropout(x, 0.5, True), [x], times=n_replays)
    asked, found = process.require().validate_replays, gfxgraph.stats()
    bench.figures.update(validate_replays=asked, validations=found["validations"])
    wanted = 2 * min(asked, n_replays)
    expect(found["validations"] == wanted, f"{found['validations']} validations were made instead of {wanted}")


@case(limit_s=120)  # the last: no process is being prepared beside it either
def replay_overhead(bench: Bench) -> None:
    """CPU time of a replay against torch's own: a figure to report, not a test."""
    if bench.is_simulated:
        skip("the simulator says nothing about speed")
    x, base = bench.randn(64), process.require().base
    for n_ops in (1, 100):

        def body(n: int = n_ops) -> Tensor:
            y = x
            for _ in range(n):
                y = y + 1
            return y

        bench.warm_up(body)
        ours, _ = bench.capture(body)
        stock, _ = bench.capture(body, base())
        times: dict[str, list[float]] = {"gfxgraph": [], "stock": []}
        for _ in range(9):
            for name, graph in (("stock", stock), ("gfxgraph", ours)):
                times[name].append(_replay_us(graph))
        bench.figures[f"replay_us_{n_ops}_nodes"] = {
            name: {"median": round(statistics.median(each), 3), "all": [round(us, 3) for us in each]}
            for name, each in times.items()
        }


def _replay_us(graph: Any, n: int = 200) -> float:
    replay = graph.replay
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(n):
        replay()
    took = time.perf_counter() - begun
    torch.cuda.synchronize()
    return took / n * 1e6
