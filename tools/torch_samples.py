"""Run PyTorch's databases of sample inputs under gfxgraph, each beside eager, and write what became of each.

    python tools/torch_samples.py --simulate cuda --out torch_samples.json      # without a GPU
    python tools/torch_samples.py --jobs 16 --out torch_samples.json            # on the GPU
    python tools/torch_samples.py --only nn.functional.conv2d --show            # one operation, with tracebacks

The databases are torch's own, in its wheel. A sample goes through every way that it supports:

    capture             `torch.cuda.graph`, replayed with three sets of values
    capture, gradients  likewise, forward and backward in one graph
    graphed             `gfxgraph.graphed`, called with changing values, once with another sample's
    graphed, gradients  likewise, with the backward pass outside
    ..., in place; ..., out=    the variants of an operation that write into an argument

Values change by making the same samples from other seeds, so they are always valid ones. After each run results,
arguments, gradients and random generators must be eager's: to the bit where two eager runs agree to the bit.

    right       equal, to the bit
    near        equal within torch.testing's tolerances, where eager repeats itself to the bit
    guarded     a replay raised GuardMismatch
    refused     the capture raised; `--stock` shows whether torch's own does, too
    raised      a replay or a graphed call raised what eager does not
    wrong       a result, an argument, a gradient or a generator differs
    crashed     the process ended, or the sample took longer than its limit

After anything but right, near and guarded a fresh process goes on with the next sample; on a GPU, where a fresh one
takes long to start, only if a small capture then fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import time
import traceback
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda"
LIMIT_S = 60.0
GRACE_S = 15.0
"""For what is underway when the time is over."""
GOOD = ("right", "near", "guarded", "skipped")


# -- calls, and what they leave ----------------------------------------------------------------------------


@dataclass
class Call:
    """A function with its arguments; ``module``, where there is one, is what ``bind`` makes the function of."""

    bind: Callable[[torch.nn.Module | None], Callable[..., Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: torch.nn.Module | None = None

    @property
    def function(self) -> Callable[..., Any]:
        return self.bind(self.module)

    def tensors(self) -> list[torch.Tensor]:
        """Of the arguments, then a module's parameters and buffers."""
        return [*tensors_in((self.args, self.kwargs)), *state_of(self.module)]

    def copy(self) -> Call:
        """The same with tensors of its own, which share memory where these do."""
        storages: dict[int, torch.UntypedStorage] = {}
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: copy_tensor(t, storages), (self.args, self.kwargs)
        )
        return Call(self.bind, args, kwargs, copy.deepcopy(self.module))

    def fill(self, values: Call) -> None:
        """Write the values of another call into these tensors."""
        for mine, other in zip(self.tensors(), values.tensors(), strict=True):
            if mine.layout is not torch.strided:
                raise Skip(f"a {mine.layout} argument, into which no values can be written")
            storage, values = mine.untyped_storage(), other.untyped_storage()
            if storage.nbytes() == values.nbytes():
                storage.copy_(values)
            else:  # weights that cuDNN had flattened into one memory, and a copy has not
                mine.detach().copy_(other.detach())

    def fits(self, other: Call) -> bool:
        """True if a replay for one may serve the other: only values of tensors differ."""
        (mine, form), (others, other_form) = (pytree.tree_flatten((c.args, c.kwargs)) for c in (self, other))
        return form == other_form and all(map(alike, mine, others))


def state_of(module: torch.nn.Module | None) -> list[torch.Tensor]:
    return [] if module is None else [*module.parameters(), *module.buffers()]


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and layout_of(a) == layout_of(b) and nbytes_of(a) == nbytes_of(b)
    if callable(a):
        return callable(b)
    return type(a) is type(b) and bool(a == b or a != a)


def layout_of(t: torch.Tensor) -> tuple[Any, ...]:
    strides = t.stride() if t.layout is torch.strided else ()
    return t.shape, t.dtype, t.device.type, t.layout, strides, t.is_conj(), t.is_neg()


