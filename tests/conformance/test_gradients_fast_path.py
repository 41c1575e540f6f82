"""A known call whose result needs gradients: none of Dynamo's code runs, and whatever has changed is noticed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gfxgraph
from gfxgraph.callables.graphed import Graphed
from gfxgraph.callables.training import gradients as gradients_room

pytestmark = pytest.mark.any_platform


class Averaging(nn.Module):
    """Its results depend on a buffer that each forward writes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x):
        made = x * self.weight * self.mean.clone()
        with torch.no_grad():
            self.mean.mul_(1.25)
        return made


class Counting(Averaging):
    """As above, with `+=` and `*=`: each stores the tensor that was there."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.n += 1
        made = x * self.weight * self.mean.clone()
        self.mean *= 1.25
        return made


def of(name):
    torch.manual_seed(0)
    made = {
        "linear": lambda: nn.Linear(4, 4),
        "norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        "averaging": Averaging,
        "counting": Counting,
        "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    }[name]()
    return made.cuda()


def batch(seed, n=3, **kwargs):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).cuda().requires_grad_(**kwargs)


def pair(name):
    """A module that is graphed and has a fast path, and eager's, in the same state."""
    module = of(name)
    graphed = gfxgraph.graphed(module)
    for seed in range(5):
        graphed(batch(seed, requires_grad=False)).sum().backward()
    module.zero_grad()
    return graphed, module, copy.deepcopy(module)


def gradients(module):
    return [each.grad for each in module.parameters()] + list(module.buffers())


def assert_same(one, other):
    assert [each is None for each in one] == [each is None for each in other]
    for a, b in zip(one, other):
        if a is not None:
            torch.testing.assert_close(a, b)


def step(call, module, change, seed):
    """A call after a change, its result, and gradients if it has any."""
    x = batch(seed, requires_grad=False)
    with_change = change(module, x) if change is not None else None
    result = with_change(call, x) if with_change is not None else call(x)
    if result.requires_grad:
        (result * torch.arange(4.0, device="cuda")).sum().backward()
    return result.detach()


@pytest.mark.parametrize("name", ["linear", "norm", "averaging"])
def test_a_known_call_runs_none_of_dynamos_code(platform, monkeypatch, name):
    """Results, gradients that add up and running statistics are eager's; every call is counted as by a graph."""
    graphed, module, eager = pair(name)
    before = graphed.stats()["replays"]
    monkeypatch.setattr(Graphed, "_slow", lambda *_: pytest.fail("the slow path"))
    for seed in range(3):
        torch.testing.assert_close(step(graphed, module, None, seed), step(eager, eager, None, seed))
    assert_same(gradients(module), gradients(eager))
    assert graphed.stats()["replays"] == before + 3
    assert Graphed.of(graphed)._worlds.n_one_graph == before + 3


def test_a_buffer_that_the_module_adds_to(platform):
    """`+=` and `*=` store the tensor that was there: it stays in place, and a graph writes to it."""
    graphed, module, eager = pair("counting")
    before = graphed.stats()["replays"]
    for seed in range(3):
        torch.testing.assert_close(step(graphed, module, None, seed), step(eager, eager, None, seed))
    assert_same(gradients(module), gradients(eager))
    assert graphed.stats()["replays"] == before + 3


def frozen(module, x):
    module.weight.requires_grad_(False)


def replaced(module, x):
    module.weight = nn.Parameter(module.weight.detach() * 2)


def moved(module, x):
    module.weight.data = module.weight.data * 3


def hooked(module, x):
    module.register_forward_hook(lambda _, __, made: made * 5)


def without_gradients(module, x):
    return lambda call, x: torch.no_grad()(call)(x)


def under_autocast(module, x):
    return lambda call, x: torch.autocast("cuda", torch.bfloat16)(call)(x).float()


def with_an_input_that_needs_gradients(module, x):
    x.requires_grad_()


def of_another_size(module, x):
    return lambda call, x: call(x[:2])


def through_a_transposed_argument(module, x):
    return lambda call, x: call(x[:, :3].repeat(1, 2)[:, 1:5].t().contiguous().t())


