"""What one rank does in test_ranks.py: every scenario in turn, one JSON line each. Run by the test, not collected.

A collective on the simulated device is a kernel that no dispatcher sees, as NCCL's are: captured with the
graph, and met by the other rank's whenever it runs. Ranks that do different things hang in it.
"""

from __future__ import annotations

import datetime
import json
import os
import sys

import torch
import torch.distributed as dist

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.callables.signature import RunEagerly
from gfxgraph.errors import ReplayError
from gfxgraph.process import process

gfxgraph.enable(simulate=sys.argv[1], validate=False)
dist.init_process_group(
    "gloo", timeout=datetime.timedelta(seconds=40 * float(os.environ.get("GFXGRAPH_TEST_PATIENCE", 1)))
)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
SIM = simulator.active()


def all_reduce(x):
    SIM.launch_opaque("all_reduce", lambda t: dist.all_reduce(t), x)
    return x


def step(x):
    return all_reduce(x * (RANK + 1)) + 1


def inputs(turn, rank, rows=4):
    return torch.full((rows, 2), float(turn + 10 * rank))


def wanted(turn, rows=4):
    return sum(inputs(turn, rank, rows) * (rank + 1) for rank in range(SIZE)) + 1


def run(agreed, turns, rows=lambda turn: 4, before=lambda turn: None):
    right = True
    for turn in range(turns):
        before(turn)
        n = rows(turn)
        got = agreed(inputs(turn, RANK, n).cuda())
        right &= torch.equal(got.cpu(), wanted(turn, n))
    return right


def shown(agreed):
    return [entry.label for entry in agreed._entries.values() if entry.is_captured]


def events(kind):
    return [event["reason"] for event in gfxgraph.stats()["events"] if event["kind"] == kind]


def plain():
    agreed = gfxgraph.Agreed(step)
    return {"right": run(agreed, 8), "graphs": shown(agreed), "replays": gfxgraph.stats()["replay_count"]}


def arguments_are_written():
    """The caller's own tensor is written and handed back; two of one memory are."""

    def reduced(x):
        all_reduce(x)
        return x, x * 2

    right, agreed = True, gfxgraph.Agreed(reduced)
    for turn in range(6):
        x = inputs(turn, RANK).cuda()
        got, twice = agreed(x)
        want = sum(inputs(turn, rank) for rank in range(SIZE))
        right &= torch.equal(x.cpu(), want) and got is x and torch.equal(twice.cpu(), 2 * want)
    both = gfxgraph.Agreed(lambda a, b: (a.mul_(2), all_reduce(b * 1))[1])
    for turn in range(4):
        base = inputs(turn, RANK).cuda()
        got = both(base[:3], base[1:])
        want = sum(inputs(turn, rank)[1:] for rank in range(SIZE)) * torch.tensor([[2.0], [2.0], [1.0]])
        right &= torch.equal(got.cpu(), want)
    return {"right": right, "graphs": shown(agreed), "eager": both.stats()["eager"]}


def calls_go_the_fast_path():
    """Between two checks a call asks nobody; other torch settings are seen all the same."""
    agreed, right = gfxgraph.Agreed(step), True
    right &= run(agreed, 4)
    agreed._graphed = None
    right &= run(agreed, 5)
    del agreed._graphed
    right &= run(agreed, 4)
    with torch.inference_mode():
        right &= run(agreed, 3)
    return {"right": right, "replays": agreed.stats()["replays"], "captures": agreed.stats()["captures"]}


def capture_fails_on_one():
    agreed = gfxgraph.Agreed(step)

    def plant(turn):
        if turn == 1 and RANK == 1:
            SIM.faults.fail_nth("end", 1, 901)

    return {"right": run(agreed, 8, before=plant), "graphs": shown(agreed), "why": dict(agreed.stats()["eager"])}


def out_of_memory_on_one():
    agreed = gfxgraph.Agreed(step)

    def plant(turn):
        if turn == 1 and RANK == 0:
            SIM.faults.oom_nth(3)  # its input, the graph's input, the first inside the capture

    right = run(agreed, 8, before=plant)
    SIM.faults.oom_at_allocation = None
    return {"right": right, "graphs": shown(agreed), "why": dict(agreed.stats()["eager"])}


def one_rank_joins():
    """Copies are nodes of one rank's graph and launches of the other's; and no graph is run more often than called."""
    joins = process.current().joins
    joins[0] = RANK == 0
    agreed, alone = (gfxgraph.Agreed(each) for each in (step, lambda x: x * (RANK + 1)))
    right = run(agreed, 8)
    begun = SIM.faults.calls["launch"]
    for turn in range(8):
        right &= torch.equal(alone(inputs(turn, RANK).cuda()).cpu(), inputs(turn, RANK) * (RANK + 1))
    del joins[0]
    names = [name for name in ("go", "in0") if name in agreed._fast.__globals__]
    return {"right": right, "names": names, "launches": SIM.faults.calls["launch"] - begun}