def nbytes_of(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes() if t.layout is torch.strided else -1


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def copy_tensor(t: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    plain = t.detach()
    if t.layout is not torch.strided:
        return plain.clone().requires_grad_(t.requires_grad)
    plain = plain.conj() if t.is_conj() else plain
    plain = torch._neg_view(plain) if t.is_neg() else plain
    old = plain.untyped_storage()
    if old._cdata not in storages:
        storages[old._cdata] = old.clone()
    made = torch.empty(0, dtype=t.dtype, device=t.device)
    made.set_(storages[old._cdata], plain.storage_offset(), plain.shape, plain.stride())
    made = torch._neg_view(made) if t.is_neg() else made
    made = made.conj() if t.is_conj() else made
    return made.requires_grad_(t.requires_grad)


@dataclass
class Left:
    """What a run left: results, arguments and generators; who shares memory with whom."""

    results: list[Any]
    arguments: list[torch.Tensor]
    generators: tuple[torch.Tensor, torch.Tensor]
    shares: list[int]

    @classmethod
    def by(cls, call: Call, results: Any) -> Left:
        torch.cuda.synchronize()
        leaves = pytree.tree_leaves(results)
        arguments = call.tensors()
        keys = [key_of(leaf) for leaf in [*arguments, *leaves]]
        with torch.no_grad():
            kept = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            after = [argument.detach().clone() for argument in arguments]
        states = torch.cuda.get_rng_state().clone(), torch.get_rng_state().clone()
        return cls(kept, after, states, [keys.index(key) for key in keys])


def key_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
        return leaf.untyped_storage()._cdata
    return object()


def difference(found: Left, wanted: Left, again: Left, *, replayed: bool) -> tuple[str, str]:
    """("right" | "near" | "wrong", what differs), judged by what a second eager run leaves.

    A replay runs no Python: numbers that a capture returned stay, and seeds that a sample sets are set once.
    """
    verdict, why = "right", ""
    names = [(f"result {i}", *leaves) for i, leaves in enumerate(zip(found.results, wanted.results, again.results))]
    names += [
        (f"argument {i}", *leaves) for i, leaves in enumerate(zip(found.arguments, wanted.arguments, again.arguments))
    ]
    if len(found.results) != len(wanted.results):
        return "wrong", f"{len(found.results)} results instead of {len(wanted.results)}"
    for name, one, other, second in names:
        if not isinstance(other, torch.Tensor):
            if replayed:
                continue
            if type(one) is not type(other) or (
                not callable(one) and same_value(other, second) and not same_value(one, other)
            ):
                return "wrong", f"{name}: {one!r} instead of {other!r}"
            continue
        if not isinstance(one, torch.Tensor) or (one.shape, one.dtype, one.device.type, one.layout) != (
            other.shape,
            other.dtype,
            other.device.type,
            other.layout,
        ):
            return "wrong", f"{name}: {described(one)} instead of {described(other)}"
        if same_bits(one, other):
            continue
        if same_bits(other, second):
            if not close(one, other):
                return "wrong", f"{name}: {str(one.flatten()[:4])} instead of {str(other.flatten()[:4])}"
            verdict, why = "near", f"{name} differs by rounding"
        elif close(other, second) and not close(one, other):
            return "wrong", f"{name}: not even close to eager"
    devices = ("CUDA",) if replayed else ("CUDA", "CPU")
    for name, one, other, second in zip(devices, found.generators, wanted.generators, again.generators):
        if torch.equal(other, second) and not torch.equal(one, other):
            return "wrong", f"the {name} generator"
    if not replayed and found.shares != wanted.shares:
        return "wrong", f"shared memory: {found.shares} instead of {wanted.shares}"
    return verdict, why


def same_value(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or (a != a and b != b)
    except (RuntimeError, ValueError, TypeError):
        return True


def described(leaf: Any) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)} {leaf.layout}" if isinstance(leaf, torch.Tensor) else repr(leaf)


def on_host(t: torch.Tensor) -> torch.Tensor:
    return (t.to_dense() if t.layout is not torch.strided else t).cpu().resolve_conj().resolve_neg()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit; any NaN equals any NaN."""
    a, b = on_host(a), on_host(b)
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.is_floating_point():
        return torch.equal(a, b)
    if a.element_size() == 1:  # eight bits: compared as float32
        a, b = a.float(), b.float()
    nan = a.isnan()
    if not torch.equal(nan, b.isnan()):
        return False
    a, b = a.masked_fill(nan, 0), b.masked_fill(nan, 0)
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(on_host(a), on_host(b), equal_nan=True)
    except AssertionError:
        return False
    return True


# -- the ways a sample goes -----------------------------------------------------------------------------------


class Skip(Exception):
    """Eager does not do it, or there is nothing to compare."""


class Outcome(Exception):
    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind, self.why = kind, why


def seed(number: int) -> None:
    torch.default_generator.manual_seed(
        number
    )  # torch.manual_seed would also write down a trace for each absent device
    torch.cuda.manual_seed(number)
    random.seed(number)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(number)


def eager(call: Call, number: int) -> Left:
    """What the call leaves; Skip where it raises."""
    mine = call.copy()
    seed(number)
    try:
        results = mine.function(*mine.args, **mine.kwargs)
        return Left.by(mine, results)
    except Exception as error:  # noqa: BLE001  (whatever an operation raises)
        raise Skip(f"eager: {type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


class Judge:
    """Compares runs with eager; remembers the worst that was found."""

    def __init__(self) -> None:
        self.kind, self.why = "right", ""

    def look(self, found: Left, call: Call, number: int, where: str, *, replayed: bool) -> None:
        kind, why = difference(found, eager(call, number), eager(call, number), replayed=replayed)
        if kind == "wrong":
            raise Outcome(kind, f"{where}: {why}")
        if kind == "near":
            self.kind, self.why = kind, f"{where}: {why}"


def captured(calls: list[Call], other: Call | None) -> tuple[str, str]:
    """Capture the first call, replay with the values of each."""
    judge = Judge()
    eager(calls[0], 100)
    static = calls[0].copy()
    warm = calls[0].copy()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm.function(*warm.args, **warm.kwargs)
    torch.cuda.current_stream().wait_stream(stream)
    seed(100)
    before = Left.by(static, ())
    graph = torch.cuda.CUDAGraph()
    kind, why = "right", ""
    try:
        with torch.cuda.graph(graph):
            results = static.function(*static.args, **static.kwargs)
    except Exception as error:  # noqa: BLE001
        raise Outcome("refused", f"{type(error).__name__}: {first_line(error)}") from error
    after = Left.by(static, ())
    if [t.shape for t in after.arguments] == [t.shape for t in before.arguments]:  # else as_strided_ and its like
        kind, why = difference(after, before, before, replayed=True)
    if kind == "wrong":
        raise Outcome(kind, f"after the capture: {why}")
    for number, call in enumerate(calls):
        static.fill(call)
        seed(number)
        try:
            graph.replay()
        except Exception as error:  # noqa: BLE001
            if type(error).__name__ != "GuardMismatch":
                raise Outcome("raised", f"replay {number}: {type(error).__name__}: {first_line(error)}") from error
            judge.kind, judge.why = "guarded", f"replay {number}: {first_line_of_why(error)}"
            continue
        judge.look(Left.by(static, results), call, number, f"replay {number}", replayed=True)
    return judge.kind, judge.why


def first_line_of_why(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.startswith("what")), first_line(error))[:200]


def graphed(calls: list[Call], other: Call | None) -> tuple[str, str]:
    """Call the graphed function with each call's values, then another sample's, then the first's again."""
    import gfxgraph

    judge = Judge()
    mine = [*calls, *([other] if other is not None else []), calls[0]]
    for number, call in enumerate(calls):
        eager(call, number)
    function = gfxgraph.graphed(calls[0].function)
    for number, call in enumerate(mine):
        try:
            wanted = eager(call, number)
        except Skip:
            continue
        again = eager(call, number)
        given = call.copy()
        seed(number)
        try:
            results = function(*given.args, **given.kwargs)
        except Exception as error:  # noqa: BLE001
            raise Outcome("raised", f"call {number}: {type(error).__name__}: {first_line(error)}") from error
        kind, why = difference(Left.by(given, results), wanted, again, replayed=False)
        if kind == "wrong":
            raise Outcome(kind, f"call {number}: {why}")
        if kind == "near":
            judge.kind, judge.why = kind, f"call {number}: {why}"
    how = function.stats()
    return judge.kind, judge.why or ("" if how["replays"] else "eager")


def backward(results: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of the results, each weighted, with respect to the inputs."""
    outs = [t for t in tensors_in(results) if t.requires_grad]
    if not outs or not inputs:
        raise Skip("no gradients")
    weights = [torch.full_like(out, 0.5) for out in outs]
    return list(torch.autograd.grad(outs, inputs, weights, allow_unused=True))


def with_gradients(call: Call) -> Call:
    """The call that does forward and backward, and gives results and gradients."""

    def bind(module: torch.nn.Module | None) -> Callable[..., Any]:
        return forward_backward(call.bind(module), module)

    return Call(bind, call.args, call.kwargs, call.module)


def forward_backward(forward: Callable[..., Any], module: torch.nn.Module | None) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        results = forward(*args, **kwargs)
        inputs = [t for t in [*tensors_in((args, kwargs)), *state_of(module)] if t.requires_grad]
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results), backward(results, inputs)

    return step


def graphed_gradients(calls: list[Call], other: Call | None) -> tuple[str, str]:
    """As ``graphed``; the backward pass is the caller's."""
    import gfxgraph

    judge = Judge()
    for number, call in enumerate(calls):
        eager(with_gradients(call), number)
    function = gfxgraph.graphed(calls[0].function)
    for number, call in enumerate([*calls, *([other] if other is not None else []), calls[0]]):
        try:
            wanted = eager(with_gradients(call), number)
        except Skip:
            continue
        again = eager(with_gradients(call), number)
        given = call.copy()
        seed(number)
        try:
            results = forward_backward(function, None)(*given.args, **given.kwargs)
        except Exception as error:  # noqa: BLE001
            raise Outcome("raised", f"call {number}: {type(error).__name__}: {first_line(error)}") from error
        kind, why = difference(Left.by(given, results), wanted, again, replayed=True)
        if kind == "wrong":
            raise Outcome(kind, f"call {number}: {why}")
        if kind == "near":
            judge.kind, judge.why = kind, f"call {number}: {why}"
    how = function.stats()
    return judge.kind, judge.why or ("" if how["replays"] else "eager")


def graphed_module(calls: list[Call], with_gradient: bool) -> tuple[str, str]:
    """The module and a twin, graphed: forward, backward and an SGD step for each call's values, then again."""
    import gfxgraph

    kind, why = "right", ""
    one, second, ours = (calls[0].copy().module for _ in range(3))
    assert one is not None and second is not None and ours is not None
    function = gfxgraph.graphed(ours)

    def step(module: torch.nn.Module, forward: Callable[..., Any], call: Call, number: int) -> Left:
        given = Call(call.bind, call.copy().args, call.copy().kwargs, module)
        seed(number)
        if not with_gradient:
            with torch.no_grad():
                return Left.by(given, forward(*given.args, **given.kwargs))
        results, gradients = forward_backward(forward, module)(*given.args, **given.kwargs)
        inputs = [t for t in given.tensors() if t.requires_grad]
        with torch.no_grad():
            for tensor, gradient in zip(inputs, gradients):
                if gradient is not None and isinstance(tensor, torch.nn.Parameter):
                    tensor.sub_(gradient, alpha=0.1)
        return Left.by(given, (results, gradients))

    for number, call in enumerate([*calls, *calls]):
        try:
            wanted, again = step(one, one, call, number), step(second, second, call, number)
        except Exception as error:  # noqa: BLE001
            raise Skip(f"eager: {type(error).__name__}: {first_line(error)}") from error
        try:
            found = step(ours, function, call, number)
        except Exception as error:  # noqa: BLE001
            raise Outcome("raised", f"call {number}: {type(error).__name__}: {first_line(error)}") from error
        now, what = difference(found, wanted, again, replayed=with_gradient)
        if now == "wrong":
            raise Outcome(now, f"call {number}: {what}")
        if now == "near":
            kind, why = now, f"call {number}: {what}"
    return kind, why or ("" if function.stats()["replays"] else "eager")


class Trained:
    """A small network, its optimizer and one step of them; two made alike stay alike."""

    def __init__(self, info: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
        torch.manual_seed(7)
        sparse = info.only_supports_sparse_grads
        first = torch.nn.Embedding(6, 5, sparse=True) if sparse else torch.nn.Linear(6, 5, bias=False)
        rest = [] if sparse else [torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=False)]
        self.network = torch.nn.Sequential(first, *rest).to(DEVICE, dtype)
        self.optimizer = info.optim_cls(self.network.parameters(), **copy.deepcopy(kwargs))
        self.needs_closure, self.sparse, self.dtype = info.step_requires_closure, sparse, dtype

    def batch(self, number: int) -> torch.Tensor:
        seed(number)
        if self.sparse:
            return torch.randint(0, 6, (4,), device=DEVICE)
        return torch.randn(4, 6, device=DEVICE, dtype=self.dtype)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss: torch.Tensor = self.network(x).square().mean()
            loss.backward()
            return loss

        if self.needs_closure:
            return self.optimizer.step(closure)
        loss = closure()
        self.optimizer.step()
        return loss

    def left(self, loss: torch.Tensor) -> Left:
        state = pytree.tree_leaves(self.optimizer.state_dict()["state"])
        call = Call(lambda _: None, (), {}, self.network)
        return Left.by(call, [loss.detach(), *state])


def trained(make: Callable[[], Trained], how: str) -> tuple[str, str]:
    """Six steps in the way asked for, the learning rate changed before the fifth, beside eager."""
    import gfxgraph

    one, second, ours = make(), make(), make()
    step = gfxgraph.TrainingStep(ours.step) if how == "step" else None
    x = ours.batch(0)
    graph, loss = torch.cuda.CUDAGraph(), torch.zeros(())
    kind, why = "right", ""
    for number in range(6):
        if number == 4 and step is not None:
            for each in (one, second, ours):
                for group in each.optimizer.param_groups:
                    group["lr"] = group["lr"] / 2
        values = ours.batch(number)
        try:
            wanted, again = one.left(one.step(values)), second.left(second.step(values))
        except Exception as error:  # noqa: BLE001
            raise Skip(f"eager: {type(error).__name__}: {first_line(error)}") from error
        try:
            if step is not None:
                loss = step(values)
            elif number == 1 and any(not t.is_cuda for t in tensors_in(wanted.results)):
                raise Skip("it counts steps on the host, which no replay does")
            elif number < 2:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    loss = ours.step(values)
                torch.cuda.current_stream().wait_stream(stream)
            else:
                x.copy_(values)
                if number == 2:
                    with torch.cuda.graph(graph):
                        loss = ours.step(x)
                graph.replay()
        except Skip:
            raise
        except Exception as error:  # noqa: BLE001
            outcome = "guarded" if type(error).__name__ == "GuardMismatch" else "raised"
            outcome = "refused" if outcome == "raised" and step is None and number == 2 else outcome
            raise Outcome(outcome, f"step {number}: {type(error).__name__}: {first_line_of_why(error)}") from error
        now, what = difference(ours.left(loss), wanted, again, replayed=step is None)
        if now == "wrong":
            raise Outcome(now, f"step {number}: {what}")
        if now == "near":
            kind, why = now, f"step {number}: {what}"
    return kind, why or ("" if step is None or step.n_replays else f"eager: {step.why_eager}")


# -- torch's databases ------------------------------------------------------------------------------------------


UNSPECIFIED = (
    "empty",
    "new_empty",
    "torch.ops.aten._flash_attention_forward",
    "torch.ops.aten._efficient_attention_forward",
)
"""What these return is not set, or not used (seeds where nothing is dropped): there is nothing to compare."""


@dataclass(frozen=True)
class Task:
    """One entry of a database in one dtype."""

    database: str
    index: int
    name: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.database} {self.name} {self.dtype}"


DATABASES = {
    "op_db": "common_methods_invocations",
    "hop_db": "hop_db",
    "autograd_function_db": "autograd_function_db",
    "custom_op_db": "custom_op_db",
    "module_db": "common_modules",
    "optim_db": "common_optimizers",
}
"""By name, the module of torch.testing._internal that holds it."""


@functools.cache
def entries_of(database: str) -> list[Any]:
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:  # a base class of tests
        sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).TestCase = unittest.TestCase  # type: ignore[attr-defined]
    module = importlib.import_module(f"torch.testing._internal.{DATABASES[database]}")
    found: list[Any] = getattr(module, database)
    return found