def checkpointed(module, x):
    return lambda call, x: checkpoint(call, x.requires_grad_(), use_reentrant=False)


def saved_elsewhere(module, x):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2)

    def inside(call, x):
        with hooks:
            return call(x)

    return inside


CHANGES = [
    frozen, replaced, moved, hooked, without_gradients, under_autocast, with_an_input_that_needs_gradients,
    of_another_size, through_a_transposed_argument, checkpointed, saved_elsewhere,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_noticed(platform, change):
    """The call after a change, and those after that, are eager's in results and gradients."""
    graphed, module, eager = pair("linear")
    for seed, each in enumerate((None, change, None, change, None)):
        ours, theirs = step(graphed, module, each, seed), step(eager, eager, each, seed)
        torch.testing.assert_close(ours, theirs)
        assert_same(gradients(module), gradients(eager))


def test_another_mode_has_another_graph_and_the_first_is_found_again(platform, monkeypatch):
    """A module that trains, is evaluated and trains again has fast paths for both after a few calls."""
    graphed, module, eager = pair("norm")
    for is_training in (False, True, False, True):
        module.train(is_training)
        eager.train(is_training)
        for seed in range(4):
            torch.testing.assert_close(step(graphed, module, None, seed), step(eager, eager, None, seed))
    assert_same(gradients(module), gradients(eager))
    monkeypatch.setattr(Graphed, "_slow", lambda *_: pytest.fail("the slow path"))
    step(graphed, module, None, 0)


@pytest.mark.parametrize("is_validating", [False, True])
@pytest.mark.parametrize("name", ["norm", "averaging"])
def test_two_forwards_before_one_backward(platform, name, is_validating):
    """As in the step of a GAN or of a siamese net: what a forward writes does not matter to the other's backward."""
    if is_validating:  # its runs count as changes of what is written
        gfxgraph.disable()
        gfxgraph.enable(validate=True, **({"allow_cuda": True} if platform == "gpu" else {"simulate": platform}))
    module, others = of(name), [batch(seed, requires_grad=False) for seed in range(12)]
    eager, graphed = copy.deepcopy(module), gfxgraph.graphed(module)
    for one, other in zip(others[::2], others[1::2]):
        for call, owner in ((graphed, module), (eager, eager)):
            owner.zero_grad()
            a, b = call(one), call(other)
            (a.sum() + (a * b).square().sum()).backward()
        assert_same(gradients(module), gradients(eager))
    assert graphed.stats()["replays"] >= 8


def test_dropout_draws_eagers_numbers_and_draws_them_again(platform):
    """Two forwards before one backward: each backward has the mask of its own forward."""
    graphed, module, _ = pair("dropout")
    a, b = (graphed(batch(seed, requires_grad=False)) for seed in (1, 2))
    masks = [(each != 0).float() * 2 for each in (a, b)]
    (a.sum() + b.sum()).backward()
    torch.testing.assert_close(module[0].bias.grad, (masks[0] + masks[1]).sum(0))


def test_the_errors_of_a_backward_are_torchs(platform):
    """A parameter that was changed in between, and a second backward without ``retain_graph``."""
    graphed, module, _ = pair("linear")
    x = batch(1, requires_grad=True)
    made = graphed(x)
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()
    made = graphed(x).sum()
    made.backward()
    with pytest.raises(RuntimeError, match="second time"):
        made.backward()


def test_hooks_run_once_and_see_gradients_of_their_own(platform):
    """Hooks of a parameter, those after accumulation, and ``torch.autograd.grad``: what they are given stays."""
    graphed, module, _ = pair("linear")
    seen, after = [], []
    module.weight.register_hook(seen.append)
    module.weight.register_post_accumulate_grad_hook(lambda each: after.append(each.grad.clone()))
    for seed in (1, 2):
        graphed(batch(seed, requires_grad=False)).sum().backward()
    assert len(seen) == len(after) == 2
    torch.testing.assert_close(seen[0] + seen[1], module.weight.grad)
    assert not torch.equal(seen[0], seen[1])
    (kept,) = torch.autograd.grad(graphed(batch(3, requires_grad=False)).sum(), module.weight)
    before = kept.clone()
    graphed(batch(4, requires_grad=False)).sum().backward()
    assert torch.equal(kept, before)


class Tied(nn.Module):
    """Its two layers have one weight, and it takes a number beside its input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x, scale=None):
        return self.second(self.first(x)) * (1 if scale is None else scale)


def test_tied_weights_accumulation_and_arguments_of_other_kinds(platform):
    """A weight used twice has one gradient that adds up over steps; what is no tensor is eager's, or eager's error."""
    module = Tied().cuda()
    graphed, eager = gfxgraph.graphed(module), copy.deepcopy(module)
    for seed in range(8):
        for call, owner in ((graphed, module), (eager, eager)):
            call(batch(seed, requires_grad=False)).square().mean().backward(retain_graph=seed == 6)
            if seed % 3 == 2:
                owner.zero_grad(set_to_none=seed == 2)
        assert_same(gradients(module), gradients(eager))
    x = batch(1, requires_grad=False)
    torch.testing.assert_close(graphed(x, torch.full((4,), 2.0, device="cuda")), eager(x) * 2)
    torch.testing.assert_close(graphed(x, 3), eager(x) * 3)
    for wrong in (None, 2, "x", [1.0]):
        with pytest.raises(TypeError) as theirs:
            eager(wrong)
        with pytest.raises(TypeError) as mine:
            graphed(wrong)
        assert str(mine.value) == str(theirs.value)
    torch.testing.assert_close(graphed(x), eager(x))


def test_an_evicted_graph_is_not_kept_and_is_captured_again(platform):
    """Its fast path goes with it."""
    graphed, module, eager = pair("linear")
    (graphs,) = Graphed.of(graphed)._worlds.with_gradients
    graphs.evict("for the test")
    assert not graphs.is_captured
    for seed in range(3):
        torch.testing.assert_close(step(graphed, module, None, seed), step(eager, eager, None, seed))
    assert_same(gradients(module), gradients(eager))
    assert graphs.n_captures == 2


@pytest.mark.parametrize("net", [lambda: torch.nn.Linear(8, 8), lambda: torch.nn.BatchNorm1d(8)])
def test_a_step_is_one_launch_each_way(net, platform, monkeypatch):
    """Copies of arguments, results and gradients are nodes of the launch; a batch norm saves none of its statistics."""
    if platform != "cuda":
        pytest.skip("this runtime's execs must not be changed from call to call")
    import gfxgraph_simulator as simulator

    net = net().cuda()
    g, x, grad = gfxgraph.graphed(net), *(torch.randn(4, 8, device="cuda") for _ in range(2))
    for _ in range(6):
        g(x).backward(grad)
    device, seen = simulator.active().device, []
    for name in ("submit", "launch"):
        real = getattr(device, name)
        monkeypatch.setattr(device, name, lambda *args, _real=real, _name=name: seen.append(_name) or _real(*args))
    for p in net.parameters():
        p.grad = None
    g(x).backward(grad)
    assert [name for name in seen if name == "launch"] == ["launch"] * 2 and len(seen) == 2, seen


def test_a_gradient_is_its_parameters_alone(platform):
    """Gradients that share an allocation share neither values nor a version, and one that is kept stays as it is."""
    graphed, module, _ = pair("norm")
    graphed(batch(1, requires_grad=False)).square().sum().backward()
    grads = [each.grad for each in module.parameters()]
    kept, versions = [each.clone() for each in grads], [each._version for each in grads]
    grads[0].mul_(3)
    assert [each._version for each in grads[1:]] == versions[1:] and all(each._base is None for each in grads)
    module.zero_grad()
    graphed(batch(2, requires_grad=False)).square().sum().backward()
    assert_same(grads, [kept[0] * 3, *kept[1:]])


def test_backwards_of_all_sizes_and_modules_share_their_memory(platform):
    """Each has its gradients in the same memory: so other sizes take little more, and in any order all are eager's."""
    torch.manual_seed(0)
    nets = [nn.Linear(512, 4096).cuda() for _ in range(2)]  # 8 MiB
    graphed, eager = [gfxgraph.graphed(each) for each in nets], [copy.deepcopy(each) for each in nets]
    inputs = [torch.randn(n, 512, device="cuda") for n in (4, 7, 16, 5)]
    for x in inputs:
        for g in graphed:
            for _ in range(3):
                g(x).sum().backward()
    pairs = [each._pair for g in graphed for each in Graphed.of(g)._worlds.with_gradients]
    assert len(pairs) >= 4 and all(each._memory is pairs[0]._memory for each in pairs)
    before = torch.cuda.memory_stats()["reserved_bytes.all.current"]
    for n in range(17, 25):
        for _ in range(3):
            graphed[0](torch.randn(n, 512, device="cuda")).sum().backward()
    grown = torch.cuda.memory_stats()["reserved_bytes.all.current"] - before
    assert grown < 4 * nets[0].weight.nbytes, grown
    streams = [torch.cuda.Stream() for _ in range(2)]
    for way, owners in ((graphed, nets), (eager, eager)):
        for each in owners:
            each.zero_grad()
        made = []
        for i, x in enumerate([*inputs, *inputs]):
            with torch.cuda.stream(streams[i % 2]):
                made.append(way[i % 3 % 2](x).square().mean())
        for at in (3, 0, 7, 1, 6, 2, 5, 4):
            made[at].backward()
        torch.cuda.synchronize()
    for mine, theirs in zip(nets, eager):
        torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])


