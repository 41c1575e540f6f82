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
    from gfxgraph.callables.signature import RunEagerly

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
        agreed = gfxgraph.Agreed(step)
        right = run(agreed, 20)
        x, times = inputs(1, rank), {}
        by_ranks = gfxgraph.graphed(step, ranks=True)
        right &= run(by_ranks, 4)
        ways = {
            "eager": step,
            "graph": agreed,
            "ranks": by_ranks,
            "bare": lambda _: agreed.graphs[0].replay(),
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
        agreed = gfxgraph.Agreed(lambda x: dist.all_reduce(x))
        for turn in range(6):
            x = inputs(turn, rank)
            agreed(x)
            right &= bool(torch.equal(x, sum(inputs(turn, of) for of in range(size))))
        return {"right": right and len(agreed.graphs) == 1}

    def capture_fails_on_one():
        def failing(x):
            if rank == 1 and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("planted in the capture of rank 1")
            return step(x)

        agreed = gfxgraph.Agreed(failing)
        right = run(agreed, 8)
        return {"right": right and len(agreed.graphs) == 1 - rank, "why": agreed.explain()}

    def graphed_by_ranks():
        g = gfxgraph.graphed(step, ranks=True)
        right = run(g, 20, rows=lambda turn: (64, 10)[turn % 2])
        found = g.stats()
        return {"right": right and found["captures"] == 2, "kept": found}

    def replay_fails_on_one():
        agreed = gfxgraph.Agreed(step)

        def failing(instance):
            raise RunEagerly("planted")

        def plant(turn):
            if turn == 3 and rank == 1:
                (entry,) = agreed._entries.values()
                entry.replay = failing
                agreed._forget_fast()

        right = run(agreed, 16, before=plant)
        return {"right": right, "eager": agreed.stats()["eager"]}

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

    failed = False
    for scenario in (
        plain_graph_with_all_reduce, captured_all_reduce, written_arguments, graphed_by_ranks, capture_fails_on_one,
        replay_fails_on_one,
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
