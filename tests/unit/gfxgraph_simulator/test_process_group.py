"""torch.distributed on the simulated card."""

from __future__ import annotations

import subprocess
import sys
import textwrap

RANK = textwrap.dedent("""
    import os
    import sys
    import time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from gfxgraph_simulator import install

    rank, file = int(sys.argv[1]), sys.argv[2]
    installed = install("cuda")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    x = torch.full((3,), rank + 1.0, device="cuda")
    dist.broadcast(x, 1)
    assert x.tolist() == [2.0] * 3
    x.fill_(rank + 1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        dist.all_reduce(y)
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, y + rank)
    for k in (1.0, 5.0):
        x.fill_(k * (rank + 1))
        graph.replay()
        assert y.tolist() == [6 * k] * 3, y
        assert [part[0].item() for part in parts] == [6 * k, 6 * k + 1], parts
    # Gloo's own end is not what is tested: where one rank goes first, the other's threads may abort it.
    Path(f"{file}-{rank}").touch()
    while not Path(f"{file}-{1 - rank}").exists():
        time.sleep(0.01)
    os._exit(0)
""")


def test_gloo_serves_device_tensors(tmp_path):
    """Collectives of two ranks, eagerly and in a captured graph; without a kernel of ours Gloo ends the process."""
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")]) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]


WAITS = textwrap.dedent("""
    import torch
    import torch.distributed as dist
    from gfxgraph_simulator import install

    installed = install("cuda")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(3, device="cuda")
    dist.all_reduce(x, async_op=True).wait()

    def captured(body):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                return body()
        except RuntimeError as error:
            return str(error.__context__ or error).splitlines()[0]

    def launched():
        y = x * 2
        return y, dist.all_reduce(y, async_op=True)

    def waiting():
        y, work = launched()
        work.wait()
        return y, work

    assert captured(lambda: launched()[0] + 1) == "CUDA error: capturing stream has unjoined work"
    y, work = captured(waiting)
    assert "CUDA error" in captured(lambda: (x + 1, work.wait()))  # its capture has ended
    outside = dist.all_reduce(x, async_op=True)
    assert "uncaptured work" in captured(lambda: (x + 1, outside.wait()))
    assert captured(lambda: dist.all_reduce(x)) is None
""")


def test_a_capture_must_wait_for_what_it_launches():
    """An asynchronous collective runs on another stream: unjoined without a wait, and of its own capture only."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WAITS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
