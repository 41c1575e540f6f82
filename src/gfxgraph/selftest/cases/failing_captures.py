"""Captures that fail, and replays that are checked: how both end, and what they leave behind."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import gfxgraph
from gfxgraph.capture.replay.node_walk import can_walk, raw_exec, walk
from gfxgraph.process import process
from gfxgraph.selftest.bench import MIB, Bench, case, expect, put_back, raises, same, skip

# -- failures ----------------------------------------------------------------------------------------------------


@case(may_fall_back=True)
def unseen_wait(bench: Bench) -> None:
    """A capture killed by a wait below torch, in the runtime library, is recovered; the same pool works on."""
    x, pool = bench.randn(64), torch.cuda.graph_pool_handle()

    def body() -> Tensor:
        a = x * 2 + torch.rand(64, device="cuda")
        if torch.cuda.is_current_stream_capturing():
            bench.unseen_wait()
        return (a + 1).relu()

    bench.follows_eager(body, [x], pool=pool)
    bench.still_usable(pool)
    bench.figures["fallbacks"] = gfxgraph.stats()["fallbacks"]


@case()
def out_of_memory(bench: Bench) -> None:
    """Out of memory inside a capture is torch's own exception; pool, stream and memory are as before."""
    x, pool = bench.randn(64), torch.cuda.graph_pool_handle()
    n_bytes = 2 * torch.cuda.get_device_properties(0).total_memory
    keep, _ = bench.capture(lambda: x + 1, pool=pool)

    def body() -> Tensor:
        y = x * 2
        return y + torch.empty(n_bytes, dtype=torch.uint8, device="cuda")[0]

    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    raises(torch.OutOfMemoryError, lambda: bench.capture(body, pool=pool))
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved() - reserved
    expect(left <= 2 * MIB, f"{left} bytes of the failed capture were not given back")
    bench.still_usable(pool)
    keep.replay()


@case(may_fall_back=True)
def unjoined_stream(bench: Bench) -> None:
    """A capture that ends with a side stream not joined is an error or is right, and leaves the process clean."""
    x, side = bench.randn(64), torch.cuda.Stream()

    def body() -> Tensor:
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (a * 2).sum()
        return a * 3

    try:
        graph, y = bench.capture(body)
    except RuntimeError as error:
        bench.figures["outcome"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    else:
        bench.figures["outcome"] = "recovered"
        bench.refill(x)
        graph.replay()
        same([y], [(x + 1) * 3], "the recovered graph and eager execution")
    torch.cuda.synchronize()
    bench.still_usable()


# -- validation and the nodes ------------------------------------------------------------------------------------


@case(may_fall_back=True)
def validation_catches(bench: Bench) -> None:
    """A graph with a node switched off is caught: op and line named, eager's result given, the graph retired."""
    driver = _driver_with("set_node_enabled")

    x = bench.randn(256)

    def body() -> Tensor:
        a = x * 2
        b = a.sin()
        return b + 1

    graph, y = bench.capture(body)
    graph.replay()
    same([y], [body()], "the replay before the damage and eager execution")
    entry = graph._program.segments[0].tape.entries[1]
    driver.set_node_enabled(raw_exec(graph._program.segments[0].graph), entry.last_nodes[-1], False)
    bench.refill(x)
    logging.getLogger("gfxgraph").setLevel(logging.CRITICAL)  # the alarm is meant, and not for a reader's eyes
    expect(not graph.validate(), "the wrong replay was not noticed")
    same([y], [body()], "what the caller got and eager execution")
    found = gfxgraph.stats()
    expect(found["validation_failures"] == 1 and found["graphs_retired"] == 1, f"counted as {found}")
    named = [(event["op"], event["where"]) for event in found["events"] if event["kind"] == "fallback"]
    expect(
        any("add" in op and "failing_captures.py" in where for op, where in named),
        f"named {named} instead of add",
    )
    bench.refill(x)
    graph.replay()
    same([y], [body()], "the retired graph and eager execution")


@case()
def node_walk(bench: Bench) -> None:
    """Running a graph node by node gives to the bit what one replay gives."""
    _driver_with("set_node_enabled")

    x, w = bench.randn(64, 64), bench.randn(64, 64)

    def body() -> Tensor:
        a = (x @ w).relu()
        return functional.layer_norm(a, (64,)) + torch.dropout(a, 0.5, True)

    bench.warm_up(body)
    graph, y = bench.capture(body)
    segment = graph._program.segments[0]
    if not can_walk(segment):
        skip("the graph has nodes that this runtime cannot switch on and off")
    for _ in range(2):
        bench.refill(x)
        rng = torch.cuda.get_rng_state()
        graph.replay()
        wanted = y.clone()
        put_back([y], [torch.zeros_like(y)], rng)
        walk(segment, graph._program)
        torch.cuda.synchronize()
        same([y], [wanted], "node walk and replay")
    bench.figures["n_nodes"] = segment.n_nodes


def _driver_with(feature: str) -> Any:
    state = process.require()
    if feature in state.driver.missing:
        skip(f"this runtime has no {feature}")
    if not state.decisions.node_walk:
        skip("the defect table forbids node walks here")
    return state.driver
