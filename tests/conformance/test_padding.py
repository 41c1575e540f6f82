"""Padding: every planted step gives eager's results and leaves eager's effects, whatever is decided."""

from __future__ import annotations

import logging

import pytest
import torch

import gfxgraph
from gfxgraph.callables.buffers import dense_copy, pad, repeat_last
from tests.conformance.conftest import PLATFORMS
from tests.conformance.padding_cases import CASES

SIZES = (5, 5, 6, 5, 3, 6, 8, 3, 5)
BUCKETS = [4, 8]


ON_ONE = pytest.mark.parametrize("platform", PLATFORMS[:1], indirect=True)
"""What is judged is the graph, which is the same on each; the verdicts are tested without any."""


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: threads of a busy machine only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def clones(args):
    return tuple(a.clone() for a in args)


def near(a, b):
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4, equal_nan=True)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(near, a, b))
    return a == b


@torch.no_grad()
def play(name):
    """Run a case over many sizes beside eager; results, arguments and outside state must be eager's."""
    case, twin = CASES[name](), CASES[name]()
    for mine, other in zip(case.outside, twin.outside):
        mine.copy_(other)
    g = gfxgraph.graphed(case.step, dynamic=case.dynamic, buckets=BUCKETS)
    for i, n in enumerate(SIZES):
        torch.manual_seed(100 + i)
        args = case.args(n)
        others = clones(args)
        got, want = g(*args), twin.step(*others)
        assert near(got, want), f"call {i} of {n}"
        assert near(args, others), f"arguments of call {i} of {n}"
        assert near(case.outside, twin.outside), f"outside after call {i} of {n}"
    return case, g


HARMLESS = [name for name, make in CASES.items() if make.__name__ == "harmless"]
HARMFUL = [name for name in CASES if name not in HARMLESS]
# In the simulator every fourth: each is traced by Dynamo, and tests/unit/callables/padding has their verdicts.
EVERY = 1 if PLATFORMS == ["gpu"] else 4


@pytest.mark.parametrize("name", HARMLESS[::EVERY])
@ON_ONE
def test_harmless_padding_is_found_harmless(name, platform):
    """Graphs serve sizes that come and go, with eager's results and effects."""
    case, g = play(name)
    assert case.op is None
    # Sizes 3, 5 and 6 are compared once each; all later calls of them are replays.
    assert not g._padding.refusals, g.explain()
    assert g.stats()["replays"] >= 4, g.explain()


@pytest.mark.parametrize("name", HARMFUL[::EVERY])
@ON_ONE
def test_padding_that_matters_is_refused_with_the_operation(name, platform):
    """Results and effects are eager's all the same; the operation and its line are named."""
    case, g = play(name)
    events = [e for e in gfxgraph.stats()["events"] if e["kind"] == "padding_refused"]
    assert events, g.explain()
    assert all(any(e["op"].startswith(op) for op in case.op.split("|")) for e in events), events
    assert all("padding_cases.py" in e["where"] for e in events if "::" in e["op"]), events


@ON_ONE
def test_a_refusal_is_logged_once_and_counted(platform, caplog):
    """The first time with what, why and what to do; afterwards only counted."""
    g = gfxgraph.graphed(lambda x: x - x.mean(0), dynamic={"x": {0: "n"}}, buckets=BUCKETS)
    with caplog.at_level(logging.WARNING, logger="gfxgraph"):
        for _ in range(3):
            for n in (3, 2, 5):
                g(torch.randn(n, 4, device="cuda"))
    said = [r.getMessage() for r in caplog.records if "padding_refused" in r.getMessage()]
    assert len(said) == 1
    assert "aten::mean" in said[0] and "test_padding.py" in said[0]
    eager = g.stats()["eager"]
    assert sum(n for reason, n in eager.items() if reason.startswith("padding refused")) == 8
    assert "aten::mean" in g.explain()


