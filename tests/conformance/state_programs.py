"""Random sequences of calls with state changed at random between them, beside eager.

    python -m tests.conformance.state_programs FIRST LAST [SEQUENCES]     on whatever device torch has

A program is a few features (``state_features.py``) one after another, as a function, a module or a method. It is made
twice from one seed: one is called through ``gfxgraph.graphed``, one eagerly. Between calls the same change is made to
both, and the calls are made under the same random settings of gradients and autocast. Every answer, what calls leave
in the state, and the random generators must be eager's. A program serves several sequences, each beginning with the
state that the last one left; so most traces are paid for once, and worlds of before come back.

From seed 3000 on the grammar is wider: gradients of weights, hooks on them, views and memory, as features; arguments
with other strides, calls of more sizes, in buckets, by another thread, and differentiated twice; what earlier calls
gave is looked at again.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import gfxgraph
from tests.conformance.state_features import FEATURES, WIDTH
from tests.conformance.state_features_of_gradients import WIDER

ROWS = (2, 3)
N_CALLS = 8
SEQUENCES = 10
"""Of each program."""
EFFECTFUL = frozenset(
    "tensor_written workspace_kept_by_lru_cache tensor_replaced counted counted_in_module appended stored stored_in_dict iterated host_random "
    "device_random batch_norm".split()
)
PLAIN = tuple(name for name in FEATURES if name not in EFFECTFUL)
FIRST_WIDE = 3000
WIDE_WAYS = ("no_grad",) * 4 + ("backward",) * 5 + ("backward twice", "grad", "inference", "autocast", "thread")
WAYS = ("no_grad",) * 12 + ("inference", "grad", "backward", "autocast")


class Program:
    """A few features, and a callable of them."""

    def __init__(self, names: tuple[str, ...], kind: str) -> None:
        made = [(FEATURES.get(name) or WIDER[name])() for name in names]
        self.changes = [change for _, change, _ in made]
        self._seen = [seen for _, _, seen in made]
        reads = tuple(read for read, _, _ in made)

        def function(x: Any) -> Any:
            for read in reads:
                x = read(x)
            return x

        class Module(nn.Module):
            def forward(self, x: Any) -> Any:
                return function(x)

        module = Module()
        self.fn = {"function": function, "module": module, "method": module.forward}[kind]

    def seen(self) -> list[Any]:
        return [seen() for seen in self._seen]


@contextlib.contextmanager
def settings(way: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if way == "inference":
            stack.enter_context(torch.inference_mode())
        elif way in ("no_grad", "autocast", "thread"):
            stack.enter_context(torch.no_grad())
        if way == "autocast":
            stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        yield


def call(fn: Any, x: torch.Tensor, way: str, seed: int) -> list[Any]:
    """One call: its result, the gradient, and where the random generators are afterwards."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack for each kind of device
    torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    x = (x.clone() if x.is_contiguous() else x.t().clone().t()).requires_grad_(way.startswith("backward"))
    found = [in_thread(lambda: under(way, fn, x)) if way == "thread" else under(way, fn, x)]
    if way.startswith("backward") and found[0].requires_grad:
        found[0].sum().backward(retain_graph=way == "backward twice")
        if way == "backward twice":
            found[0].square().sum().backward()
        found.append(x.grad)
    states = [torch.get_rng_state(), torch.cuda.get_rng_state(), str(random.getstate()), np.random.get_state()[1]]
    return [*found, *states]


def under(way: str, fn: Any, x: Any) -> Any:
    with settings(way):
        return fn(x)


def in_thread(do: Any) -> Any:
    """What ``do`` gives in a thread of its own."""
    given: list[Any] = []

    def body() -> None:
        try:
            given.append(do())
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            given.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if isinstance(given[0], Exception):
        raise given[0]
    return given[0]


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if (a.dtype, a.shape, a.requires_grad) != (b.dtype, b.shape, b.requires_grad):
            return False
        return torch.equal(a, b) or bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_same, a, b))
    return type(a) is type(b) and bool(a == b)