def test_forwards_of_all_sizes_share_their_memory_until_two_run_at_once(platform):
    """Sizes that follow one another take the largest one's memory; a step with two of them is eager's all the same."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Dropout(0.5), nn.Linear(4096, 64)).cuda()
    graphed, eager = gfxgraph.graphed(net), copy.deepcopy(net)

    def step(call, owner, *sizes):
        owner.zero_grad()
        torch.manual_seed(sum(sizes))
        results = [call(torch.randn(n, 64, device="cuda")) for n in sizes]
        sum(each.square().mean() for each in results).backward()
        return [each.grad for each in owner.parameters()]

    for n in (1000, 1024, 512, 600, 700, 800, 900):  # results of GELU and dropout: 16 MiB each
        for _ in range(3):
            step(graphed, net, n)
        if n == 1024:  # the second size is traced again, for all that follow
            before = torch.cuda.memory_stats()["reserved_bytes.all.current"]
    assert torch.cuda.memory_stats()["reserved_bytes.all.current"] - before < 16 << 20
    for n in (512, 900):
        assert_same(step(graphed, net, n), step(eager, eager, n))
    for sizes in ((512, 600), (600, 512), (512, 900)) * 2:
        assert_same(step(graphed, net, *sizes), step(eager, eager, *sizes))
    number = (pairs := [each._pair for each in Graphed.of(graphed)._worlds.with_gradients])[0]._home.number
    assert len({id(each._home) for each in pairs}) > 1
    step(graphed, net, 600, 512)
    assert pairs[0]._home.number <= number + 1, "a forward ran twice"


@torch.library.custom_op("gfxgraph_tests::undrawn", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def doubled(x: torch.Tensor) -> torch.Tensor:
    """May draw, by its tag, and never does: as attention without dropout."""
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda _, grad: grad * 2)


def test_what_only_may_draw_is_differentiated_twice(platform):
    """Whether a graph draws is seen at its first replay: torch's tags say it of attention without dropout, too."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    graphed = gfxgraph.graphed(lambda x: doubled(x * weight).square())
    for seed in range(4):
        graphed(batch(seed, requires_grad=False)).sum().backward()
    x = batch(9, requires_grad=False)
    (grad,) = torch.autograd.grad(graphed(x).sum(), weight, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), weight)
    torch.testing.assert_close(again, 8 * x.square().sum(0))
    assert graphed.stats()["replays"] >= 3
    assert all(each._pair._run.draws is False for each in graphed._worlds.with_gradients)


