"""Two GPUs and NCCL: captured all-reduce under torch.distributed, with failures planted on one rank.

    PYTHONPATH=src python tests/gpu/two_gpus.py [--out FILE]   # starts two ranks; exit code 0 where all is right

Each scenario prints one line of JSON from each rank: the results are compared with what the sum over ranks
must be, bit for bit (integers in float32). A hang ends at the time limit with a non-zero exit code. Written
for torch 2.11 on two H200.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 150


def start() -> int:
    """Start one process for each GPU and wait for all."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29541"),
        "WORLD_SIZE": "2",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # Multicast stays off, as machines with shared links ask for; and a capture registers no buffers with
        # other ranks, which may not be capturing.
        "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0"),
        "NCCL_GRAPH_REGISTER": os.environ.get("NCCL_GRAPH_REGISTER", "0"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    deadline, codes, rows = time.monotonic() + LIMIT_S, [], []
    for process in ranks:
        try:
            said, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            codes.append(process.returncode)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            codes.append("hung")
        rows += [line for line in said.splitlines() if line.startswith('{"scenario"')]
    print("\n".join([*rows, json.dumps({"exit_codes": codes})]))
    if "--out" in sys.argv:
        found = {"exit_codes": codes, "scenarios": [json.loads(row) for row in rows]}
        Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if codes == [0, 0] else 1


def main() -> int:
    import torch
    import torch.distributed as dist

    import gfxgraph
    from gfxgraph.callables.distributed.ranks import Ranks, RanksMissing
    from gfxgraph.callables.signature import MISS
    from gfxgraph.errors import ReplayError

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    gfxgraph.enable(allow_cuda=True, validate=False)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=torch.device("cuda", rank))

    def step(x):
        y = x * (rank + 1)
        dist.all_reduce(y)
        return y + 1

    def inputs(turn, of, rows=64):
        return torch.full((rows, 256), float(turn + 10 * of), device="cuda")

    def wanted(turn, rows=64):
        return sum(inputs(turn, of, rows) * (of + 1) for of in range(size)) + 1

    def run(agreed, turns, rows=lambda turn: 64, before=lambda turn: None):
        right = True
        for turn in range(turns):
            before(turn)
            n = rows(turn)
            right &= bool(torch.equal(agreed(inputs(turn, rank, n)), wanted(turn, n)))
        return right

    def captured_all_reduce():
        agreed = gfxgraph.Agreed(step, Ranks(name="plain"))
        right = run(agreed, 20)
        x, times = inputs(1, rank), {}
        (bucket,) = agreed._known.values()
        by_ranks = gfxgraph.graphed(step, ranks=True)
        right &= run(by_ranks, 4)
        ways = {
            "eager": step,
            "graph": agreed,
            "ranks": by_ranks,
            "bare": lambda _: bucket.entry.first.graph.replay(),
        }
        samples = {name: [] for name in ways}
        for _ in range(15):
            for name, call in ways.items():
                torch.cuda.synchronize()
                begun = time.thread_time_ns()
                for _ in range(20):
                    call(x)
                samples[name].append((time.thread_time_ns() - begun) / 20e3)
        for name, found in samples.items():
            times[f"{name}_cpu_us"] = [round(each, 1) for each in (min(found), statistics.median(found), max(found))]
        return {"right": right and len(agreed.graphs) == 1, **times}

    def written_arguments():
        """All-reduce in place, as most programs have it: the caller's tensor holds the sum after each call."""
        right = True
        agreed = gfxgraph.Agreed(lambda x: dist.all_reduce(x), Ranks(name="in place"))
        for turn in range(6):
            x = inputs(turn, rank)
            agreed(x)
            right &= bool(torch.equal(x, sum(inputs(turn, of) for of in range(size))))
        return {"right": right and len(agreed.graphs) == 1}

    def capture_fails_on_one():
        calls = []

        def failing(x):
            calls.append(1)
            if rank == 1 and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("planted in the capture of rank 1")
            return step(x)

        agreed = gfxgraph.Agreed(failing, Ranks(name="capture"))
        right = run(agreed, 8)
        return {"right": right and agreed.graphs == [], "why": agreed.why_eager}

    def graphed_by_ranks():
        g = gfxgraph.graphed(step, ranks=True, buckets=[16, 64])
        right = run(g, 20, rows=lambda turn: (64, 10)[turn % 2])
        found = g.stats()
        del g
        calls = []

        def failing(x):
            calls.append(1)
            if rank == 0 and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("planted in the capture of rank 0")
            return step(x)

        h = gfxgraph.graphed(failing, ranks=Ranks(name="graphed, failing"))
        right &= run(h, 8)
        right = right and found["graphs"] == 2 and h.stats()["graphs"] == 0
        return {"right": right, "kept": found, "why": h.explain()}

    def replay_fails_on_one():
        agreed = gfxgraph.Agreed(step, Ranks(name="replay"), check_every=4)

        def plant(turn):
            if turn == 3 and rank == 1:
                (bucket,) = agreed._known.values()

                def failing():
                    raise ReplayError("no_fallback_left", tried="graph launch", where="", quote="planted")

                bucket.entry.first.graph = type("Dead", (), {"_program": None, "replay": staticmethod(failing)})()
                bucket.fast = lambda args, kwargs: MISS

        right = run(agreed, 16, before=plant)
        return {"right": right and agreed.graphs == [], "why": agreed.why_eager}

    def buckets():
        agreed = gfxgraph.Agreed(step, Ranks(name="sizes"), buckets=[16, 64, 128])
        right, sizes = True, [(3, 5), (16, 1), (64, 17), (100, 2), (7, 128), (5, 3), (1, 100)] * 3
        for turn, pair in enumerate(sizes):
            got, n = agreed(inputs(turn, rank, pair[rank])), pair[rank]
            want = torch.ones(n, 256, device="cuda")
            for of in range(size):
                rows = min(pair[of], n)
                want[:rows] += inputs(turn, of, rows) * (of + 1)
            right &= bool(torch.equal(got, want))
        return {"right": right and len(agreed.graphs) == 3, "graphs": agreed.graphs}

    def one_has_less_room():
        agreed = gfxgraph.Agreed(step, Ranks(name="room"), max_graphs=2 if rank == 1 else 16)
        right = run(agreed, 24, rows=lambda turn: 16 * (1 + turn // 2 % 4))
        return {"right": right and len(agreed.graphs) == 2, "graphs": agreed.graphs}

    def plain_graph_with_all_reduce():
        x = inputs(0, rank)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = step(x)
        right = True
        for turn in range(20):
            x.copy_(inputs(turn, rank))
            graph.replay()
            right &= bool(torch.equal(y, wanted(turn)))
        return {"right": right and gfxgraph.stats()["split_count"] == 0}

    def one_does_not_answer():
        ranks = Ranks(name="late", timeout_s=2.0)
        if rank == 1:
            time.sleep(5)
        try:
            ranks.gather("anything", rank)
            missing = False
        except RanksMissing:
            missing = True
        agreed = gfxgraph.Agreed(step, ranks)
        return {"right": run(agreed, 4) and missing and agreed.graphs == []}

    failed = False
    for scenario in (
        plain_graph_with_all_reduce, captured_all_reduce, written_arguments, graphed_by_ranks, capture_fails_on_one,
        replay_fails_on_one, buckets, one_has_less_room, one_does_not_answer,
    ):  # fmt: skip
        gfxgraph.reset_stats()
        found = scenario()
        torch.cuda.synchronize()
        dist.barrier()
        failed |= not found["right"]
        if scenario is captured_all_reduce:
            found["machine"] = [torch.cuda.get_device_name(), torch.__version__, torch.cuda.nccl.version()]
        print(json.dumps({"scenario": scenario.__name__, "rank": rank, **found}), flush=True)
    # Graphs that hold collectives go before the communicators do.
    import gc

    gc.collect()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main() if "RANK" in os.environ else start())
