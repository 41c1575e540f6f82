"""The facts that ``gfxgraph doctor --selftest`` proves on the GPU that is there, one function each.

Each runs in a process of its own and compares with eager execution. The first line of a docstring is the
fact, as the report and the terminal show it. The order is from simple to hard, so that the first failure
of a list is the one to look at.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import gfxgraph
from gfxgraph.runtime import process
from gfxgraph.runtime.selftest_bench import Bench, case, events, expect, put_back, raises, same, skip

MIB = 1 << 20
# As far as two algorithms of one library lie apart, relative to the largest magnitude.
RTOL = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}

# -- plain captures --------------------------------------------------------------------------------------------


@case()
def plain(bench: Bench) -> None:
    """A replay computes from what its static input holds now."""
    x = bench.randn(1024)
    bench.follows_eager(lambda: (x * 2 + 1).relu(), [x])
    expect(gfxgraph.stats()["split_count"] == 0, "a plain graph was split")


@case()
def in_place_state(bench: Bench) -> None:
    """A capture leaves counters, buffers and random numbers alone; each replay moves them as eager does."""
    x, total = bench.randn(256), torch.zeros(256, device="cuda")
    count = torch.zeros((), dtype=torch.long, device="cuda")

    def body() -> Tensor:
        count.add_(1)
        total.add_(x).mul_(0.5)
        return total + count

    bench.follows_eager(body, [x], [count, total])


@case()
def reset_and_recapture(bench: Bench) -> None:
    """A graph that was reset captures again; a replay in between is an error that says so."""
    x = bench.randn(64)
    graph, _ = bench.follows_eager(lambda: x + 1, [x])
    graph.reset()
    expect(raises(gfxgraph.ReplayError, graph.replay).code == "use_after_reset", "another error")
    bench.follows_eager(lambda: x * 5, [x], graph=graph)


@case()
def shared_pool(bench: Bench) -> None:
    """Graphs that share a pool replay in order like eager, the second one reading what the first has written."""
    x, pool = bench.randn(4096), torch.cuda.graph_pool_handle()
    first, a = bench.capture(lambda: x.sin() + 1, pool=pool)
    second, b = bench.capture(lambda: (a * 2).cos(), pool=pool)
    for _ in range(3):
        bench.refill(x)
        first.replay()
        second.replay()
        same([b], [((x.sin() + 1) * 2).cos()], "the second graph's result and eager execution")


@case()
def kv_cache_decode(bench: Bench) -> None:
    """A greedy decode loop with a key-value cache writes the same tokens as eager."""
    n_tokens, width, n_heads, vocabulary = 24, 64, 4, 97
    embedding, head = bench.randn(vocabulary, width), bench.randn(width, vocabulary)
    project = bench.randn(width, 3 * width) / math.sqrt(width)
    keys, values = (torch.zeros(1, n_heads, n_tokens, width // n_heads, device="cuda") for _ in range(2))
    token, position = (torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(2))
    places = torch.arange(n_tokens, device="cuda")

    def step() -> Tensor:
        hidden = embedding.index_select(0, token)
        query, key, value = (hidden @ project).view(1, 3, n_heads, width // n_heads).unbind(1)
        keys.index_copy_(2, position, key.unsqueeze(2))
        values.index_copy_(2, position, value.unsqueeze(2))
        scores = (query.unsqueeze(2) @ keys.transpose(2, 3)) / math.sqrt(width // n_heads)
        seen = (places <= position).view(1, 1, 1, n_tokens)
        attended = scores.masked_fill(~seen, -math.inf).softmax(-1) @ values
        logits = (hidden + attended.reshape(1, width)) @ head
        token.copy_(logits.argmax(-1))
        position.add_(1)
        return logits

    def decode(run: Callable[[], Any]) -> list[int]:
        for tensor in (keys, values, token, position):
            tensor.zero_()
        written = []
        for _ in range(n_tokens):
            run()
            written.append(int(token))
        return written

    bench.warm_up(step)
    wanted = decode(step)
    position.zero_()
    graph, _ = bench.capture(step)
    for n in range(2):
        got = decode(graph.replay)
        expect(got == wanted, f"loop {n + 1} wrote {got} instead of {wanted}")


@case()
def side_streams(bench: Bench) -> None:
    """Work forked to two side streams and joined again is recorded with its order."""
    x, sides = bench.randn(4096), [torch.cuda.Stream(), torch.cuda.Stream()]

    def body() -> Tensor:
        a = x + 1
        parts = []
        for n, side in enumerate(sides, 2):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                parts.append((a * n).sin())
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)
        return parts[0] + parts[1] - a

    bench.follows_eager(body, [x])


@case()
def another_thread(bench: Bench) -> None:
    """Eager work of another thread goes on during a capture, and neither disturbs the other."""
    x, other = bench.randn(64), bench.randn(64)
    go, done = threading.Event(), threading.Event()
    seen: list[Tensor] = []

    def work() -> None:
        go.wait(30)
        seen.append((other * 2).sum())
        done.set()

    thread = threading.Thread(target=work)
    thread.start()

    def body() -> Tensor:
        y = x * 3
        go.set()
        expect(done.wait(30), "the other thread was blocked")
        return y + 1

    # Default mode "global" forbids other threads even to allocate; engines with workers use this one.
    graph, y = bench.capture(body, capture_error_mode="thread_local")
    thread.join(30)
    graph.replay()
    same([y, *seen], [x * 3 + 1, (other * 2).sum()], "both threads' results and eager execution")


# -- values that reach the host ----------------------------------------------------------------------------------


@case()
def split_at_comparison(bench: Bench) -> None:
    """`if x.item() > limit` splits; values may change, a changed outcome is GuardMismatch with its line."""
    x = bench.randn(64)

    def body() -> Tensor:
        size = (x * x).sum()
        if size.item() > 1e9:
            return x * 0
        return x / (size + 1)

    graph, _ = bench.follows_eager(body, [x], rtol=1e-5)
    expect(gfxgraph.stats()["split_count"] >= 1, "nothing was split")
    x.fill_(1e6)
    text = str(raises(gfxgraph.GuardMismatch, graph.replay))
    expect("selftest_cases.py" in text and "1000000000" in text, f"the error does not name the line: {text}")


@case()
def split_undone(bench: Bench) -> None:
    """What a split had to run during the capture is undone: cache, counter and random numbers are as before."""
    x, cache = bench.randn(16), torch.zeros(4, 16, device="cuda")
    step = torch.zeros((), dtype=torch.long, device="cuda")

    def body() -> Tensor:
        row = x + torch.rand(16, device="cuda")
        cache.index_copy_(0, step.clamp(max=3).view(1), row.view(1, 16))
        step.add_(1)
        if cache.isnan().any():
            raise AssertionError("NaN")
        return cache.sum(0)

    bench.follows_eager(body, [x], [cache, step])


@case()
def log_line(bench: Bench) -> None:
    """A value that is only printed or checked for NaN stops neither capture nor replay."""
    x, shown = bench.randn(16), []

    def body() -> Tensor:
        value = x.sum().item()
        shown.append(f"{value:.3f}")
        expect(not math.isnan(value), "NaN")
        return x + 1

    bench.follows_eager(body, [x])
    expect(all("Tracked" not in text for text in shown), f"printed as {shown}")


@case()
def escaping_value(bench: Bench) -> None:
    """A value that goes into arithmetic stops the capture with an error, and leaves the process clean."""
    x = bench.randn(16)
    error = raises(gfxgraph.CaptureError, lambda: bench.capture(lambda: x * x.abs().max().item()))
    expect(error.code == "host_value_escaped", f"another error: {error}")
    bench.still_usable()


@case()
def pinned_value(bench: Bench) -> None:
    """on_unsafe="pin" takes such a value as a constant and refuses a replay once it has changed."""
    x = torch.full((4,), 2.0, device="cuda")
    graph, y = bench.capture(lambda: x * x.max().item(), torch.cuda.CUDAGraph(on_unsafe="pin"))
    graph.replay()
    same([y], [torch.full((4,), 4.0)], "the replay and eager execution")
    x.fill_(3.0)
    text = str(raises(gfxgraph.GuardMismatch, graph.replay))
    expect("2.0" in text and "3.0" in text, f"the error does not name both values: {text}")


@case()
def raised(bench: Bench) -> None:
    """on_unsafe="raise" gives torch's own error at the unsafe operation, and leaves the process clean."""
    x = bench.randn(16)
    graph = torch.cuda.CUDAGraph(on_unsafe="raise")
    text = str(raises(RuntimeError, lambda: bench.capture(lambda: x.sum().item(), graph)))
    expect("not permitted when stream is capturing" in text, f"another error: {text}")
    bench.still_usable()


