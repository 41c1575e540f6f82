"""What one rank does in test_ddp.py: training under DistributedDataParallel, each way beside eager's, one JSON line each.

Run by the test, not collected: ``python ddp_program.py PROFILE`` with the environment that torchrun sets; ``nccl``
in the place of a profile takes a GPU a rank.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

import gfxgraph
from gfxgraph.callables.distributed import why_apart
from gfxgraph.callables.graphed import Graphed
from tests.conformance.bench import frames

torch.set_num_threads(1)
ON_GPUS = sys.argv[1] == "nccl"
if ON_GPUS:
    torch.cuda.set_device(int(os.environ["RANK"]))
    gfxgraph.enable(allow_cuda=True, validate=False)
else:
    gfxgraph.enable(simulate=sys.argv[1], validate=False)
dist.init_process_group(
    "nccl" if ON_GPUS else "gloo",
    timeout=datetime.timedelta(seconds=40 * float(os.environ.get("GFXGRAPH_TEST_PATIENCE", 1))),
    device_id=torch.device("cuda", torch.cuda.current_device()) if ON_GPUS else None,
)
RANK, N = dist.get_rank(), 24


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).cuda()


def batch(turn):
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * turn + RANK)).cuda()


def stepping(model, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def bf16(state, bucket):
    """As torch's own hook for slow networks."""
    flat = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    dist.all_reduce(flat)
    done = torch.futures.Future()
    done.set_result(flat.to(bucket.buffer().dtype))
    return done


def accumulated(model, parameters):
    """Two batches a step, the first without a reduction."""
    optimizer = torch.optim.SGD(parameters, lr=0.05)

    def step(x):
        optimizer.zero_grad()
        with model.no_sync():
            model(x).square().mean().backward()
        loss = model(x + 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class Skips(nn.Module):
    """One of its layers is used by no call."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = net(), nn.Linear(4, 4).cuda()

    def forward(self, x):
        return F.gelu(self.used(x))


def ddp_of_graphed(make=net, hook=None, step=stepping, **options):
    def made(is_graphed):
        inner = make()
        graphed = gfxgraph.graphed(inner) if is_graphed else inner
        model = DDP(graphed, **options)
        if hook is not None:
            model.register_comm_hook(None, hook)
        return step(model, model.parameters()), graphed

    return made


def graphed_of_ddp(**options):
    def made(is_graphed):
        model = DDP(net())
        graphed = gfxgraph.graphed(model, **options) if is_graphed else model
        return stepping(graphed, model.parameters()), graphed

    return made


def training_step(is_graphed):
    model = DDP(net())
    step = stepping(model, model.parameters())
    graphed = gfxgraph.TrainingStep(step) if is_graphed else step
    return graphed, graphed


WAYS = {
    "of graphed": ddp_of_graphed(),
    "small buckets": ddp_of_graphed(bucket_cap_mb=0.001),
    "bucket view": ddp_of_graphed(gradient_as_bucket_view=True),
    "unused": ddp_of_graphed(Skips, find_unused_parameters=True),
    "static graph": ddp_of_graphed(static_graph=True),
    "no_sync": ddp_of_graphed(step=accumulated),
    "comm hook": ddp_of_graphed(hook=bf16),
    "graphed ddp": graphed_of_ddp(),
    "graphed ddp, ranks": graphed_of_ddp(ranks=True),
    "training step": training_step,
}


def timed(step, x):
    dist.barrier()
    begun = time.thread_time()
    loss = step(x).detach().reshape(())
    return loss.cpu(), (time.thread_time() - begun) * 1e3


for name, way in WAYS.items():
    row = {"scenario": name, "rank": RANK}
    try:
        (mine, graphed), (eager, _) = way(True), way(False)
        losses, times = ([], []), ([], [])
        for turn in range(N):
            for which, step in enumerate((mine, eager)):
                loss, took = timed(step, batch(turn))
                losses[which].append(loss)
                times[which].append(took)
        row["is_right"] = torch.allclose(torch.stack(losses[0]), torch.stack(losses[1]), rtol=1e-4, atol=1e-6)
        row["ms"] = [round(statistics.median(each[-12:]), 3) for each in times]
        row["frames"] = [frames(lambda: step(batch(0))) for step in (mine, eager)]  # noqa: B023
        of = Graphed.of(graphed) if isinstance(graphed, nn.Module) else graphed
        row["stats"] = {part: of.stats()[part] for part in ("captures", "replays", "eager", "pieces")}
    except Exception as error:  # noqa: BLE001  the test shows it
        row["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(row), flush=True)


def captured(is_own_stream):
    """A plain capture of forward and backward; a replay's gradients beside eager's."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model = DDP(net())
        for turn in range(11):
            model.zero_grad(set_to_none=False)
            model(batch(turn)).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    x, graph = batch(0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side if is_own_stream else None):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
    eager = DDP(net())
    for turn in range(3):
        x.copy_(batch(turn))
        graph.replay()
        eager.zero_grad()
        eager(batch(turn)).square().mean().backward()
    pairs = zip(model.parameters(), eager.parameters())
    return all(torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6) for a, b in pairs)


for name, is_own_stream in (("captured", True), ("captured elsewhere", False)):
    row = {"scenario": name, "rank": RANK}
    try:
        row["is_right"] = captured(is_own_stream)
    except RuntimeError as error:
        row["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(row), flush=True)

from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

mesh = DeviceMesh.from_group(dist.group.WORLD, "cuda" if ON_GPUS else "cpu")
sharded = nn.Sequential(fully_shard(net() if ON_GPUS else nn.Linear(4, 4), mesh=mesh))
row = {"scenario": "fsdp2", "rank": RANK, "why": why_apart(sharded)}
if ON_GPUS:
    eager = DDP(net())
    steps = stepping(gfxgraph.graphed(sharded), sharded.parameters()), stepping(eager, eager.parameters())
    row["is_right"] = all(torch.allclose(*(step(batch(turn)) for step in steps), rtol=1e-4) for turn in range(N))
print(json.dumps(row), flush=True)
dist.barrier()
os._exit(0)
