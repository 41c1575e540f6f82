"""Eight threads that capture, replay, draw, allocate, wait, free and fail at random; each result is compared with eager.

Run:  python -m tests.property.faults_threads [--platform hip|cuda|gpu] [--seconds N] [--first SEED] [--out FILE]
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import functools
import gc
import json
import platform as machine
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gfxgraph
from gfxgraph.capture import capture_lock
from gfxgraph.process import process

MODES = ("global", "thread_local", "relaxed")
HANGS_AFTER_S = 60.0


class Asked(Exception):
    """What a program raises inside its own capture."""


def eager(x: Any) -> Any:
    y = x * 2 + 1
    return y + y.relu().sum()


def same(got: Any, wanted: Any, what: str) -> None:
    if not torch.allclose(got, wanted):
        raise AssertionError(f"{what}: {got.flatten()[:3].tolist()}, eager {wanted.flatten()[:3].tolist()}")


class Worker:
    """One thread's graphs and what it does with them."""

    def __init__(self, seed: int, shared: Any, streams: tuple[Any, Any]) -> None:
        self.rng = random.Random(seed)
        self.stream, self.own = streams
        self.kept: list[tuple[Any, Any, Any, Callable[[Any], Any]]] = []
        self.shared = shared
        self.graphed = gfxgraph.graphed(lambda a: a.sin() * 3, assume_pure=True)
        self.weight = torch.full((8,), 2.0, device="cuda", requires_grad=True)
        self.did: collections.Counter[str] = collections.Counter()

    def fresh(self) -> Any:
        return torch.full((8,), float(self.rng.randrange(1, 50)), device="cuda")

    def capture(self, body: Callable[[Any], Any] = eager, wanted: Callable[[Any], Any] | None = None) -> None:
        x, graph = self.fresh(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=self.rng.choice(MODES)):
            out = body(x)
        self.kept.append((graph, x, out, wanted or body))
        if len(self.kept) > 6:
            self.kept.pop(self.rng.randrange(6))
        self.replay()

    def capture_split(self) -> None:
        self.capture(lambda x: x * x.max().item() + 1, lambda x: x * x.max() + 1)

    def capture_rand(self) -> None:
        self.capture(lambda x: x + torch.rand_like(x) * 0, lambda x: x)

    def capture_product(self) -> None:
        w = torch.eye(8, device="cuda")
        self.capture(lambda x: x.view(1, 8) @ w, lambda x: x.view(1, 8))

    def capture_fails(self) -> None:
        x = self.fresh()
        try:
            with torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=self.stream, capture_error_mode=self.rng.choice(MODES)
            ):
                x * 2
                if self.rng.random() < 0.5:
                    raise Asked
                x.view(1, 8) @ torch.ones(3, 3, device="cuda")
        except Asked:
            return
        except RuntimeError as error:
            if any(text in str(error) for text in ("mat1", "size", "shape", "reduction dim")):
                return
            raise

    def replay(self) -> None:
        if not self.kept:
            return
        graph, x, out, wanted = self.rng.choice(self.kept)
        x.fill_(float(self.rng.randrange(1, 50)))
        graph.replay()
        same(out, wanted(x), "a replay")

    def draw(self) -> None:
        found = torch.rand(64, device="cuda")
        if not bool(((found >= 0) & (found < 1)).all()) or len(set(found.tolist())) < 32:
            raise AssertionError(f"drawn: {found[:4].tolist()}")

    def draw_own(self) -> None:
        made = torch.Generator("cuda")
        seed = self.rng.randrange(1000)
        a = torch.randn(8, device="cuda", generator=made.manual_seed(seed))
        same(torch.randn(8, device="cuda", generator=made.manual_seed(seed)), a, "numbers of a seed")

    def dropout(self) -> None:
        torch.nn.functional.dropout(self.fresh(), 0.5)

    def allocate(self) -> None:
        big = torch.empty(self.rng.choice((1, 4, 32)) << 20, dtype=torch.uint8, device="cuda").fill_(3)
        if int(big[-1]) != 3 or int(big[0]) != 3:
            raise AssertionError("memory of somebody else's")

    def pinned(self) -> None:
        host = torch.empty(1024, pin_memory=True).fill_(2)
        same(host.to("cuda", non_blocking=True).sum(), torch.tensor(2048.0, device="cuda"), "pinned memory")

    def wait(self) -> None:
        event = torch.cuda.Event()
        event.record()
        self.rng.choice((torch.cuda.synchronize, self.stream.synchronize, event.synchronize, event.query))()

    def cache(self) -> None:
        self.rng.choice(
            (torch.cuda.empty_cache, torch.cuda.memory_stats, torch.cuda.mem_get_info, torch.cuda.memory_snapshot)
        )()

    def free(self) -> None:
        if self.kept:
            graph = self.kept.pop()[0]
            if self.rng.random() < 0.5:
                graph.reset()

    def cycle(self) -> None:
        """The collector frees it, in whichever thread."""
        if self.kept:
            held: list[Any] = [self.kept.pop()]
            held.append(held)

    def collect(self) -> None:
        gc.collect()

    def call(self) -> None:
        a = self.fresh()
        same(self.graphed(a), a.sin() * 3, "a graphed call")

    def call_shared(self) -> None:
        a = self.fresh()
        same(self.shared(a), a.cos() + 2, "a call that threads share")

    def call_new(self) -> None:
        made, a = gfxgraph.graphed(eager, assume_pure=True), self.fresh()
        for _ in range(3):
            same(made(a), eager(a), "a new graphed call")

    def gradient(self) -> None:
        a = self.fresh()
        self.weight.grad = None
        (a * self.weight).sum().backward()
        same(self.weight.grad, a, "a gradient")

    def dies(self) -> None:
        """A thread that ends with an open capture."""

        def work() -> None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(self.stream):
                graph.capture_begin(capture_error_mode=mode)
                torch.ones(4, device="cuda")

        mode = self.rng.choice(MODES)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    ACTIONS = {
        capture: 12, capture_split: 4, capture_rand: 4, capture_product: 3, capture_fails: 4, replay: 30, draw: 6,
        draw_own: 3, dropout: 3, allocate: 6, pinned: 3, wait: 6, cache: 4, free: 4, cycle: 4, collect: 1, call: 10,
        call_shared: 10, call_new: 2, gradient: 4, dies: 1,
    }  # fmt: skip

    def run(self, until: float) -> None:
        actions, weights = zip(*self.ACTIONS.items())
        with torch.cuda.stream(self.own):
            while time.monotonic() < until:
                action = self.rng.choices(actions, weights)[0]
                self.now = action.__name__, time.monotonic()
                action(self)
                self.did[action.__name__] += 1
                torch.cuda.current_stream().synchronize()
        self.now = "ended", time.monotonic()