@case()
def nonzero(bench: Bench) -> None:
    """nonzero() splits and replays like eager; a result of another size is GuardMismatch."""
    x = torch.arange(16.0, device="cuda") - 4
    graph, _ = bench.follows_eager(lambda: (x > 0).nonzero() * 2, [x], refill=lambda: x.copy_(x.roll(3)))
    x.fill_(1)
    raises(gfxgraph.GuardMismatch, graph.replay)
    bench.still_usable()


@case()
def boolean_mask(bench: Bench) -> None:
    """Reading and writing through a boolean mask replay like eager."""
    x = torch.arange(16.0, device="cuda") - 4

    def body() -> tuple[Tensor, Tensor]:
        y = x * 2
        y[x < 0] = 7.0
        return x[x > 0] + 1, y

    bench.follows_eager(body, [x], refill=lambda: x.copy_(x.roll(3)))


@case()
def host_copies(bench: Bench) -> None:
    """Copies to the host and back inside a capture are made again at each replay."""
    x = bench.randn(64)

    def body() -> tuple[Tensor, Tensor]:
        return x.cpu().to("cuda") * 2, x + torch.zeros(64).copy_(x + 1).to("cuda")

    bench.follows_eager(body, [x])


@case()
def pinned_copies(bench: Bench) -> None:
    """Asynchronous copies from and to pinned memory are recorded, and a replay reads what is there then."""
    x = torch.zeros(256, device="cuda")
    source, target = torch.zeros(256).pin_memory(), torch.zeros(256).pin_memory()

    def body() -> Tensor:
        x.copy_(source, non_blocking=True)
        y = x * 2 + 1
        target.copy_(y, non_blocking=True)
        return y

    bench.warm_up(body)
    graph, y = bench.capture(body)
    for _ in range(3):
        bench.refill(source)
        graph.replay()
        torch.cuda.synchronize()
        same([y.cpu(), target], [source * 2 + 1, y.cpu()], "device and host results, and eager execution")