def test_gradients_are_arguments_of_another_graph(platform):
    """A graphed function may write to gradients that lie in one allocation, but not to views of the same elements."""
    graphed, module, eager = pair("norm")
    scale = gfxgraph.graphed(lambda one, other: [one.mul_(2), other.mul_(3)] and None)
    for seed in range(4):
        for call, owner, change in ((graphed, module, scale), (eager, eager, lambda a, b: [a.mul_(2), b.mul_(3)])):
            owner.zero_grad()
            step(call, owner, None, seed)
            change(*[each.grad for each in list(owner.parameters())[:2]])
        assert_same(gradients(module), gradients(eager))
    assert scale.stats()["replays"] >= 2
    flat = torch.ones(6, device="cuda")
    for _ in range(3):
        scale(flat[:4], flat[2:])
    assert flat.tolist() == [8, 8, 216, 216, 27, 27]
    assert any("share memory" in why for why in scale.stats()["eager"])


def test_small_gradients_lie_apart_in_few_allocations(platform):
    """Sizes, strides and dtypes are those asked for, no two overlap, and large ones have memory of their own."""
    likes = [torch.empty(n, 3, device="cuda", dtype=d) for n in (1, 0, 7) for d in (torch.float32, torch.float16)]
    likes += [torch.empty(5, 9, device="cuda").t(), torch.ones((), device="cuda")]
    likes += [torch.empty(2, device="cuda")] * 40 + [torch.empty(200, 200, device="cuda")]
    made = gradients_room._parts_allocator(likes)()
    assert [(t.shape, t.stride(), t.dtype) for t in made] == [(t.shape, t.stride(), t.dtype) for t in likes]
    for i, t in enumerate(made):
        t.fill_(i)
    assert all(bool((t == i).all()) for i, t in enumerate(made))
    homes = [t.untyped_storage().data_ptr() for t in made]
    assert len(set(homes)) == 4 and homes.count(homes[-1]) == 1
    assert all(t.storage_offset() * t.itemsize % 512 == 0 for t in made)
    assert gradients_room._parts_allocator([])() == []


