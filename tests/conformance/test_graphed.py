"""Graphed callables: the same results as eager, whatever is passed; what cannot be captured runs eagerly."""

from __future__ import annotations

import dataclasses
import types
from typing import NamedTuple

import pytest
import torch

import gfxgraph
from tests.conformance.bench import frames

pytestmark = pytest.mark.any_platform


@pytest.fixture(autouse=True)
def _platform(platform):
    yield


def chain(x, n=5):
    for _ in range(n):
        x = x * 1.5 + 1
    return x


def same(mine, eager):
    from torch.utils._pytree import tree_flatten

    a, a_spec = tree_flatten(mine)
    b, b_spec = tree_flatten(eager)
    assert a_spec == b_spec
    for x, y in zip(a, b):
        if dataclasses.is_dataclass(y):
            assert type(x) is type(y)
            same(vars(x), vars(y))
        elif isinstance(y, torch.Tensor):
            assert isinstance(x, torch.Tensor) and x.dtype == y.dtype and x.shape == y.shape and x.device == y.device
            assert torch.equal(x, y)
        else:
            assert type(x) is type(y) and x == y


def test_results_are_eagers_and_come_from_a_graph():
    """After one eager call, calls of the same signature are replays."""
    g = gfxgraph.graphed(chain)
    for i in range(5):
        x = torch.full((4,), float(i), device="cuda")
        same(g(x), chain(x))
    assert g.stats()["replays"] == 4 and g.stats()["captures"] == 1


def test_decorator_with_and_without_options():
    """``@graphed`` and ``@graphed(...)`` keep the function's name and doc."""

    @gfxgraph.graphed
    def f(x):
        """Twice."""
        return x * 2

    @gfxgraph.graphed(mode="hot")
    def h(x):
        return x * 2

    x = torch.ones(3, device="cuda")
    for _ in range(3):
        same(f(x), x * 2)
        same(h(x), x * 2)
    assert f.__name__ == "f" and f.__doc__ == "Twice."
    assert f.stats()["replays"] == 2 and h.stats()["replays"] == 2


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    scale: float


def test_a_name_that_is_assigned_later():
    """The closure of a decorated function holds nothing yet under its own name."""

    @gfxgraph.graphed(assume_pure=True)
    def step(x):
        return x * 2 if x.ndim else step(x[None])

    x = torch.ones(4, device="cuda")
    assert torch.equal(step(x), x * 2)


@pytest.mark.parametrize(
    "made", [Pair, Batch, lambda left, right: (left, right)], ids=["named tuple", "dataclass", "tuple"]
)
def test_a_new_batch_each_call_with_gradients_needs_one_graph(made):
    """A batch's tensors are arguments, whatever holds them: they lie elsewhere in each call."""
    net, kept = torch.nn.Linear(4, 4).cuda(), []

    @gfxgraph.graphed
    def step(batch):
        left, right = batch if isinstance(batch, tuple) else (batch.ids, batch.scale)
        return net(left) * right

    for i in range(8):
        x = torch.full((2, 4), float(i), device="cuda")
        kept.append(x)
        same(step(made(x, x + 1)), net(x) * (x + 1))
    assert step.stats()["replays"] == 6


def test_a_tensor_that_is_another_each_call_is_copied_with_gradients_too():
    """An attribute is expected to stay in place; after four places it is an argument."""
    net = torch.nn.Linear(4, 4).cuda()
    holder = types.SimpleNamespace(center=torch.zeros(4, device="cuda"))
    kept = []

    @gfxgraph.graphed
    def step(x):
        return net(x) - holder.center

    x = torch.ones(2, 4, device="cuda")
    for i in range(14):
        holder.center = torch.full((4,), float(i), device="cuda")
        kept.append(holder.center)
        same(step(x), net(x) - holder.center)
    assert step.stats()["replays"] >= 7, step.explain()