@case()
def tensor_constant(bench: Bench) -> None:
    """torch.tensor(..., device="cuda") inside a capture is the same constant at each replay."""
    x = bench.randn(3)
    bench.follows_eager(lambda: x * torch.tensor([1.0, 2.0, 3.0], device="cuda"), [x])


@case()
def waits(bench: Bench) -> None:
    """synchronize() of device, stream and event inside a capture does not break it."""
    x = bench.randn(64)

    def body() -> Tensor:
        a = x + 1
        torch.cuda.synchronize()
        b = a * 2
        torch.cuda.current_stream().synchronize()
        event = torch.cuda.Event()
        event.record()
        c = b - 3
        event.synchronize()
        return c.relu()

    bench.follows_eager(body, [x])


@case()
def queries(bench: Bench) -> None:
    """Asking a stream and an event whether they are done does not break a capture."""
    x = bench.randn(64)

    def body() -> Tensor:
        event = torch.cuda.Event()
        event.record()
        a = x + 1 if event.query() or True else x
        return a * 2 if torch.cuda.current_stream().query() or True else a

    bench.follows_eager(body, [x])


# -- captures and replays inside captures ------------------------------------------------------------------------


@case()
def nested_capture(bench: Bench) -> None:
    """A capture inside a capture: both graphs replay like eager."""
    x = bench.randn(64)
    inner: list[Any] = []

    def body() -> Tensor:
        a = x + 1
        inner[:] = bench.capture(lambda: x * 3)
        return a * 2

    outer, y = bench.capture(body)
    bench.refill(x)
    outer.replay()
    inner[0].replay()
    same([y, inner[1]], [(x + 1) * 2, x * 3], "outer and inner graph, and eager execution")


