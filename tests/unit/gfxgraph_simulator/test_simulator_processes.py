"""Whole processes: what ran before install, and how a process ends."""

from __future__ import annotations

import subprocess
import threading

import torch
from tests.warm_python import warm_python

import gfxgraph_simulator as simulator


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([warm_python(), "-c", program], capture_output=True, text=True, timeout=120)


def test_backward_works_where_autograd_ran_before_install() -> None:
    """The engine has no thread for the card then; the caller's thread does the work."""
    done = run(
        "import torch\n"
        "torch.ones(1, requires_grad=True).sum().backward()\n"
        "import gfxgraph_simulator as simulator\n"
        "simulator.install()\n"
        "x = torch.ones(3, device='cuda', requires_grad=True)\n"
        "(x * 2).sum().backward()\n"
        "assert x.grad.tolist() == [2, 2, 2]\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_process_may_end_in_the_middle_of_a_capture() -> None:
    """No order of destruction at exit takes the process down."""
    done = run(
        "import torch\n"
        "import gfxgraph_simulator as simulator\n"
        "simulator.install('hip')\n"
        "model, x = torch.nn.Linear(3, 3).cuda(), torch.ones(2, 3, device='cuda')\n"
        "torch.cuda.set_stream(torch.cuda.Stream())\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "graph.capture_begin()\n"
        "model(x).sum().backward()\n"
    )
    assert done.returncode == 0, done.stderr


def test_threads_share_the_card(sim: simulator.Simulator) -> None:
    """Threads that allocate, compute and read at once leave no block behind."""
    before, wrong = torch.cuda.memory_allocated(), []

    def work(number: int) -> None:
        for _ in range(50):
            if (torch.full((64,), float(number), device="cuda") * 2).sum().item() != 128 * number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and torch.cuda.memory_allocated() == before