def _rows_back(order, grad):
    made = torch.zeros_like(grad)
    for at, row in enumerate(order.tolist()):
        made[row] = grad[at]
    return made.index_select(0, order).index_select(0, order.argsort())


@torch.library.custom_op("gfxgraph_tests::rows_back", mutates_args=())
def _rows_back_by_one(order: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return _rows_back(order, grad)


_rows_back_by_one.register_fake(lambda order, grad: torch.empty_like(grad))


def _sorting(name, back):
    """An operation that sorts rows, whose backward reads on the host where they were."""

    @torch.library.custom_op(f"gfxgraph_tests::{name}", mutates_args=())
    def sort(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = x[:, 0].argsort(descending=True)
        return x[order], order

    sort.register_fake(lambda x: (torch.empty_like(x), x.new_empty(x.shape[:1], dtype=torch.long)))
    sort.register_autograd(
        lambda ctx, grad, _: back(*ctx.saved_tensors, grad.contiguous()),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
    )
    return sort


@pytest.mark.parametrize("back", [_rows_back, _rows_back_by_one], ids=["python", "an operation"])
def test_a_backward_that_reads_what_its_forward_left(platform, back):
    """The forward has run before the host reads. An operation whose kernel reads, as the experts of transformers do
    without a grouped product, is a step of the host's; values that Python reads make the backward eager where they
    have changed.
    """
    sort = _sorting(f"sorted_{platform}_{'one' if back is _rows_back_by_one else 'python'}", back)
    step = lambda x: sort(x * 2)[0].cumsum(0)  # noqa: E731
    g = gfxgraph.graphed(step)
    for seed in (0, 0, 0, 0, 1, 0):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).cuda().requires_grad_()
        wanted, found = (torch.autograd.grad(each(x).square().sum(), x)[0] for each in (step, g))
        torch.testing.assert_close(found, wanted)
    assert g.stats()["replays"] == 4, g.explain()
    assert ("has changed" in str(g.stats()["parts"])) is (back is _rows_back), g.explain()