@case()
def replay_inside_capture(bench: Bench) -> None:
    """A graph replayed while another is captured becomes part of it."""
    x = bench.randn(64)
    inner, y = bench.capture(lambda: x * 2)

    def body() -> Tensor:
        a = x + 1
        inner.replay()
        return y + a

    outer, z = bench.capture(body)
    for _ in range(2):
        bench.refill(x)
        outer.replay()
        same([z], [x * 2 + (x + 1)], "the outer graph and eager execution")


@case()
def side_stream_across_split(bench: Bench) -> None:
    """Work forked to a side stream joins again although the capture was split between."""
    x, side = bench.randn(4096), torch.cuda.Stream()

    def body() -> Tensor:
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a * 2
        if x.sum().item() > 1e9:
            return b
        c = a - 1
        torch.cuda.current_stream().wait_stream(side)
        return b + c

    bench.follows_eager(body, [x])


# -- random numbers ----------------------------------------------------------------------------------------------


@case()
def dropout(bench: Bench) -> None:
    """Dropout and random tensors draw at each replay what eager would draw then."""
    x = bench.randn(1024)
    bench.follows_eager(
        lambda: (torch.dropout(x, 0.5, True) + torch.rand(1024, device="cuda"), torch.randn(8, device="cuda")), [x]
    )


@case()
def sampling(bench: Bench) -> None:
    """Sampling tokens from a softmax follows eager draw by draw."""
    logits = bench.randn(4, 97)
    bench.follows_eager(lambda: torch.multinomial(logits.softmax(-1), 1), [logits])


@case()
def unregistered_generator(bench: Bench) -> None:
    """A generator that nobody registered draws anew at each replay, as in eager, and the capture draws nothing."""
    x, generator = bench.randn(64), torch.Generator(device="cuda")
    generator.manual_seed(3)

    def body() -> Tensor:
        return x + torch.rand(64, device="cuda", generator=generator)

    body()
    before = generator.get_state()
    graph, y = bench.capture(body)
    same([generator.get_state()], [before], "the generator's state, which the capture must not touch")
    for n in range(3):
        before = generator.get_state()
        wanted = body()
        generator.set_state(before)
        graph.replay()
        same([y], [wanted], f"replay {n + 1} and eager execution")


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


@case(is_alone=True)
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


@case()
def users_error(bench: Bench) -> None:
    """An error of the program's own, or a wrong shape, leaves the capture as itself and the process clean."""
    x = bench.randn(16)

    def wrong() -> Tensor:
        y = x + 1
        raise ValueError(f"mine {y.size()}")

    expect("mine" in str(raises(ValueError, lambda: bench.capture(wrong))), "another error")
    bench.still_usable()
    raises(RuntimeError, lambda: bench.capture(lambda: bench.randn(3, 4) @ bench.randn(5, 6)))
    bench.still_usable()


# -- validation and the nodes ------------------------------------------------------------------------------------


@case()
def validation_passes(bench: Bench) -> None:
    """A right replay validates, and validating moves state once, as one replay does."""
    x, count = bench.randn(256), torch.zeros((), device="cuda")

    def body() -> Tensor:
        count.add_(1)
        return (torch.dropout(x, 0.5, True) * 2).cumsum(0)

    bench.warm_up(body)
    count.zero_()
    graph, _ = bench.capture(body)
    expect(graph.validate(), "a right replay was called wrong")
    expect(count.item() == 1, f"the counter moved by {count.item()}")
    found = gfxgraph.stats()
    expect(found["validations"] == 1 and not found["validation_failures"], f"counted as {found}")