@ON_ONE
def test_a_refused_bucket_serves_calls_of_its_own_size(platform):
    """Nothing is padded there, so nothing is wrong."""
    g = gfxgraph.graphed(lambda x: x - x.mean(0), dynamic={"x": {0: "n"}}, buckets=BUCKETS)
    for n in (3, 4, 4, 4):
        x = torch.randn(n, 4, device="cuda")
        assert torch.allclose(g(x), x - x.mean(0), atol=1e-6)
    assert g.stats()["replays"] == 3


@ON_ONE
def test_a_step_that_branches_on_its_size_is_found_out(platform):
    """What the function does at the call's size must be what it does at the bucket's, even where values agree."""
    step = lambda x: x * 2 if x.shape[0] > 6 else x + x  # noqa: E731
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[8])
    for n in (7, 7, 7, 5, 5, 6, 7, 5):
        x = torch.randn(n, 4, device="cuda")
        assert torch.equal(g(x), step(x))
    assert g.stats()["replays"] == 2 and "is another operation in the bucket" in g.explain()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("blank", [torch.zeros, torch.ones])
@pytest.mark.parametrize(
    "step", [lambda x: x - x.mean(0), lambda x: x * x.shape[0], lambda x: x + x.amax(0), lambda x: x - x.amin(0)]
)
@ON_ONE
def test_data_without_contrast_proves_nothing(step, blank, sign, platform):
    """A warm-up on zeros or ones must not let a bucket through that real data shows to be wrong."""
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[8])
    for make, shift in ((blank, 0), (blank, 0), (torch.randn, sign), (torch.randn, sign), (torch.randn, -sign)):
        x = make(5, 4, device="cuda") + 5 * shift
        assert torch.allclose(g(x), step(x), atol=1e-5), g.explain()


@ON_ONE
def test_ids_all_alike_prove_nothing(platform):
    """The mean of one embedding five times is that of it eight times."""
    table = torch.randn(9, 4, device="cuda")
    step = lambda i: table[i].mean(0)  # noqa: E731
    g = gfxgraph.graphed(step, dynamic={"i": {0: "n"}}, buckets=[8])
    for make in (torch.zeros, torch.zeros, torch.ones, lambda n, **kw: torch.arange(n, **kw)):
        i = make(5, dtype=torch.long, device="cuda")
        assert torch.allclose(g(i), step(i), atol=1e-6)


@ON_ONE
def test_low_precision_does_not_hide_a_size(platform):
    """497 and 512 are 3 % apart, which bfloat16 would forgive; the same step on fewer rows is not near."""
    step = lambda x: x / x.shape[0]  # noqa: E731
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[512])
    for _ in range(3):
        x = torch.randn(497, 4, device="cuda").bfloat16()
        assert torch.equal(g(x), step(x))
    assert g.stats()["replays"] == 0
    assert "aten::div" in g.explain()


@ON_ONE
def test_random_numbers_are_those_of_eager_or_it_stays_eager(platform):
    """With the same seed, results and the generator's state are eager's over many calls."""
    step = lambda x: x + torch.rand_like(x)  # noqa: E731
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[64, 4096])
    sizes = (3, 60, 3, 64, 2000, 3, 60, 2000)
    data = [torch.randn(n, 7, device="cuda") for n in sizes]
    torch.manual_seed(1)
    want = [step(x) for x in data]
    state = torch.cuda.get_rng_state()
    torch.manual_seed(1)
    got = [g(x) for x in data]
    assert all(map(torch.equal, got, want))
    assert torch.equal(torch.cuda.get_rng_state(), state)


@ON_ONE
def test_a_size_that_depends_on_data_is_refused(platform):
    """Such a result has another size with the next call's data: the call is no single graph."""
    for step in (lambda x: x[x > 0], lambda x: x.unique()):
        g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[8])
        for _ in range(3):
            x = torch.randn(5, 4, device="cuda")
            assert torch.equal(g(x), step(x))
        assert not g._entries and not g.stats()["calls"]["by_graph"]
        ways = g.stats()["pieces"] | g.stats()["eager"]
        assert any("data" in why or "aten" in why for why in ways), g.explain()