def play(seed: int, n_sequences: int = SEQUENCES, names: tuple[str, ...] = ()) -> tuple[int, Counter[str]]:
    """Sequences of one program; how many were played, and how its calls ran.

    Raises:
        AssertionError: an answer or a state was not eager's; the text says after which changes.
    """
    rng = random.Random(seed)
    is_wide = seed >= FIRST_WIDE
    if is_wide and not names:
        names = tuple(rng.sample(sorted(WIDER), rng.choice((1, 1, 2))))
        if rng.random() < 0.5:
            names = (*names, rng.choice(PLAIN))
    if not names:
        names = tuple(rng.sample(PLAIN, rng.choice((1, 2, 2, 3))))
        if rng.random() < 0.35:
            names = (*names, rng.choice(sorted(EFFECTFUL)))
    kind = rng.choice(("function", "module", "method"))
    mine, eager = Program(names, kind), Program(names, kind)
    options: dict[str, Any] = rng.choice(({}, {}, {"mode": "hot"}))
    if is_wide and not options and rng.random() < 0.3:
        options = {"dynamic": {"x": {0: "rows"}}, "buckets": [2, 4]}
    ways = WIDE_WAYS if is_wide else WAYS
    kept: list[tuple[Any, Any]] = []
    graphed = gfxgraph.graphed(mine.fn, **options)
    n_calls = 0
    try:
        for turn in range(n_sequences):
            done: list[str] = []
            for i in range(N_CALLS):
                if rng.random() < 0.4:
                    at, index = rng.randrange(len(names)), rng.choice((0, 0, 1, 1, 2))
                    done.append(f"{i}: {names[at]} to {index}")
                    with torch.no_grad():
                        mine.changes[at](index)
                        eager.changes[at](index)
                way = rng.choice(ways) if rng.random() < (0.8 if is_wide else 0.5) else "no_grad"
                n_rows = rng.choice((1, 2, 3, 3, 4)) if is_wide else ROWS[i % 2]
                x = torch.arange(1.0, 1 + WIDTH * n_rows, dtype=torch.float32, device="cuda").view(-1, WIDTH) / 5
                if is_wide and rng.random() < 0.2:
                    x = x.t().contiguous().t()
                drawn = rng.randrange(1 << 20)
                want = outcome(eager.fn, x, way, drawn)
                got = outcome(graphed, x, way, drawn)
                n_calls += 1
                story = f"seed {seed} {names} {kind} {options}, sequence {turn}, call {i} {way}, after {done}"
                assert is_same(got, want), f"{story}: {got[0]} is not {want[0]}"
                left, right = mine.seen(), eager.seen()
                assert is_same(left, right), f"{story}: {left} is left, not {right}"
                if is_wide:
                    assert all(is_same(a, b) for a, b in kept), f"{story}: what an earlier call gave has changed"
                    kept = [*kept, (got[0], want[0])][-3:]
                del got
    finally:
        kept.clear()
        for program in (mine, eager):
            for change in program.changes:
                with torch.no_grad():
                    change(0)
    found = graphed.stats()
    how = Counter(calls=n_calls, replays=found["replays"], eager=sum(found["eager"].values()))
    how["pieces"] = sum(found["pieces"].values())
    how["traces"] = getattr(graphed, "_gfxgraph", graphed)._front.n_traces
    return n_sequences, how


def outcome(fn: Any, x: torch.Tensor, way: str, seed: int) -> list[Any]:
    """What ``call`` gives, or the kind of error that it raises."""
    try:
        return call(fn, x, way, seed)
    except Exception as error:  # noqa: BLE001  eager's errors are answers, too
        return [type(error).__name__ + ": " + str(error)[:60]]


def main() -> None:
    torch.set_num_threads(1)
    first, last = int(sys.argv[1]), int(sys.argv[2])
    n_each = int(sys.argv[3]) if len(sys.argv) > 3 else SEQUENCES
    wrong, n, total = 0, 0, Counter[str]()
    for seed in range(first, last):
        try:
            played, how = play(seed, n_each)
        except AssertionError as error:
            wrong += 1
            print("WRONG", str(error)[:900], flush=True)
            continue
        except Exception as error:  # noqa: BLE001  a crash is a finding like a wrong answer
            wrong += 1
            print("CRASH", seed, type(error).__name__, str(error)[:600], flush=True)
            continue
        n += played
        total.update(how)
        if seed % 10 == 9:
            print(f"{n} sequences so far, {wrong} programs wrong, {dict(total)}", flush=True)
    ran = f"{n} sequences of {N_CALLS} calls in {last - first} programs"
    print(f"{ran}, {wrong} programs wrong, {dict(total)}, {time.process_time():.0f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