@case(may_fall_back=True)
def validation_catches(bench: Bench) -> None:
    """A graph with a node switched off is caught: op and line named, eager's result given, the graph retired."""
    driver = _driver_with("set_node_enabled")
    from gfxgraph.runtime.walk import raw_exec

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
    named = [(event["op"], event["where"]) for event in events("fallback")]
    expect(any("sin" in op and "selftest_cases.py" in where for op, where in named), f"named {named} instead of sin")
    bench.refill(x)
    graph.replay()
    same([y], [body()], "the retired graph and eager execution")


@case()
def node_walk(bench: Bench) -> None:
    """Running a graph node by node gives to the bit what one replay gives."""
    _driver_with("set_node_enabled")
    from gfxgraph.runtime.walk import can_walk, walk

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
    if state.driver is None:
        skip("the runtime library was not found, so nodes cannot be reached")
    if feature in state.driver.missing:
        skip(f"this runtime has no {feature}")
    if not state.decisions.node_walk:
        skip("the defect table forbids node walks here")
    return state.driver


# -- training ----------------------------------------------------------------------------------------------------


@case()
def graphed_callables(bench: Bench) -> None:
    """torch.cuda.make_graphed_callables gives eager's outputs and gradients, forward and backward."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to("cuda")
    eager = copy.deepcopy(module)
    graphed = torch.cuda.make_graphed_callables(module, (bench.randn(16, 32).requires_grad_(),))
    for n in range(3):
        x = bench.randn(16, 32).requires_grad_()
        results = []
        for network in (graphed, eager):
            made = network(x)
            results.append([made, *torch.autograd.grad(made.square().mean(), [x, *network.parameters()])])
            results[-1] = [tensor.detach().clone() for tensor in results[-1]]
        same(results[0], results[1], f"call {n + 1} and eager execution", RTOL[torch.float32])


@case()
def training_step(bench: Bench) -> None:
    """A captured step of forward, backward and Adam(capturable=True) trains as eager does."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to("cuda")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, capturable=True)
    x, target = bench.randn(64, 16), bench.randn(64, 1)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(network(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        bench.warm_up(step)
    learnt = [p.data for p in network.parameters()]
    learnt += [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    bench.follows_eager(step, [], learnt, times=5, rtol=1e-3)


# -- memory ------------------------------------------------------------------------------------------------------


@case(limit_s=180, is_alone=True)
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


_left_alive: list[Any] = []


@case()
def alive_at_exit(bench: Bench) -> None:
    """A process that ends with graphs and a memory pool alive ends with status 0."""
    x, pool = bench.randn(64), torch.cuda.MemPool()
    first, _ = bench.follows_eager(lambda: x + 1, [x])
    second, _ = bench.capture(lambda: x * 2 if x.sum().item() > -1e9 else x, pool=pool.id)
    second.replay()
    _left_alive.extend([first, second, pool])


# -- the kinds of wrong replays that ROCm releases are known for ---------------------------------------------------


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


@case(limit_s=300, is_alone=True)
def processes_agree(bench: Bench) -> None:
    """Processes that run the same graphs at the same time agree with eager and with each other, to the bit."""
    # One release corrupted replays in one process out of five, so one process proves little.
    n_processes, n_together = (2, 2) if bench.is_simulated else (8, bench.n_together)
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"{n}.json" for n in range(n_processes)]
        for begin in range(0, n_processes, n_together):
            peers = [bench.start("one_of_many_processes", result) for result in results[begin : begin + n_together]]
            for n, peer in enumerate(peers, begin):
                status = peer.wait()
                found = json.loads(results[n].read_text(encoding="utf-8")) if results[n].exists() else {}
                expect(status == 0, f"process {n} ended by {status}: {found.get('reason', '')}")
                digests.append(found["figures"]["digest"])
    bench.figures.update(n_processes=len(digests), n_together=n_together, digests=sorted(set(digests)))
    expect(len(set(digests)) == 1, f"{len(digests)} processes came to {len(set(digests))} results")


@case(limit_s=120, is_hidden=True)
def one_of_many_processes(bench: Bench) -> None:
    """A network's replays equal eager's bits, and their digest is reported."""
    x = bench.randn(16, 64)
    layers = [bench.randn(64, 64) / 8 for _ in range(12)]

    def body() -> Tensor:
        y = x
        for layer in layers:
            y = functional.layer_norm(y + (y @ layer).relu(), (64,))
        return y

    graph, y = bench.follows_eager(body, [x], rtol=RTOL[torch.float32])
    digest = hashlib.sha256()
    for _ in range(100 if not bench.is_simulated else 10):
        bench.refill(x)
        graph.replay()
        digest.update(bytes(y.cpu().view(torch.uint8).flatten().tolist()))
    bench.figures["digest"] = digest.hexdigest()


def _after(x: Tensor, value: Tensor, body: Callable[[], Tensor]) -> Tensor:
    x.copy_(value)
    return body().clone()


def _same_rows(got: Tensor, wanted: Tensor, where: str = "") -> None:
    wrong = (got != wanted).any(1).nonzero().flatten().tolist()
    expect(not wrong, f"{len(wrong)} of {len(got)} replays differ from eager{where}, first {wrong[:10]}")


# -- libraries ---------------------------------------------------------------------------------------------------


def _matmul_chain(bench: Bench, dtype: torch.dtype) -> None:
    x, layers = bench.randn(64, 256, dtype=dtype), [bench.randn(256, 256, dtype=dtype) / 16 for _ in range(6)]

    def body() -> Tensor:
        y = x
        for layer in layers:
            y = functional.gelu(y @ layer) + y
        return y

    try:
        body()
    except RuntimeError as error:
        skip(f"eager execution cannot do it either: {str(error).splitlines()[0]}")
    _, y = bench.follows_eager(body, [x], rtol=RTOL[dtype])
    exact = x.double().cpu()
    for layer in layers:
        exact = functional.gelu(exact @ layer.double().cpu()) + exact
    same([y], [exact], "the graph and the same in double precision on the host", 5 * RTOL[dtype])


@case()
def matmul_fp32(bench: Bench) -> None:
    """A chain of fp32 matrix products replays like eager and is near the exact result."""
    _matmul_chain(bench, torch.float32)


@case()
def matmul_fp16(bench: Bench) -> None:
    """A chain of fp16 matrix products replays like eager and is near the exact result."""
    _matmul_chain(bench, torch.float16)


@case()
def matmul_bf16(bench: Bench) -> None:
    """A chain of bf16 matrix products replays like eager and is near the exact result."""
    _matmul_chain(bench, torch.bfloat16)


@case(limit_s=300)  # a first convolution may search for its algorithm, or compile it
def convolution(bench: Bench) -> None:
    """A convolution with batch normalisation in evaluation replays like eager."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16)).to("cuda").eval()
    x = bench.randn(2, 8, 16, 16)
    with torch.no_grad():
        bench.follows_eager(lambda: network(x).relu(), [x], rtol=RTOL[torch.float32])


@case(limit_s=300)
def attention(bench: Bench) -> None:
    """scaled_dot_product_attention in fp16 replays like eager, by whichever kernel torch picks here."""
    q, k, v = (bench.randn(2, 4, 64, 32, dtype=torch.float16) for _ in range(3))

    def body() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    try:
        body()
    except RuntimeError as error:
        skip(f"eager execution cannot do it either: {str(error).splitlines()[0]}")
    bench.follows_eager(body, [q, k, v], rtol=RTOL[torch.float16])


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


@case(limit_s=120, is_alone=True)  # the last: no process is being prepared beside it either
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