@pytest.mark.parametrize("step", [lambda x: x, lambda x: x[:, 1:], lambda x: (x.view(-1), x + 1)])
@ON_ONE
def test_results_that_are_the_padded_argument(step, platform):
    """The caller's own argument, or a view of it, of its own size."""
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[8])
    for _ in range(4):
        x = torch.randn(5, 4, device="cuda")
        assert near(g(x), step(x))


@ON_ONE
def test_an_error_of_the_function_itself_is_the_callers(platform):
    """Raised as eager raises it, and the callable goes on."""

    def step(x):
        if x.shape[1] == 3:
            raise KeyError("mine")
        return x * 2

    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=BUCKETS)
    with pytest.raises(KeyError, match="mine"):
        g(torch.randn(3, 3, device="cuda"))
    x = torch.randn(3, 4, device="cuda")
    assert torch.equal(g(x), x * 2)


@ON_ONE
def test_a_function_that_fails_only_when_padded_stays_eager(platform):
    """Something outside has as many rows as the call: the bucket's size does not fit it."""
    other = torch.randn(5, 4, device="cuda")
    g = gfxgraph.graphed(lambda x: x + other, dynamic={"x": {0: "n"}}, buckets=[8])
    for _ in range(3):
        x = torch.randn(5, 4, device="cuda")
        assert torch.equal(g(x), x + other)
    assert not g.stats()["replays"] and "padding refused" in g.explain()


@ON_ONE
def test_two_dims_are_padded_together(platform):
    """Batch and sequence, with a mask over the one and nothing across the other."""

    def step(ids, mask):
        x = ids.float()[..., None].cos() * mask[..., None]
        return x / (mask[..., None] + 1)

    dims = {name: {0: "batch", 1: "seq"} for name in ("ids", "mask")}
    g = gfxgraph.graphed(step, dynamic=dims, buckets={"batch": [4], "seq": [8, 16]})
    for b, s in [(3, 5), (3, 5), (4, 5), (3, 12), (4, 8), (3, 12), (3, 5), (2, 7), (4, 8)]:
        ids, mask = torch.randint(0, 50, (b, s), device="cuda"), torch.ones(b, s, device="cuda")
        assert torch.allclose(g(ids, mask), step(ids, mask), atol=1e-6), (b, s)
    assert g.stats()["replays"] >= 3


@ON_ONE
def test_padding_holds_zeros_or_the_last_row(platform):
    """Zero or the last row, corners included; what is real stays."""
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    made = dense_copy(x, (3, 4))
    pad(made, x.size())
    assert made.tolist() == [[0, 1, 2, 0], [3, 4, 5, 0], [0, 0, 0, 0]]
    static = torch.zeros(4, 4, device="cuda")
    static[:2, :3] = x
    repeat_last(static, (2, 3))
    assert static.tolist() == [[0, 1, 2, 2], [3, 4, 5, 5], [3, 4, 5, 5], [3, 4, 5, 5]]


def test_every_planted_kind_is_there():
    """The issue's list, so that none is lost when cases are moved about."""
    assert {"mean", "softmax over the batch", "batch norm in training"} <= set(HARMFUL)
    assert {"positions", "result that does not scale", "result in another dim"} <= set(HARMLESS)


class Deep:
    """Keeps a tensor where no walk finds it."""

    __slots__ = ("buffer", "n")

    def __init__(self):
        self.buffer, self.n = torch.zeros(8, 4, device="cuda"), 0

    def __call__(self, x):
        self.n += 1
        torch.add(self.buffer[: len(x)], x, out=self.buffer[: len(x)])
        return self.buffer