def tasks(only: str | None, names: list[str], dtypes: list[str]) -> Iterator[Task]:
    for database in [only] if only else DATABASES:
        for index, entry in enumerate(entries_of(database)):
            name = getattr(entry, "full_name", entry.name)
            if names and name not in names or name.startswith(UNSPECIFIED):
                continue
            supported = {torch.float32} if database == "optim_db" else entry.supported_dtypes(DEVICE)
            for dtype in dtypes:
                if getattr(torch, dtype) in supported:
                    yield Task(database, index, name, dtype)


def samples_of(info: Any, dtype: torch.dtype, number: int, n: int, *, requires_grad: bool) -> list[Any]:
    """The first samples of an entry, with values of that seed."""
    from torch.testing._internal.common_utils import set_rng_seed

    set_rng_seed(number)
    return list(itertools.islice(info.sample_inputs_func(info, DEVICE, dtype, requires_grad), n))


Runs = Iterator[tuple[str, Callable[[], tuple[str, str]]]]


def module_runs(info: Any, dtype: torch.dtype, n_samples: int) -> Runs:
    from torch.testing._internal.common_utils import set_rng_seed

    def calls(training: bool, i: int) -> list[Call]:
        made = []
        for number in range(3):
            set_rng_seed(number)
            inputs = info.module_inputs_func(info, DEVICE, dtype, training, training)
            form = inputs[i]
            module = info.module_cls(*form.constructor_input.args, **form.constructor_input.kwargs)
            module = module.to(DEVICE, dtype).train(training)
            args, kwargs = form.forward_input.args, form.forward_input.kwargs
            if info.is_lazy:
                module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            made.append(Call(lambda module: module, args, kwargs, module))
        return made

    for training in (True, False):
        n = min(n_samples, len(info.module_inputs_func(info, DEVICE, dtype, training, training)))
        for i in range(n):
            mode = "train" if training else "eval"

            def capture(training: bool = training, i: int = i) -> tuple[str, str]:
                made = calls(training, i)
                return captured([with_gradients(call) for call in made] if training else made, None)

            def graph(training: bool = training, i: int = i) -> tuple[str, str]:
                return graphed_module(calls(training, i), training)

            yield f"{i} capture, {mode}", capture
            yield f"{i} graphed, {mode}", graph