def test_any_tree_in_and_out():
    """Tuples, lists, dicts, named tuples and dataclasses, with None and constants, in arguments and results."""

    def f(pair, *more, batch, flag=True, **named):
        total = pair.left + pair.right * batch.scale
        for item in more:
            total = total + item[0]
        if flag:
            total = total - named["w"]["deep"][1]
        return {
            "pair": Pair(total, total * 2),
            "batch": Batch(batch.ids + 1, 3.0),
            "n": None,
            "l": [total, "text", 7],
        }

    g = gfxgraph.graphed(f)
    for i in range(4):
        t = [torch.full((2, 3), float(i + k), device="cuda") for k in range(5)]
        given = ((Pair(t[0], t[1]), (t[2], "x"), [t[3]]), {"batch": Batch(t[4], 2.0), "w": {"deep": (1, t[0])}})
        same(g(*given[0], **given[1]), f(*given[0], **given[1]))
    assert g.stats()["replays"] == 3


@pytest.mark.parametrize(
    ("first", "second"), [(1, True), (1, 1.0), (0.0, -0.0), ("a", "b"), (None, False), (2, 3), ((1,), [1])]
)
def test_constants_are_part_of_the_key(first, second):
    """Two constants that Python may call equal do not share a capture."""

    def f(x, c):
        if type(c) is float:
            return x * 2 if str(c)[0] == "-" else x * 3
        return x + {int: 1, bool: 2, str: len(str(c)) + ord(str(c)[0]), type(None): 4, tuple: 5, list: 6}[type(c)]

    g = gfxgraph.graphed(f)
    x = torch.arange(4.0, device="cuda")
    for c in [first] * 3 + [second] * 3 + [first]:
        same(g(x, c), f(x, c))
    assert g.stats()["captures"] >= 1, g.explain()


def test_shape_dtype_layout_and_mode_are_part_of_the_key():
    """Anything never seen is captured anew or runs eagerly; no answer is stale."""

    def f(x):
        y = x.relu() + 1 if torch.is_autocast_enabled("cuda") else x * 2
        return y.t() if y.dim() == 2 else y

    g = gfxgraph.graphed(f)
    base = torch.arange(12.0, device="cuda")
    shapes = [base, base.view(3, 4), base.view(4, 3), base.view(3, 4).t(), base[::2], base[:0], base[0], base.half()]
    shapes += [base[:1].expand(5), base.to(torch.int64), base.view(3, 4)[:, 1:3]]
    for _ in range(3):
        for x in shapes:
            same(g(x), f(x))
            assert g(x).stride() == f(x).stride()
            with torch.autocast("cuda", dtype=torch.float16):
                same(g(x), f(x))
    assert g.stats()["replays"] > len(shapes)


def test_an_object_among_the_arguments_is_asked_about_each_time():
    """What an object of any class holds may change unseen: Dynamo compares it, and its graphs are replayed."""

    class Settings:
        factor = 2.0

    s = Settings()
    g = gfxgraph.graphed(lambda x, s: x * s.factor)
    x = torch.ones(3, device="cuda")
    for factor in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 2.0):
        s.factor = factor
        same(g(x, s), x * factor)
    assert any("more than a tree" in why for why in g.stats()["pieces"])
    assert g.stats()["replays"] > 0


def test_cpu_tensors():
    """A small CPU tensor is a constant by content; a large one makes the call eager."""
    g = gfxgraph.graphed(lambda x, c: x * c)
    x = torch.ones(3, device="cuda")
    for value in (2.0, 2.0, 2.0, 3.0, 3.0, 2.0):
        c = torch.tensor(value)
        same(g(x, c), x * c)
    assert g.stats()["captures"] == 2, g.explain()
    cpu = gfxgraph.graphed(lambda x: x + 1)
    for i in range(3):
        same(cpu(torch.full((100,), float(i))), torch.full((100,), i + 1.0))
    assert cpu.stats()["replays"] == 0


def test_hot_never_overwrites_what_somebody_can_see():
    """The older gfxgraph gave 3, 4, 2, 3, 4 here."""
    g = gfxgraph.graphed(lambda x: x * 1, mode="hot")
    for _ in range(3):
        g(torch.zeros(4, device="cuda"))
    kept = [g(torch.full((4,), float(i), device="cuda"))[0:2] for i in range(5)]
    assert [int(k[0].item()) for k in kept] == [0, 1, 2, 3, 4]
    kept = [g(torch.full((4,), float(i), device="cuda")) for i in range(5)]
    assert [int(k[0].item()) for k in kept] == [0, 1, 2, 3, 4]


