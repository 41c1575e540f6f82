"""Plain graph programs as engines, users and the documentation write them, and what may go wrong around one.

Each scenario is a function that raises where an answer is not eager's, or where the process is not usable afterwards.
They run in the simulator (test_plain_scenarios.py) and on a GPU, each in a process of its own (tests/gpu/scenarios.py).
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import gfxgraph

SCENARIOS: dict[str, tuple[str, Callable[[], None]]] = {}
"""By name: the family, and the scenario."""


def scenario(family: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(func: Callable[[], None]) -> Callable[[], None]:
        SCENARIOS[func.__name__] = family, func
        return func

    return note


engine, fault, documentation = scenario("engine"), scenario("fault"), scenario("documentation")


def captured(body: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = body()
    return graph, result


def ones(n: int = 4) -> torch.Tensor:
    return torch.ones(n, device="cuda")


def near(got: Any, want: Any) -> None:
    got, want = torch.as_tensor(got).cpu().double(), torch.as_tensor(want).cpu().double()
    assert got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-5), (got, want)


def usable() -> None:
    """Later captures, replays, random numbers and eager work are right."""
    x = ones()
    graph, y = captured(lambda: x * 2 + 1)
    x.fill_(5.0)
    graph.replay()
    near(y, [11.0] * 4)
    torch.cuda.synchronize()
    near(torch.rand(4, device="cuda") * 0, [0.0] * 4)
    assert not torch.cuda.is_current_stream_capturing()
    assert _get_current_dispatch_mode() is None


def follows(body: Callable[[torch.Tensor], Any], inputs: list[list[float]], may_refuse: bool = False) -> None:
    """Replays give what eager gives, or (where they may) GuardMismatch naming this file and both values."""
    x = torch.tensor(inputs[0], device="cuda")
    body(x)
    graph, got = captured(lambda: body(x))
    for values in inputs:
        x.copy_(torch.tensor(values))
        try:
            graph.replay()
        except gfxgraph.GuardMismatch as error:
            assert may_refuse and values != inputs[0], error
            assert "plain_scenarios.py" in str(error) and " now" in str(error), error
            continue
        near(got, body(x))
    usable()


def model() -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    made = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return made.cuda()


def trains(make_step: Callable[[nn.Module, torch.Tensor], Callable[[], torch.Tensor]]) -> None:
    """A captured training step leaves the parameters that the same steps leave eagerly."""
    batches = [torch.randn(4, 6, generator=torch.Generator().manual_seed(k)).cuda() for k in range(6)]
    mine, others = model(), model()
    x, y = batches[0].clone(), batches[0].clone()
    step, eager = make_step(mine, x), make_step(others, y)
    for k in range(2):
        x.copy_(batches[k])
        y.copy_(batches[k])
        step()
        eager()
    graph, loss = captured(step)
    for batch in batches[2:]:
        x.copy_(batch)
        y.copy_(batch)
        graph.replay()
        near(loss.detach(), eager().detach())
        for a, b in zip(mine.parameters(), others.parameters()):
            near(a.detach(), b.detach())
    usable()


INPUTS = [
    [3.0, -1.0, 2.0, 0.5, -2.0, 4.0],
    [1.0, 1.5, -2.0, 0.25, 3.0, -1.0],
    [-1.0, 2.0, 5.0, -0.5, 1.0, 0.75],
    [3.0, -1.0, 2.0, 0.5, -2.0, 4.0],
]


# -- engines ----------------------------------------------------------------------------------------------------


@engine
def decode_with_a_cache_by_number() -> None:
    x, cache, position = ones(), torch.zeros(8, 4, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")

    def step() -> torch.Tensor:
        row = position.item()
        cache[row % 8] = x
        position.add_(1)
        return cache[: row % 8 + 1].sum(0)

    graph, y = captured(step)
    for k in range(1, 6):
        x.fill_(float(k))
        graph.replay()
        near(y, [float(sum(range(1, k + 1)))] * 4)
    usable()


@engine
def attention_over_a_growing_cache() -> None:
    x, cache, length = ones(6), torch.zeros(8, 6, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")

    def step() -> torch.Tensor:
        n = length.item() % 8 + 1
        cache[:n] += x
        length.add_(1)
        keys = cache[None, None, :n]
        return F.scaled_dot_product_attention(x.view(1, 1, 1, 6), keys, keys)

    graph, y = captured(step)
    twin = torch.zeros(8, 6, device="cuda")
    for n in range(1, 7):
        graph.replay()
        twin[:n] += x
        near(y, F.scaled_dot_product_attention(x.view(1, 1, 1, 6), twin[None, None, :n], twin[None, None, :n]))
    usable()


@engine
def top_p_sampling() -> None:
    def keep(x: torch.Tensor) -> torch.Tensor:
        ordered, places = F.softmax(x, 0).sort(descending=True)
        n = (ordered.cumsum(0) < 0.8).sum().item() + 1
        kept = torch.zeros_like(x)
        kept[places[:n]] = 1
        return kept

    follows(keep, INPUTS)


@engine
def stop_at_the_last_token() -> None:
    def decode(x: torch.Tensor) -> torch.Tensor:
        tokens = torch.zeros(3, device="cuda")
        for k in range(3):
            token = (x + k).argmax()
            tokens[k] = token
            if token.item() == 2:
                break
        return tokens

    follows(decode, INPUTS, may_refuse=True)


@engine
def experts_by_counts() -> None:
    weights = torch.arange(18, device="cuda").view(3, 6).float()

    def mix(x: torch.Tensor) -> torch.Tensor:
        chosen = (x.abs() * 2).long() % 3
        out = torch.zeros_like(x)
        for expert in range(3):
            rows = (chosen == expert).nonzero().squeeze(1)
            out[rows] = x[rows] * weights[expert][rows]
        return out

    follows(mix, INPUTS)


@engine
def buckets_in_one_pool() -> None:
    pool, x, graphs = torch.cuda.graph_pool_handle(), ones(), []
    for n in (4, 2, 1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x[:n] * x.sum().item()
        graphs.append((graph, y, n))
    for value in (2.0, 3.0):
        x.fill_(value)
        for graph, y, n in graphs:
            graph.replay()
            near(y, [4 * value * value] * n)
    usable()


@engine
def graph_after_graph_in_one_pool() -> None:
    x = ones()
    first, a = captured(lambda: x + 1)
    second, b = captured(lambda: a * 2, pool=first.pool())
    for value in (3.0, 4.0):
        x.fill_(value)
        first.replay()
        second.replay()
        near(b, [2 * (value + 1)] * 4)
    usable()


@engine
def a_capture_inside_a_capture() -> None:
    x, outer, inner = ones(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        a = x + 1
        with torch.cuda.graph(inner):
            b = x * 3
        c = a + 1
    for value in (2.0, 5.0):
        x.fill_(value)
        outer.replay()
        near(c, [value + 2] * 4)
        inner.replay()
        near(b, [3 * value] * 4)
    usable()


@engine
def a_replay_inside_a_capture() -> None:
    x = ones()
    first, a = captured(lambda: x + 1)

    def body() -> torch.Tensor:
        first.replay()
        return a * 2

    second, b = captured(body)
    for value in (2.0, 5.0):
        x.fill_(value)
        second.replay()
        near(b, [2 * (value + 1)] * 4)
    usable()


@engine
def streams_that_fork_and_join() -> None:
    x, sides = ones(), [torch.cuda.Stream(), torch.cuda.Stream()]

    def body() -> torch.Tensor:
        here, made = torch.cuda.current_stream(), []
        for k, side in enumerate(sides):
            side.wait_stream(here)
            with torch.cuda.stream(side):
                made.append(x * (k + 2))
        for side in sides:
            here.wait_stream(side)
        return made[0] + made[1] * made[1].max().item()

    graph, y = captured(body)
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        near(y, [2 * value + 9 * value * value] * 4)
    usable()


@engine
def copies_to_pinned_memory() -> None:
    x, host, done = ones(), torch.zeros(4).pin_memory(), torch.cuda.Event()

    def body() -> torch.Tensor:
        y = x * 2
        host.copy_(y, non_blocking=True)
        done.record()
        return y

    graph, _ = captured(body)
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        near(host, [2 * value] * 4)
    usable()


@engine
def several_sessions_in_threads() -> None:
    right: queue.Queue[bool] = queue.Queue()

    def session(k: int) -> None:
        x = ones()
        for n in range(4):
            graph, y = captured(
                lambda: x * k + x.sum().item(), stream=torch.cuda.Stream(), capture_error_mode="thread_local"
            )
            x.fill_(float(n))
            graph.replay()
            right.put(torch.allclose(y, x * k + 4 * n))

    threads = [threading.Thread(target=session, args=(k,)) for k in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [right.get_nowait() for _ in range(12)] == [True] * 12
    usable()


@engine
def captured_in_one_thread_replayed_in_others() -> None:
    x, box, got = ones(), [], []
    thread = threading.Thread(target=lambda: box.append(captured(lambda: x * x.max().item())))
    thread.start()
    thread.join()
    graph, y = box[0]

    def replay() -> None:
        for value in (2.0, 3.0):
            x.fill_(value)
            graph.replay()
            got.append(y[0].item())

    other = threading.Thread(target=replay)
    other.start()
    other.join()
    assert got == [4.0, 9.0]
    with torch.cuda.stream(torch.cuda.Stream()) as side:
        x.fill_(5.0)
        graph.replay()
        near(y, [25.0] * 4)
    del side
    usable()


@engine
def training_clipped_by_norm() -> None:
    def make(net: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = net(x).pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5, error_if_nonfinite=True)
            optimizer.step()
            return loss

        return step

    trains(make)


@engine
def training_with_a_scaler() -> None:
    def make(net: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=2)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
                loss = net(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    trains(make)


@engine
def training_with_a_capturable_optimizer() -> None:
    def make(net: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        rate = torch.tensor(0.01, device="cuda")
        optimizer = torch.optim.Adam(net.parameters(), lr=rate, capturable=True)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    trains(make)


@engine
def steps_by_hand_scaled_by_a_number() -> None:
    def make(net: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            loss = net(x).pow(2).mean()
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            norm = torch.sqrt(sum(g.pow(2).sum() for g in gradients)).item()
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients):
                    parameter.sub_(gradient, alpha=0.1 / max(1.0, norm))
            return loss

        return step

    trains(make)


@engine
def generators_and_seeds() -> None:
    own = torch.Generator(device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        y = torch.rand(4, device="cuda", generator=own) + torch.rand(4, device="cuda")
    for seed in (1, 2, 1):
        own.manual_seed(seed)
        torch.cuda.manual_seed(seed + 10)
        graph.replay()
        got = y.clone()
        own.manual_seed(seed)
        torch.cuda.manual_seed(seed + 10)
        near(got, torch.rand(4, device="cuda", generator=own) + torch.rand(4, device="cuda"))
    usable()


# -- faults -----------------------------------------------------------------------------------------------------


@fault
def errors_and_interrupts_inside() -> None:
    x = ones()
    for kind in (ValueError, StopIteration, KeyboardInterrupt, MemoryError, SystemExit, torch.OutOfMemoryError):
        for reads in (False, True):
            with contextlib.suppress(kind), torch.cuda.graph(torch.cuda.CUDAGraph()):
                x.add_(1)
                if reads:
                    x.sum().item()
                raise kind("the program's own")
            near(x, [1.0] * 4)
            usable()


@fault
def errors_that_the_program_catches() -> None:
    x = ones()

    def body() -> torch.Tensor:
        try:
            y = x.view(3, 3)
        except RuntimeError:
            y = x * 2
        with contextlib.suppress(RuntimeError):
            y = x + torch.ones(7, device="cuda")
        return y + 1

    graph, z = captured(body)
    x.fill_(3.0)
    graph.replay()
    near(z, [7.0] * 4)
    usable()


@fault
def recursion_without_end() -> None:
    x = ones()

    def deeper(n: int) -> torch.Tensor:
        return deeper(n + 1) + x

    with contextlib.suppress(RecursionError):
        captured(lambda: deeper(0))
    usable()


@fault
def graphs_that_die_inside() -> None:
    x = ones()
    kept = [captured(lambda: x + 1)]

    class Knot:
        pass

    knot = Knot()
    knot.me, knot.graph = knot, captured(lambda: x + 2)
    del knot

    def body() -> torch.Tensor:
        y = x * 2
        kept.clear()
        gc.collect()
        torch.cuda.empty_cache()
        return y + 1

    graph, z = captured(body)
    x.fill_(3.0)
    graph.replay()
    near(z, [7.0] * 4)
    usable()


@fault
def a_raw_capture_that_is_dropped() -> None:
    x = ones()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        y = x * 2
        del graph, y
    gc.collect()
    usable()


@fault
def a_generator_that_is_closed_inside() -> None:
    x = ones()

    def rounds() -> Any:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            y = x * 2
            yield y

    running = rounds()
    next(running)
    running.close()
    del running
    gc.collect()
    usable()


@fault
def misuse_is_refused() -> None:
    graph = torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError):
        graph.replay()
        raise AssertionError("a graph that was never captured replays")
    x = ones()
    graph, y = captured(lambda: x + 1)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with contextlib.suppress(TypeError):
            copied(graph)
            raise AssertionError("a graph was copied")
    x.fill_(4.0)
    graph.replay()
    near(y, [5.0] * 4)
    graph.reset()
    graph.reset()
    with torch.cuda.graph(graph):
        z = x * 3
    graph.replay()
    near(z, [12.0] * 4)
    usable()


@fault
def a_fork_while_graphs_live() -> None:
    x = ones()
    graph, y = captured(lambda: x + x.sum().item())
    graph.replay()
    child = os.fork()
    if not child:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    x.fill_(2.0)
    graph.replay()
    near(y, [10.0] * 4)
    usable()


@fault
def other_processes_and_threads_inside() -> None:
    x, done = ones(), []

    def body() -> torch.Tensor:
        y = x * 2
        subprocess.run([sys.executable, "-c", ""], check=True)
        thread = threading.Thread(target=lambda: done.append(torch.zeros(3).sum().item()))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            return y + sum(pool.map(abs, range(4)))

    graph, z = captured(body)
    x.fill_(2.0)
    graph.replay()
    near(z, [10.0] * 4)
    assert done == [0.0]
    usable()


@fault
def a_signal_handler_inside() -> None:
    hits: list[float] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: hits.append(torch.ones(2).sum().item()))
    x = ones()

    def body() -> torch.Tensor:
        y = x * 2
        os.kill(os.getpid(), signal.SIGUSR1)
        return y + 1

    graph, z = captured(body)
    signal.signal(signal.SIGUSR1, before)
    x.fill_(2.0)
    graph.replay()
    near(z, [5.0] * 4)
    assert hits == [2.0]
    usable()


@fault
def a_guard_that_fails() -> None:
    """What stood before the read has run; what stood after it has not, and a later replay is right."""
    x, before, after = ones(), torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")

    def body() -> torch.Tensor:
        before.add_(1)
        y = x + 1 if x.sum() > 2 else x - 1
        after.add_(1)
        return y

    graph, y = captured(body)
    n_right = 0
    for n, (value, is_as_captured) in enumerate(((2.0, True), (0.0, False), (3.0, True), (-1.0, False)), 1):
        x.fill_(value)
        try:
            graph.replay()
            assert is_as_captured
            n_right += 1
            near(y, [value + 1] * 4)
        except gfxgraph.GuardMismatch:
            assert not is_as_captured
        near(before, [float(n)])
        near(after, [float(n_right)])
    usable()


@fault
def policies_do_what_they_say() -> None:
    x = ones()
    for policy in ("split", "pin", "strict", "raise"):
        x.fill_(1.0)
        graph = torch.cuda.CUDAGraph(on_unsafe=policy)
        try:
            with torch.cuda.graph(graph):
                y = x * x.sum().item()
        except gfxgraph.CaptureError:
            assert policy in ("strict", "raise")
            usable()
            continue
        assert policy in ("split", "pin")
        x.fill_(2.0)
        try:
            graph.replay()
            assert policy == "split"
            near(y, [16.0] * 4)
        except gfxgraph.GuardMismatch:
            assert policy == "pin"
        usable()


@fault
def modes_of_the_programs_own() -> None:
    seen = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, graph = ones(), torch.cuda.CUDAGraph()
    with Counting(), torch.cuda.graph(graph):
        y = x * x.sum().item()
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other), Counting():
        z = x + x.sum().item()
    x.fill_(2.0)
    graph.replay()
    other.replay()
    near(y, [16.0] * 4)
    near(z, [10.0] * 4)
    assert seen
    usable()


@fault
def three_hundred_graphs() -> None:
    x = ones()
    graphs = [captured(lambda k=k: x + k) for k in range(300)]
    x.fill_(2.0)
    for k, (graph, y) in enumerate(graphs):
        graph.replay()
        near(y[0], 2.0 + k)
    del graphs
    usable()


# -- the documentation's table (docs/run.md), row by row -------------------------------------------------


@documentation
def arithmetic_is_calculated() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        total = x.sum().item()
        return x * (abs(total) ** 0.5 + round(total, 1)) + abs(total) // 2

    follows(body, INPUTS)


@documentation
def operations_run_with_the_value() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        v = x.max().item()
        y = x.clamp(max=v / 2) + torch.full((6,), v, device="cuda")
        y[0] = v
        return y * torch.tensor([v, 1.0], device="cuda").sum()

    follows(body, INPUTS)


@documentation
def indices_and_sizes_vary() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        n = (x > 0).sum().item()
        y = torch.roll(x, n) + x[n - 1]
        y[n % 6] = 7.0
        return y * torch.zeros(n, device="cuda").add(1).sum() + x[:n].sum() + x.topk(n).values.sum()

    follows(body, INPUTS)


@documentation
def counts_vary() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        positive, places = x[x > 0], (x > 0).nonzero()
        values, counts = torch.unique(x.round(), return_counts=True)
        return positive.sum() + places.sum() + values.sum() + counts.max() + positive.numel()

    follows(body, INPUTS)


@documentation
def printed_values_are_pinned() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        v = x.sum().item()
        print(f"loss {v:.3f}", v, x, file=sys.stderr)
        return x * 2

    follows(body, INPUTS, may_refuse=True)


@documentation
def questions_are_asked_again() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        v = x.sum().item()
        assert not math.isnan(v)
        if v > 6 and bool((x > -10).all()) and not torch.equal(x, x + 1):
            return x + sorted(x.tolist())[0]
        return x - 1

    follows(body, INPUTS, may_refuse=True)


@documentation
def values_out_of_sight_are_pinned() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.max()) + int(x[0]) + float(x.cpu().numpy().max()) + {3: 1.0}.get(int(x[0]), 2.0)

    follows(body, INPUTS, may_refuse=True)


@documentation
def saved_bytes_are_pinned() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        kept = io.BytesIO()
        torch.save(x, kept)
        kept.seek(0)
        return torch.load(kept, map_location="cpu").to("cuda") + x

    follows(body, INPUTS, may_refuse=True)


@documentation
def a_value_after_the_capture() -> None:
    x = ones()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        total = y.sum().item()
        host = y.cpu()
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        near(host, [2 * value] * 4)
        assert total == 8 * value
    usable()


@documentation
def statistics_tell() -> None:
    x = ones()
    graph, _ = captured(lambda: x * x.sum().item())
    for _ in range(3):
        graph.replay()
    told = gfxgraph.stats()
    assert told["capture_count"] >= 1 and told["split_count"] >= 1 and told["replay_count"] >= 3
    assert told["avg_replay_us"] > 0
    usable()