def optimizer_runs(info: Any, dtype: torch.dtype, n_samples: int) -> Runs:
    for i, form in enumerate(info.optim_inputs_func(device=DEVICE)):
        implementations: list[dict[str, Any]] = [{}]
        implementations += [{name: True} for name in info.supported_impls if name != "differentiable"]
        for more in implementations:
            kwargs = {**form.kwargs, **more}
            name = " ".join([str(i), *more])
            yield (
                f"{name} TrainingStep",
                lambda kwargs=kwargs: trained(lambda: Trained(info, kwargs, dtype), "step"),
            )
            if kwargs.get("capturable") or not info.has_capturable_arg:
                yield (
                    f"{name} capture",
                    lambda kwargs=kwargs: trained(lambda: Trained(info, kwargs, dtype), "capture"),
                )


def runs(task: Task, n_samples: int) -> Runs:
    """Each way of each sample: its name and what runs it."""
    info = entries_of(task.database)[task.index]
    dtype = getattr(torch, task.dtype)
    if task.database == "module_db":
        return module_runs(info, dtype, n_samples)
    if task.database == "optim_db":
        return optimizer_runs(info, dtype, n_samples)
    return operation_runs(info, dtype, n_samples)


def operation_runs(info: Any, dtype: torch.dtype, n_samples: int) -> Runs:
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes(DEVICE)
    for requires_grad in (False, True) if differentiable else (False,):
        by_seed = [samples_of(info, dtype, number, n_samples, requires_grad=requires_grad) for number in range(3)]
        n = min(map(len, by_seed))
        for i in range(n):
            samples = [made[i] for made in by_seed]
            others = by_seed[0][(i + 1) % n] if n > 1 else None
            variants = {"": info.op}
            if not requires_grad:
                in_place = info.get_inplace()
                if in_place is not None and not samples[0].broadcasts_input:
                    variants[", in place"] = in_place
                if info.supports_out:
                    variants[", out="] = info.op
            for variant, function in variants.items():

                def call_of(sample: Any, function: Any = function, variant: str = variant) -> Call:
                    call = Call(lambda _: function, (sample.input, *sample.args), dict(sample.kwargs))
                    return into_out(call) if variant == ", out=" else call

                def calls(samples: list[Any] = samples, call_of: Any = call_of) -> list[Call]:
                    made = [call_of(sample) for sample in samples]
                    return [made[0], *(call for call in made[1:] if made[0].fits(call))]

                def other(others: Any = others, call_of: Any = call_of) -> Call | None:
                    return None if others is None else call_of(others)

                if requires_grad:
                    yield (
                        f"{i} capture, gradients",
                        lambda calls=calls: captured([with_gradients(c) for c in calls()], None),
                    )
                    yield (
                        f"{i} graphed, gradients",
                        lambda calls=calls, other=other: graphed_gradients(calls(), other()),
                    )
                else:
                    yield f"{i} capture{variant}", lambda calls=calls: captured(calls(), None)
                    yield f"{i} graphed{variant}", lambda calls=calls, other=other: graphed(calls(), other())