@functools.cache
def streams(n_threads: int) -> list[tuple[Any, Any]]:
    """Two for each thread, once for all seeds: torch's 33rd stream is the first one again."""
    return [(torch.cuda.Stream(), torch.cuda.Stream()) for _ in range(n_threads)]


def run(seed: int, seconds: float, n_threads: int = 8) -> dict[str, Any]:
    """One seed; says what was done, and what was wrong."""
    shared = gfxgraph.graphed(lambda a: a.cos() + 2, assume_pure=True)
    workers = [Worker(seed * 100 + i, shared, each) for i, each in enumerate(streams(n_threads))]
    errors: list[str] = []
    until = time.monotonic() + seconds

    def guarded(worker: Worker) -> None:
        try:
            worker.run(until)
        except BaseException as error:
            errors.append(f"{worker.now[0]}: " + "".join(traceback.format_exception(error))[-3000:])

    threads = [threading.Thread(target=guarded, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        busy = [w for w, thread in zip(workers, threads) if thread.is_alive() and hasattr(w, "now")]
        late = max((time.monotonic() - w.now[1] for w in busy), default=0.0)
        slowest = max(slowest, late)
        if late > HANGS_AFTER_S:
            faulthandler.dump_traceback(all_threads=True)
            errors.append(f"hangs: {[w.now[0] for w in busy]}")
            break
    if not errors or not errors[-1].startswith("hangs"):
        workers[0].kept.clear()
        del workers[1:]
        gc.collect()
        if capture_lock._alive() or capture_lock.captures or process.sessions():
            errors.append(f"left: owners {len(capture_lock._alive())}, captures {len(capture_lock.captures)}")
        x, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = eager(x)
        graph.replay()
        if not torch.equal(out, eager(x)):
            errors.append("a later capture is wrong")
    did: collections.Counter[str] = collections.Counter()
    for worker in workers:
        did += worker.did
    kinds = collections.Counter(event["kind"] for event in gfxgraph.stats()["events"])
    return {"seed": seed, "slowest_s": round(slowest, 1), "events": dict(kinds), "did": dict(did), "wrong": errors}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", default="hip", help="hip, cuda (both simulated) or gpu")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--each", type=float, default=15, help="seconds for one seed")
    parser.add_argument("--switch", type=float, default=0.005, help="seconds until Python's threads are switched")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(asked.switch)
    if asked.platform == "gpu":
        gfxgraph.enable(allow_cuda=True, validate=False)
    else:
        gfxgraph.enable(simulate=asked.platform, validate=False)
    deadline, seed, runs = time.monotonic() + asked.seconds, asked.first, []
    while time.monotonic() < deadline:
        runs.append(run(seed, min(asked.each, deadline - time.monotonic())))
        print(json.dumps(runs[-1])[:6000], file=sys.stderr, flush=True)
        seed += 1
        if any(each.startswith("hangs") for each in runs[-1]["wrong"]):
            break
    result = {
        "device": torch.cuda.get_device_name() if asked.platform == "gpu" else f"none (simulator, {asked.platform})",
        "torch": torch.__version__,
        "python": machine.python_version(),
        "switched every": asked.switch,
        "captures": gfxgraph.stats()["capture_count"],
        "replays": gfxgraph.stats()["replay_count"],
        "runs": runs,
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    sys.stdout.flush()
    return 1 if any(each["wrong"] for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