def test_hot_hands_out_the_buffers_again_when_they_are_free():
    """A loop that keeps only the last result goes round two buffers."""
    g = gfxgraph.graphed(lambda x: x * 2, mode="hot")
    x = torch.ones(4, device="cuda")
    addresses = set()
    for i in range(8):
        y = g(x * i)
        same(y, x * i * 2)
        if i > 1:
            addresses.add(y.data_ptr())
    assert len(addresses) == 2 and g.stats()["captures"] == 3


def test_results_are_the_callers_own():
    """By default a later call never changes an earlier result."""
    g = gfxgraph.graphed(lambda x: (x * 2, x.view(2, 2) + 1))
    kept = [g(torch.full((4,), float(i), device="cuda")) for i in range(5)]
    for i, (a, b) in enumerate(kept):
        assert a[0].item() == 2 * i and b[0, 0].item() == i + 1


def test_results_that_are_arguments():
    """A result that is an argument, or a view of one, is the caller's own."""
    g = gfxgraph.graphed(lambda x, y: (x, y[1:], x + y))
    for i in range(4):
        x, y = torch.full((3,), float(i), device="cuda"), torch.full((3,), 2.0 * i, device="cuda")
        a, b, c = g(x, y)
        assert a is x and b.data_ptr() == y[1:].data_ptr() and b.shape == (2,)
        same(c, x + y)


def test_arguments_that_are_written_to():
    """What the function does to its arguments is done to the caller's."""

    def f(cache, x):
        cache.add_(x)
        return cache * 2

    g = gfxgraph.graphed(f)
    mine, eager = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    for i in range(5):
        x = torch.full((4,), float(i), device="cuda")
        same(g(mine, x), f(eager, x))
        same(mine, eager)
    assert g.stats()["replays"] == 4


@pytest.mark.parametrize("kind", ["outcome", "number"])
def test_a_value_read_on_the_host(kind):
    """Python runs between the graphs before and after a read, with the value of this very call."""

    def step(x, log):
        log.add_(1)
        value = x.sum().item()
        return x * value if kind == "number" else x - 1 if value > 10 else x + 1

    g = gfxgraph.graphed(step)
    mine, eager = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    for value in (1, 1, 9, 1, 9, 9, 1, 2, 5, 6, 7, 2, 5, 1):
        x = torch.full((4,), float(value), device="cuda")
        assert torch.equal(g(x, mine), step(x, eager)) and torch.equal(mine, eager), value
    assert g.stats()["replays"] > 0 and any("item()" in why for why in g.stats()["pieces"]), g.explain()


def test_pieces_without_a_graph_are_left_to_python():
    """Once no piece has turned out to be a graph, a call costs eager's, and says why; where one has, pieces stay."""
    scale = [2]

    def distinct(x):
        return torch.unique(x) * scale[0] if scale[0] == 3 else torch.unique(x)

    def sorted_after(x):
        return torch.unique(x), (x * scale[0]).sort().values

    bare, mixed = gfxgraph.graphed(distinct), gfxgraph.graphed(sorted_after)
    for i in range(40):
        x = torch.randint(0, 9, (16,), device="cuda")
        scale[0] = 3 if i == 39 else 2
        same(bare(x), distinct(x))
        same(mixed(x), sorted_after(x))
    stats = bare.stats()
    (why,) = (each for each in stats["eager"] if each.startswith("nothing in it is a graph: "))
    assert f"eager       {why}" in bare.explain()
    assert sum(stats["pieces"].values()) + sum(stats["eager"].values()) == 40 and stats["eager"][why] == 23
    n = frames(lambda: bare(x)), frames(lambda: distinct(x))
    assert n[0] < n[1] + 12, n
    assert mixed.stats()["replays"] > 30 and not any("nothing in it" in why for why in mixed.stats()["eager"])


def test_errors_are_the_functions_own():
    """An error inside the function reaches the caller as it is, warm-up or capture."""
    g = gfxgraph.graphed(lambda x, fail: x.view(3, 5) if fail else x + 1)
    x = torch.ones(4, device="cuda")
    for fail in (True, True, True, False, False, True):
        if fail:
            with pytest.raises(RuntimeError, match="shape"):
                g(x, fail)
        else:
            same(g(x, fail), x + 1)