def into_out(call: Call) -> Call:
    mine = call.copy()
    try:
        results = mine.function(*mine.args, **mine.kwargs)
    except Exception as error:  # noqa: BLE001
        raise Skip(f"eager: {type(error).__name__}: {first_line(error)}") from error
    if not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(results)):
        raise Skip("out= for tensors alone")
    out = pytree.tree_map(torch.zeros_like, results)
    out = out if isinstance(out, torch.Tensor) else tuple(pytree.tree_leaves(out))
    return Call(call.bind, call.args, {**call.kwargs, "out": out})


# -- workers ------------------------------------------------------------------------------------------------------


def start(options: argparse.Namespace) -> None:
    """In a worker: the device, with gfxgraph on it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin_on_device(options)
    gc.collect()
    gc.freeze()


def begin_on_device(options: argparse.Namespace) -> None:
    if options.stock:
        if options.simulate:
            import gfxgraph_simulator as simulator

            simulator.install(options.simulate)
        return
    import gfxgraph

    if options.simulate:
        gfxgraph.enable(simulate=options.simulate, validate=False)
    else:
        gfxgraph.enable(allow_cuda=True, validate=False)


def outcome(run: Callable[[], tuple[str, str]], show: bool) -> tuple[str, str]:
    try:
        return run()
    except Skip as skipped:
        return "skipped", str(skipped)
    except Outcome as found:
        if show:
            traceback.print_exc()
        return found.kind, found.why
    except Exception as error:  # noqa: BLE001
        if show:
            traceback.print_exc()
        return "broken", f"{type(error).__name__}: {first_line(error)}"


def is_healthy() -> bool:
    """Does the next capture in this process work? Asked where a fresh process takes long to start."""
    try:
        x = torch.ones(4, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + torch.rand_like(x)
        graph.replay()
        return bool((y >= 1).all())
    except Exception:  # noqa: BLE001  (then it is not)
        return False


def work(pipe: Connection, options: argparse.Namespace) -> None:
    """Do tasks as they come; say before each run what it is, and after it what became of it."""
    start(options)
    pipe.send(("ready",))
    while True:
        task, skip = pipe.recv()
        try:
            made = runs(task, options.samples)
            for number in range(1 << 30):
                pipe.send(("begins", number, "samples"))
                found = next(made, None)
                if found is None:
                    break
                name, run = found
                if (
                    number < skip
                    or (options.way and options.way not in name)
                    or (options.stock and "graphed" in name)
                ):
                    continue
                pipe.send(("begins", number, name))
                began = time.process_time()
                kind, why = outcome(run, options.show)
                pipe.send(("ended", number, name, kind, why, round(time.process_time() - began, 3)))
                if kind not in GOOD and not (options.starts == "spawn" and is_healthy()) or "CUDA error" in why:
                    pipe.send(("tired", number + 1))
                    os._exit(0)
        except Exception as error:  # noqa: BLE001  (samples that cannot be made)
            if options.show:
                traceback.print_exc()
            pipe.send(("ended", -1, "samples", "skipped", f"{type(error).__name__}: {first_line(error)}", 0.0))
        torch._dynamo.reset()
        gc.collect()
        pipe.send(("done",))


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.process: Any = None
        self.task: Task | None = None
        self.spawn()

    def spawn(self) -> None:
        context = multiprocessing.get_context(self.options.starts)
        self.is_ready, self.at, self.since = False, (0, "start"), time.monotonic()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.options), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def give(self, task: Task, skip: int = 0) -> None:
        self.task, self.at, self.since = task, (skip, "samples"), time.monotonic()
        self.pipe.send((task, skip))


def run_all(todo: list[Task], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every task's outcomes; workers that crash or hang are replaced."""
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    todo = todo[::-1]
    n_done, n_tasks = 0, len(todo)
    workers = [Worker(options) for _ in range(min(options.jobs, len(todo)))]
    for worker in workers:
        worker.give(todo.pop())

    def note(worker: Worker, name: str, kind: str, why: str, seconds: float) -> None:
        task = worker.task
        assert task is not None
        row = {"database": task.database, "name": task.name, "dtype": task.dtype, "way": name, "outcome": kind}
        found.append({**row, "why": why.replace(f"{ROOT}/", ""), "seconds": seconds})
        if kind not in GOOD or options.show:
            print(f"{kind}: {task} {name}: {why}", flush=True)

    def again(worker: Worker, skip: int) -> None:
        task = worker.task
        worker.end()
        worker.spawn()
        assert task is not None
        worker.give(task, skip)

    while workers and not (options.time_s and time.monotonic() - began > options.time_s + GRACE_S):
        ready = set(wait([w.pipe for w in workers], timeout=1.0))
        for worker in list(workers):
            try:
                message = worker.pipe.recv() if worker.pipe in ready else None
            except (EOFError, ConnectionResetError):
                worker.process.join()
                if not worker.is_ready:
                    raise SystemExit(f"a worker did not start: exit {worker.process.exitcode}") from None
                note(worker, worker.at[1], "crashed", f"exit {worker.process.exitcode}", 0.0)
                again(worker, worker.at[0] + 1)
                continue
            if message is None:
                if worker.is_ready and time.monotonic() - worker.since > options.limit_s:
                    note(worker, worker.at[1], "crashed", f"over {options.limit_s:g} s", options.limit_s)
                    again(worker, worker.at[0] + 1)
                continue
            worker.since = time.monotonic()
            worker.is_ready = True
            if message[0] == "begins":
                worker.at = message[1:]
            elif message[0] == "ended":
                note(worker, *message[2:])
            elif message[0] == "tired":
                again(worker, message[1])
                continue
            if message[0] != "done":
                continue
            n_done += 1
            if n_done % 20 == 0:
                print(
                    f"{n_done} of {n_tasks} entries, {len(found)} runs, {time.monotonic() - began:.0f} s", flush=True
                )
            if todo and (not options.time_s or time.monotonic() - began < options.time_s):
                worker.give(todo.pop())
            else:
                worker.end()
                workers.remove(worker)
    for worker in workers:
        worker.end()
    for task in [*todo, *(worker.task for worker in workers if worker.task)]:
        found.append(
            {"database": task.database, "name": task.name, "dtype": task.dtype, "way": "", "outcome": "not run"}
        )
    return found