@ON_ONE
def test_a_result_that_is_memory_from_outside(platform):
    """A tensor that the step writes and returns looks like memory of its own; it is written once a call."""
    mine, eager = Deep(), Deep()
    g = gfxgraph.graphed(mine, dynamic={"x": {0: "n"}}, buckets=[8])
    for n in (5, 5, 7, 5):
        x = torch.randn(n, 4, device="cuda")
        assert torch.allclose(g(x), eager(x), atol=1e-6)
    assert torch.allclose(mine.buffer, eager.buffer, atol=1e-6)


@ON_ONE
def test_repeated_padded_calls_in_hot_mode_are_cut(platform):
    """Calls of one size take a shorter way; their results are cut to that size too."""
    weight = torch.randn(4, 4, device="cuda")
    g = gfxgraph.graphed(lambda x: (x @ weight).relu(), dynamic="infer", buckets=[8, 16], mode="hot")
    for n in (3, 5, 7, *[5] * 8, *[11] * 8):
        x = torch.randn(n, 4, device="cuda")
        y = g(x)
        assert y.shape == (n, 4) and torch.allclose(y, (x @ weight).relu(), atol=1e-5), n
    assert g.stats()["replays"] >= 10, g.explain()


@pytest.mark.parametrize("mode", ["standard", "hot"])
@ON_ONE
def test_a_transposed_argument_in_a_bucket_keeps_its_elements_apart(platform, mode):
    """Its bytes lie in another order than the bucket's buffer has them: eager's result, on the short way too."""
    g = gfxgraph.graphed(lambda x: x * 2 + 1, dynamic={"x": {0: "n"}}, buckets=[8], mode=mode)
    for _ in range(6):
        x = torch.randn(4, 5, device="cuda").t()
        assert torch.equal(g(x), x * 2 + 1)
    assert g.stats()["replays"] >= 4, g.explain()


@pytest.mark.parametrize("step", [lambda x: x.cumsum(1) * 2, lambda x: x - x.mean(0)])
@ON_ONE
def test_a_function_that_is_not_traced_is_judged_by_running_it_without_data(step, platform):
    """assume_pure: the same verdict, from symbols for sizes in place of Dynamo's graph."""
    g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[8], assume_pure=True)
    for n in (5, 5, 7, 1, 5, 7, 1):
        x = torch.randn(n, 4, device="cuda")
        assert torch.allclose(g(x), step(x), atol=1e-6)
    assert bool(g.stats()["replays"]) is not bool(g._padding.refusals)
    assert ("aten::mean" in g.explain()) is bool(g._padding.refusals)


@ON_ONE
def test_one_row_is_the_same_program(platform):
    """Dynamo traces a size of one on its own; the graph does the same, unless the function asks for that size."""
    for step, is_served in (
        (lambda x: x.cumsum(1) + x.shape[1], True),
        (lambda x: x * (2 if len(x) == 1 else 3), False),
    ):
        g = gfxgraph.graphed(step, dynamic={"x": {0: "n"}}, buckets=[4])
        for n in (3, 3, 3, 1, 1, 1):
            x = torch.randn(n, 4, device="cuda")
            assert torch.allclose(g(x), step(x))  # a GPU sums a bucket in another order
        assert g.stats()["replays"] == (2 if is_served else 1), g.explain()


@ON_ONE
def test_a_padded_run_leaves_nothing_behind(platform):
    """Counters, caches, arguments and generators are those of one eager call, when the run is compared."""
    count, twin = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")

    def step(x, count):
        count.add_(1)
        count[0] = torch.rand((), device="cuda")
        return x.mul_(2) + count[1]

    g = gfxgraph.graphed(lambda x: step(x, count), dynamic={"x": {0: "n"}}, buckets=[8])
    for i in range(5):
        x = torch.randn(5, 4, device="cuda")
        y = x.clone()
        torch.manual_seed(i)
        mine, state = g(x), torch.cuda.get_rng_state()
        torch.manual_seed(i)
        assert torch.equal(mine, step(y, twin)) and torch.equal(x, y) and torch.equal(count, twin)
        assert torch.equal(state, torch.cuda.get_rng_state())
    assert g.stats()["replays"] == 3, g.explain()