def test_modules_and_methods():
    """A module keeps its attributes; a method is graphed for each object."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).cuda().eval()
    g = gfxgraph.graphed(model)
    assert len(list(g.parameters())) == 4
    with torch.no_grad():
        for i in range(4):
            x = torch.full((3, 4), float(i), device="cuda")
            same(g(x), model(x))
    assert g.stats()["replays"] == 3


def test_dynamic_dims():
    """Sizes of one bucket share a capture; results are cut to the call's size."""
    w = torch.randn(8, 8, device="cuda")

    def f(x, other=None):
        y = x @ w
        return {"y": y, "s": y.sum(1), "fixed": x.new_ones(3)}

    g = gfxgraph.graphed(f, dynamic={"x": {0: "batch"}}, buckets=[2, 4, 8])
    for n in (3, 4, 1, 2, 3, 5, 8, 7, 6, 2, 3, 9, 11):
        x = torch.arange(n * 8.0, device="cuda").view(n, 8)
        mine, eager = g(x), f(x)
        for name in eager:
            assert mine[name].shape == eager[name].shape
            torch.testing.assert_close(mine[name], eager[name])
    assert g.stats()["captures"] == 3
    assert any("larger than every bucket" in why for why in g.stats()["eager"])


def test_padding_that_matters_is_refused():
    """A mean over the batch sees the padding: such calls get captures of their own."""
    g = gfxgraph.graphed(lambda x: x / x.mean(0), buckets="powers_of_two")
    for n in (3, 4, 3, 5, 3, 3, 5, 5, 6):
        x = torch.arange(1.0, n * 8 + 1, device="cuda").view(n, 8)
        torch.testing.assert_close(g(x), x / x.mean(0))
    assert any(event["kind"] == "padding_refused" for event in gfxgraph.stats()["events"])
    assert g.stats()["replays"] > 0


def test_a_graphed_function_inside_a_capture_is_part_of_it():
    """Called while something is being captured, it is the function itself."""
    inner = gfxgraph.graphed(lambda x: x * 2)
    outer = gfxgraph.graphed(lambda x: inner(x) + 1)
    for i in range(5):
        x = torch.full((4,), float(i), device="cuda")
        same(outer(x), x * 2 + 1)
        same(inner(x), x * 2)
    assert outer.stats()["replays"] == 4 and inner.stats()["replays"] >= 3


def test_memory_report_names_function_and_signature():
    """Bytes by captured signature."""

    def reported(x):
        return x * 2

    g = gfxgraph.graphed(reported)
    for _ in range(2):
        g(torch.ones(1024, device="cuda"))
    (device,) = gfxgraph.memory_report()["devices"]
    row = next(r for r in device["captures"] if "reported" in r["function"])
    assert row["signature"] == "float32[1024]" and row["input_bytes"] == 4096 and row["output_bytes"] >= 4096


def test_without_enable_and_without_a_gpu_it_is_the_function():
    """Nothing to capture on: eager, and the reason is kept."""
    gfxgraph.disable()
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    g = gfxgraph.graphed(lambda x: x + 1)
    assert g(torch.ones(2)).tolist() == [2.0, 2.0]
    assert g.stats()["eager"] == {"there is no GPU": 1}


@pytest.mark.parametrize("warmup", [1, 3])
def test_capture_all_runs_each_bucket_as_often_as_asked(warmup):
    """The run that shows what the function reads is a warm-up: with ``warmup=1`` there is no other."""
    g = gfxgraph.graphed(lambda x: x * 2 + 1, dynamic={"x": {0: "n"}}, buckets=[2, 4], warmup=warmup)
    assert g.capture_all(torch.ones(4, 5, device="cuda")) == {"n_captured": 2, "n_left": 0}
    assert g.stats()["eager"] == {"warm-up": 2 * warmup}
    x = torch.randn(3, 5, device="cuda")
    assert all(torch.equal(g(x + i), (x + i) * 2 + 1) for i in range(4))