def launch_fails_on_one():
    agreed = gfxgraph.Agreed(step)

    def plant(turn):
        if turn == 3 and RANK == 1:
            for n in (1, 2):  # the call's own launch, and that of the graph without its copies
                SIM.faults.fail_nth("launch", n, 999)

    return {"right": run(agreed, 12, before=plant), "graphs": shown(agreed), "fallbacks": events("fallback")}


def replay_fails_for_good_on_one():
    agreed = gfxgraph.Agreed(step)
    seen = []

    def plant(turn):
        seen.append(len(shown(agreed)))
        if turn == 3 and RANK == 1:
            (entry,) = agreed._entries.values()

            def failing(instance):
                raise RunEagerly("its replay failed") from ReplayError(
                    "no_fallback_left", tried="graph launch", where="", quote="planted"
                )

            entry.replay = failing
            agreed._forget_fast()

    right = run(agreed, 12, before=plant)
    return {"right": right, "graphs": shown(agreed), "why": dict(agreed.stats()["eager"]), "seen": seen}


def one_rank_changes():
    """A closure's number, first on one rank, then on both: right at once, and graphs again after the next check."""
    factor, seen = RANK + 1.0, []

    def scaled(x):
        return all_reduce(x * factor) + 1

    agreed = gfxgraph.Agreed(scaled)
    factors, right = [1.0, 2.0], True
    for turn in range(24):
        if turn == 4:
            factors[1] = 5.0
        if turn == 14:
            factors = [3.0, 4.0]
        factor = factors[RANK]
        got = agreed(inputs(turn, RANK).cuda()).cpu()
        right &= torch.equal(got, sum(inputs(turn, rank) * factors[rank] for rank in range(SIZE)) + 1)
        seen.append(len(shown(agreed)))
    return {"right": right, "seen": seen, "eager": agreed.stats()["eager"], "captures": agreed.stats()["captures"]}


def effects_on_one():
    """A function that counts in Python on one rank: captured on none, counted at each call."""
    counted = []

    def counting(x):
        if RANK == 1:
            counted.append(1)
        return all_reduce(x * (RANK + 1)) + 1

    agreed = gfxgraph.Agreed(counting)
    return {"right": run(agreed, 6), "graphs": shown(agreed), "why": dict(agreed.stats()["eager"]), "n": len(counted)}


def collective_on_the_host():
    def through_the_host(x):
        host = (x * (RANK + 1)).cpu()
        dist.all_reduce(host)
        return host.cuda() + 1

    agreed = gfxgraph.Agreed(through_the_host)
    return {"right": run(agreed, 6), "graphs": shown(agreed), "why": dict(agreed.stats()["eager"])}


def a_program_with_a_host_collective():
    """Not agreed about: one capture, split at the collective, which every replay must wait for."""
    x = torch.zeros(2048, device="cuda")

    def body():
        host = (x * (RANK + 1)).cpu()
        dist.all_reduce(host)
        return host.cuda() + 1

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = body()
    right = True
    for turn in range(20):
        x.fill_(float(turn))
        graph.replay()
        right &= bool((y.cpu() == turn * sum(range(1, SIZE + 1)) + 1).all())
    return {"right": right}


def graphed_by_ranks():
    """What users write: one callable, agreed on by the ranks, with a capture that fails on one."""
    plain = gfxgraph.graphed(step, ranks=True)
    right = run(plain, 6, rows=lambda turn: 4 - turn // 3)
    kept = plain.stats()
    failing = gfxgraph.graphed(step, ranks=True)

    def plant(turn):
        if turn == 1 and RANK == 1:
            SIM.faults.fail_nth("end", 1, 901)

    right &= run(failing, 6, before=plant)
    return {"right": right, "kept": kept, "failed": failing.stats(), "why": failing.explain()}


for scenario in (
    plain, arguments_are_written, calls_go_the_fast_path, one_rank_joins, graphed_by_ranks, capture_fails_on_one, out_of_memory_on_one, launch_fails_on_one, replay_fails_for_good_on_one,
    collective_on_the_host, a_program_with_a_host_collective, one_rank_changes, effects_on_one,
):  # fmt: skip
    gfxgraph.reset_stats()
    found = scenario()
    dist.barrier()
    print(json.dumps({"scenario": scenario.__name__, "rank": RANK, **found}), flush=True)
dist.destroy_process_group()