# -- the report ---------------------------------------------------------------------------------------------------


def report(found: list[dict[str, Any]], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Counts for each way, and every run that was not right."""
    table: dict[str, Counter[str]] = {}
    for row in found:
        way = row["way"].partition(" ")[2] or row["way"]
        table.setdefault(f"{row['database']}: {way}", Counter())[row["outcome"]] += 1
    totals = Counter(row["outcome"] for row in found)
    not_right = [row for row in found if row["outcome"] not in ("right", "skipped")]
    return {
        "machine": {
            "device": f"simulator, {options.simulate}" if options.simulate else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "commit": os.environ.get("BENCH_COMMIT") or commit(),
        },
        "samples_per_entry": options.samples,
        "entries": len({(row["database"], row["name"]) for row in found}),
        "seconds": round(seconds),
        "outcomes": dict(totals.most_common()),
        "by_way": {way: dict(counts.most_common()) for way, counts in sorted(table.items())},
        "graphed, but eager": sum(
            str(row.get("why")).startswith("eager") and row["outcome"] == "right" for row in found
        ),
        "not_right": [{k: v for k, v in row.items() if k != "seconds"} for row in not_right],
    }


def commit() -> str:
    try:
        return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True, cwd=ROOT).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", metavar="PROFILE", help="run in the simulator")
    parser.add_argument("--stock", action="store_true", help="without gfxgraph: what torch itself does")
    parser.add_argument("--database", choices=DATABASES)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="entries, by name")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th task, from the I-th")
    parser.add_argument("--way", help="only ways with this in their name")
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--samples", type=int, default=3, help="of each entry, the first ones")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for one run")
    parser.add_argument("--time-s", type=float, default=0.0, help="no new task after that")
    parser.add_argument("--show", action="store_true", help="tell every outcome, with tracebacks")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    # Making the databases asks a GPU what it is, and a fork of a process that did so can use none.
    options.starts = "fork" if options.simulate else "spawn"
    warnings.simplefilter("ignore")
    began = time.monotonic()
    part, n_parts = map(int, options.part.split("/"))
    todo = list(tasks(options.database, options.only, options.dtypes))[part::n_parts]
    todo.sort(key=lambda task: options.dtypes.index(task.dtype))
    import torch._dynamo  # noqa: F401  (before the forks)

    gc.collect()
    gc.freeze()  # each capture collects garbage, and would look at all of this
    found = run_all(todo, options)
    made = report(found, options, time.monotonic() - began)
    if options.out:
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in made.items() if k != "not_right"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