def test_capture_all():
    """Every bucket ahead of the first call, largest first; calls are replays from the start."""
    g = gfxgraph.graphed(chain, dynamic={"x": {0: "n"}}, buckets=[2, 4, 8, 16])
    done = g.capture_all(torch.ones(3, 5, device="cuda"))
    assert done["n_captured"] == 4 and done["n_left"] == 0
    for n in (16, 8, 4, 2):
        x = torch.randn(n, 5, device="cuda")
        n = g.stats()["replays"]
        same(g(x), chain(x))
        assert g.stats()["replays"] == n + 1
    assert set(g.stats()["eager"]) <= {"warm-up"}


tripled = torch.compile(lambda x: x * torch.tensor(3.0, device="cuda"), backend="eager")
WITH_NAMES = {
    "tensor": lambda x: x * torch.tensor(2.0, device="cuda"),
    "as_tensor": lambda x: x + torch.as_tensor([1.0, 2.0, 3.0, 4.0], device="cuda"),
    "linear": lambda x: torch.nn.functional.linear(x, torch.eye(4, device="cuda")),
    "max": lambda x: x * min(2, max(1, 3)),
    "compiled": lambda x: tripled(x),
}
"""Functions that use what stands for torch's and Python's own while a capture runs."""


@pytest.mark.parametrize("name", WITH_NAMES)
def test_a_capture_leaves_the_next_buckets_what_the_function_calls(name):
    """Between captures the function is traced, and its guards are asked, where torch's own functions stand."""
    g = gfxgraph.graphed(WITH_NAMES[name], dynamic={"x": {0: "n"}}, buckets=[2, 4, 8])
    assert g.capture_all(torch.ones(8, 4, device="cuda")) == {"n_captured": 3, "n_left": 0}, g.explain()
    assert not g.stats()["pieces"]


def test_no_arguments():
    """A function of nothing but what it closes over."""
    x = torch.zeros(4, device="cuda")
    g = gfxgraph.graphed(lambda: x * 2 + 1)
    for i in range(5):
        x.fill_(i)
        same(g(), x * 2 + 1)
        with torch.inference_mode():
            same(g(), x * 2 + 1)
            assert g().is_inference()
        assert not g().is_inference()
    assert g.stats()["captures"] == 2, g.explain()


def test_inside_compiled_code():
    """Compiled code that calls a graphed function breaks there and goes on."""
    g = gfxgraph.graphed(lambda x: x * 2 + 1)
    f = torch.compile(lambda x: g(x) + 1, backend="eager")
    for i in range(4):
        x = torch.full((4,), float(i), device="cuda")
        same(f(x), x * 2 + 2)
    assert g.stats()["replays"] == 3


def test_a_value_that_steers_a_pure_function():
    """The captured value replays, every other runs eagerly, with the reason."""

    def step(x):
        return x * round(float(x.sum()))

    g = gfxgraph.graphed(step, assume_pure=True)
    ones = torch.ones(2, device="cuda")
    for k in (1, 1, 1, 2, 1, 3, 4, 2, 2, 1):
        assert torch.equal(g(ones * k), step(ones * k))
    stats = g.stats()
    assert (stats["captures"], stats["replays"], stats["eager"].pop("warm-up")) == (1, 4, 1)
    assert sum(stats["eager"].values()) == 5 and all("the capture read has changed" in why for why in stats["eager"])


def test_what_captures_pieces_is_made_by_calls_in_pieces():
    """A function that is one graph has none; of one with a break the call after the trace makes it, and captures."""

    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    whole, parted, x = gfxgraph.graphed(chain), gfxgraph.graphed(broken), torch.ones(4, device="cuda")
    for i in range(4):
        same(whole(x * i), chain(x * i))
        same(parted(x * i), broken(x * i))
        n_whole, n_parted = (sum(len(t.regions) for _, t in g._front.graphs) for g in (whole, parted))
        assert (n_whole, n_parted) == (0, 2 * (i > 0))
    assert whole.stats()["replays"] == 3 and parted.stats()["replays"] == 4


def test_after_a_reset_the_first_trace_is_a_warm_up():
    """Nothing that was traced before a reset is a reason for the traces after it."""
    g = gfxgraph.graphed(chain)
    for _ in range(2):
        for i in range(3):
            same(g(torch.full((4,), float(i), device="cuda")), chain(torch.full((4,), float(i), device="cuda")))
        g.reset()
    assert g.stats()["eager"] == {"warm-up": 2} and g.stats()["replays"] == 4
