"""What was wrong, raised or dear on some torch that users have: one test a kind, which names those versions.

As a user has it: HIP with its validation of first replays, where no test says otherwise.
"""

from __future__ import annotations

import copy
import functools
import gc
import logging
import pickle
import subprocess
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import gfxgraph
from gfxgraph import torch_names
from tests.conformance.conftest import HAS_GPU
from tests.warm_python import warm_python

ENABLE = {"allow_cuda": True} if HAS_GPU else {"simulate": "hip"}


@pytest.fixture(autouse=True)
def as_a_user_has_it():
    torch._dynamo.reset()
    torch.manual_seed(0)
    gfxgraph.enable(**ENABLE)
    yield
    gfxgraph.disable()
    torch._dynamo.reset()
    gc.collect()


def two_layers():
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))


# -- values ----------------------------------------------------------------------------------------------------


def test_defaults_that_change_are_read_at_each_call():
    """Positional and keyword defaults that are lists, dicts or objects. Wrong, silently: 2.11."""

    class Box:
        n = 0

    def f(x, counts=[0], table={"n": 0}, box=Box(), *, seen=[]):  # noqa: B006, B008
        counts[0] += 1
        table["n"] += 2
        box.n += 3
        seen.append(counts[0])
        return x * counts[0] + table["n"] * 10 + box.n * 100 + len(seen) * 1000

    g = gfxgraph.graphed(f)
    x = torch.ones(1, device="cuda")
    assert [g(x).item() for _ in range(6)] == [i + 20 * i + 300 * i + 1000 * i for i in range(1, 7)]


def test_batch_norm_is_called_twice_before_one_backward():
    """The step of a GAN or a siamese net: buffers that the forward writes. Raised: 2.11, 2.12, 2.13."""
    mine = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
    eager = copy.deepcopy(mine)
    g = gfxgraph.graphed(mine)
    for _ in range(6):
        one, two = (torch.randn(3, 4, device="cuda") for _ in range(2))
        for call, net in ((g, mine), (eager, eager)):
            net.zero_grad()
            (call(one).sum() + call(two).square().sum()).backward()
        for p, q in zip((*mine.parameters(), *mine.buffers()), (*eager.parameters(), *eager.buffers())):
            torch.testing.assert_close(p, q)
            if p.requires_grad:
                torch.testing.assert_close(p.grad, q.grad)
    assert g.stats()["replays"], g.explain()


@pytest.mark.parametrize("waits", [False, True])
def test_a_pair_of_events_measures_inside(waits):
    """Events made and read inside, or read by the caller later. Raised: 2.11 (on a GPU, too), 2.13."""

    def timed(x):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        y = x * 2
        end.record()
        if waits:
            end.synchronize()
            assert begin.elapsed_time(end) >= 0
        return y, begin, end

    g = gfxgraph.graphed(timed)
    for i in range(5):
        y, begin, end = g(torch.full((3,), float(i), device="cuda"))
        end.synchronize()
        assert begin.elapsed_time(end) >= 0
        assert y.tolist() == [2.0 * i] * 3


def test_a_compiled_model_trains_on_many_lengths(monkeypatch):
    """``reduce-overhead`` with sizes of a backward that vary. Raised, in the simulator: 2.11, 2.13."""
    monkeypatch.setenv("GFXGRAPH_COMPILE", "1")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.a, self.b = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)

        def forward(self, ids, mask):
            logits = self.b(nn.functional.gelu(self.a(self.emb(ids))))
            return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0] * mask

    mine = Net().cuda()
    eager = copy.deepcopy(mine)
    compiled = torch.compile(mine, mode="reduce-overhead")
    for n in (9, 30, 12, 25, 16, 7, 31, 20, 11, 28):
        ids, mask = torch.randint(0, 20, (4, n), device="cuda"), (torch.rand(4, n, device="cuda") > 0.1).float()
        for call, net in ((compiled, mine), (eager, eager)):
            net.zero_grad()
            (-call(ids, mask).sum() / mask.sum()).backward()
        for p, q in zip(mine.parameters(), eager.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
            with torch.no_grad():
                p -= 0.1 * p.grad
                q -= 0.1 * q.grad


@pytest.mark.parametrize(("options", "is_told"), [({}, True), ({"capturable": True}, False)], ids=["host", "device"])
def test_where_an_optimizer_counts_its_steps_is_told(options, is_told):
    """In a traced step always on the device: its float32 arithmetic is eager's only with ``capturable=True``.

    On torch 2.9.1 and 2.11 one of 16 numbers is one unit in the last place apart even then, for a reason not known.
    """

    def trained(wrap):
        torch.manual_seed(0)
        net = two_layers().cuda()
        optimizer = torch.optim.RAdam(net.parameters(), lr=0.01, **options)

        def step(x):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

        step = wrap(step)
        for i in range(12):
            step(torch.full((2, 4), float(i % 3), device="cuda"))
        return step, [each.detach().clone() for each in net.parameters()]

    (g, ours), (_, eager) = trained(gfxgraph.graphed), trained(lambda step: step)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3 if is_told else 1e-9 * (torch_names.version() < (2, 12)))
    assert g.stats()["replays"] and ("RAdam counts its steps on the device" in g.explain()) is is_told


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda each: each.__name__)
def test_dropout_between_recurrent_layers_is_eagers(kind):
    """In training it runs eagerly, by name: cuDNN's state of dropout is one a process, and no graph repeats it."""

    def trained(wrap):
        torch.manual_seed(0)
        net = kind(3, 4, num_layers=2, dropout=0.5).cuda()
        run, found = wrap(net), []
        for _ in range(8):
            net.zero_grad()
            result = run(torch.ones(2, 2, 3, device="cuda"))[0]
            result.sum().backward()
            grads = [each.grad.clone() for each in net.parameters()]
            found.append([result.detach().clone(), *grads, torch.cuda.get_rng_state()])
        return run, found

    (g, ours), (_, eager) = trained(gfxgraph.graphed), trained(lambda net: net)
    if not HAS_GPU:  # where cuDNN's state goes on: tests/gpu/recurrent_dropout.py compares two processes
        assert all(map(torch.equal, sum(ours, []), sum(eager, [])))
    assert not g.stats()["replays"] and any("random state of its dropout" in why for why in g.stats()["eager"])
    still = gfxgraph.graphed(kind(3, 4, num_layers=2, dropout=0.5).cuda().eval())
    with torch.no_grad():
        for _ in range(4):
            still(torch.ones(2, 2, 3, device="cuda"))
    assert still.stats()["replays"]


def test_a_compiled_body_in_a_plain_capture_keeps_what_it_reads():
    """Its input is freed after the capture and the memory has another owner. Wrong: 2.11, on a GPU."""
    compiled = torch.compile(lambda a, w: (a @ w).relu())
    w, a = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    compiled(a, w)
    expected = compiled(a, w).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(a, w)
    del a
    others = [torch.full((64, 64), 9.0, device="cuda") for _ in range(8)]
    graph.replay()
    assert torch.equal(y, expected)
    del others


# -- what Dynamo is to torch's own users, and what it is to us ---------------------------------------------------

STREAM_IS_GONE = """
import gc, torch, gfxgraph
gfxgraph.enable(**{enable})
def f(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    return y
x = torch.ones(3, device="cuda")
for _ in range(3):
    assert gfxgraph.graphed(f)(x).tolist() == [2.0] * 3
gc.collect()
for n in range(5):
    g = gfxgraph.graphed(lambda x: x + n)
    assert [g(x)[0].item() for _ in range(3)] == [1.0 + n] * 3
print("right")
"""


def test_a_stream_that_a_trace_saw_may_be_gone():
    """Then any other graphed function is called. Segmentation fault of Dynamo: 2.11, on a GPU, 5 of 5."""
    program = STREAM_IS_GONE.format(enable=ENABLE)
    done = subprocess.run([warm_python(), "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr[-2000:]


NAME_IS_GONE = """
import torch, gfxgraph
import torch._dynamo.variables as variables
del variables.BuiltinVariable.call_isinstance
gfxgraph.enable(**{enable})
g = gfxgraph.graphed(lambda x: x * 2 + 1)
for _ in range(4):
    assert g(torch.ones(3, device="cuda")).tolist() == [3.0] * 3
print("right")
"""


def test_a_private_name_of_torch_is_gone():
    """As the next torch takes some away: a feature is off, and nothing raised into the program. Raised: every one."""
    program = NAME_IS_GONE.format(enable=ENABLE)
    done = subprocess.run([warm_python(), "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr[-2000:]


def test_an_argument_nested_deeply_is_no_recursion_error():
    """What our own machinery cannot take runs eagerly. RecursionError out of it: every one."""
    nested = torch.ones(2, device="cuda")
    for _ in range(500):
        nested = [nested]

    def innermost(tree):
        while isinstance(tree, list):
            (tree,) = tree
        return tree + 1

    g = gfxgraph.graphed(innermost)
    assert [g(nested).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4


# -- cost ----------------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 4) for name in "abc"})

    def forward(self, x):
        return {name: head(x) for name, head in self.heads.items()}


ORDINARY = {
    "Linear": lambda: nn.Linear(4, 4),
    "Sequential": two_layers,
    "ModuleList": Layers,
    "ModuleDict": Heads,
    "nested": lambda: nn.Sequential(two_layers(), nn.Sequential(two_layers(), nn.Dropout())),
    "LSTM": lambda: nn.LSTM(4, 4),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_a_call_of_an_ordinary_module_is_not_dearer_than_eager(name):
    """CPU a call: 5,600 us against 350 for a Sequential, each counted as a replay. Dear: 2.10 (some), 2.11, 2.12."""
    gfxgraph.disable()
    gfxgraph.enable(**ENABLE, validate=False)
    net = ORDINARY[name]().cuda().eval()
    g = gfxgraph.graphed(net)
    x = torch.randn(8, 4, device="cuda")

    def best_us(call):
        for _ in range(20):
            call(x)
        found = []
        for _ in range(7):
            torch.cuda.synchronize()
            begun = time.process_time()
            for _ in range(20):
                call(x)
            found.append((time.process_time() - begun) / 20 * 1e6)
        return min(found)

    with torch.no_grad():
        eager, graphed = best_us(net), best_us(g)
    # In the simulator a replay computes too, and its launch takes 100 us that a GPU's does not.
    assert graphed < 2 * eager + (0 if HAS_GPU else 200), g.explain()


def test_the_first_graphed_module_of_a_newcomer_is_replayed():
    """Linear: raised at the start: 2.9. Never captured, "Dynamo cannot trace it": 2.9, 2.10."""
    net = two_layers().cuda().eval()
    g = gfxgraph.graphed(net)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(2, 4, device="cuda")
            torch.testing.assert_close(g(x), net(x))
    assert g.stats()["replays"] >= 4, g.explain()


# -- a graphed module is a module: every torch ----------------------------------------------------------------------


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = two_layers(), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


def test_it_is_one_of_the_same_class():
    """``isinstance`` against Module and against the original's class; its attributes and items are there."""
    net = two_layers().cuda()
    g = gfxgraph.graphed(net)
    assert isinstance(g, nn.Module)
    assert isinstance(g, nn.Sequential)
    assert g[0] is net[0] and len(g) == 3


def test_it_takes_the_place_of_a_child():
    """``net.encoder = graphed(net.encoder)``: a TypeError. Parameters, their names and the optimizer's view stay."""
    net = Parent().cuda()
    names, parameters = list(net.state_dict()), [id(p) for p in net.parameters()]
    x = torch.randn(2, 4, device="cuda")
    expected = net(x)
    net.encoder = gfxgraph.graphed(net.encoder)
    assert list(net.state_dict()) == names
    assert [id(p) for p in net.parameters()] == parameters
    for _ in range(4):
        torch.testing.assert_close(net(x), expected)
    assert net.encoder.stats()["replays"]


def test_as_a_new_attribute_its_parameters_are_the_parents():
    """``self.inner = graphed(inner)``: they silently left ``parameters()`` and ``state_dict()``, untrained, unsaved."""

    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gfxgraph.graphed(nn.Linear(4, 4).cuda())
            self.head = nn.Linear(4, 1).cuda()

        def forward(self, x):
            return self.head(self.inner(x))

    net = Wraps()
    assert sorted(net.state_dict()) == ["head.bias", "head.weight", "inner.bias", "inner.weight"]
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net.state_dict()["inner.weight"].clone()
    net(torch.randn(2, 4, device="cuda")).square().sum().backward()
    opt.step()
    assert not torch.equal(net.state_dict()["inner.weight"], before)


def test_it_stands_in_a_sequential():
    """``nn.Sequential(graphed(a), b)``: a TypeError."""
    a, b = nn.Linear(4, 4).cuda(), nn.Linear(4, 2).cuda()
    net = nn.Sequential(gfxgraph.graphed(a), b)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    x = torch.randn(2, 4, device="cuda")
    torch.testing.assert_close(net(x), b(a(x)))


def test_modes_moves_and_hooks_reach_the_original():
    """``train``, ``eval``, ``to``, hooks and ``apply`` through the graphed module, or through its parent."""
    parent = nn.Module()
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
    parent.net = g = gfxgraph.graphed(net)
    parent.eval()
    assert not net.training and not net[1].training and not g.training
    x = torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(g(x), net[0](x))
    parent.double()
    assert net[0].weight.dtype is torch.float64
    parent.float()
    handle = g.register_forward_hook(lambda module, given, out: out + 1)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(g(x), net[0](x) + 1)
        handle.remove()
        for _ in range(4):
            torch.testing.assert_close(g(x), net[0](x))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))], ids=["copied", "pickled"])
def test_a_copy_is_a_module_of_its_own(how):
    """``deepcopy`` and pickle give a graphed module with weights of its own."""
    g = gfxgraph.graphed(two_layers().cuda().eval())
    x = torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        expected = g(x)
        other = how(g)
        assert isinstance(other, nn.Module)
        for p in other.parameters():
            p.zero_()
        for _ in range(4):
            assert not other(x).any()
            torch.testing.assert_close(g(x), expected)


def test_data_parallel_takes_it(tmp_path):
    """``DistributedDataParallel(graphed(net))``, which asks for a module and its parameters: impossible."""
    backend = "nccl" if HAS_GPU else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = Parent().cuda()
        wrapped = nn.parallel.DistributedDataParallel(gfxgraph.graphed(net))
        assert list(wrapped.state_dict()) == [f"module.{name}" for name in net.state_dict()]
        for _ in range(4):
            x = torch.randn(2, 4, device="cuda")
            with torch.set_grad_enabled(HAS_GPU):  # the reducer's C++ wants a device that the simulator is not
                torch.testing.assert_close(wrapped(x), net(x))
            if HAS_GPU:
                wrapped(x).square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("p", "training", "draws"), [(0.0, True, False), (0.3, False, False), (0.3, True, True)], ids=str
)
def test_a_checkpointed_block_is_a_graph_unless_it_draws(p, training, draws):
    """Attention and dropout with a probability of zero, as language models are trained, draw nothing."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(p)

        def attend(self, x):
            q = self.linear(x).view(2, 2, 2, 4)
            mixed = F.scaled_dot_product_attention(q, q, q, None, p if self.training else 0.0, True)
            return F.dropout(self.dropout(mixed).reshape(x.shape), p=p, training=self.training)

        def forward(self, x):
            return x + checkpoint(self.attend, x, use_reentrant=False)

    def trained(wrap):
        torch.manual_seed(0)
        block = Block().cuda().train(training)
        run, optimizer = wrap(block), torch.optim.SGD(block.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            run(torch.randn(4, 8, device="cuda")).square().mean().backward()
            optimizer.step()
        return run, block.linear.weight

    (g, ours), (_, eager) = trained(gfxgraph.graphed), trained(lambda block: block)
    torch.testing.assert_close(ours, eager)
    why = "it uses checkpointing around a part that draws random numbers"
    assert bool(g.stats()["replays"]) is not draws and (why in g.stats()["eager"]) is draws


def test_a_step_with_its_backward_names_what_makes_one_graph_of_it():
    net = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @gfxgraph.graphed
    def one_step(x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for _ in range(4):
        one_step(torch.ones(3, 4, device="cuda"))
    advice = "as gfxgraph.TrainingStep(step) a step of training is one graph"
    assert advice in one_step.explain()
    told = [each for each in gfxgraph.stats()["events"] if advice in each["reason"]]
    assert len(told) == 1 and "one_step" in told[0]["op"]
    step = gfxgraph.graphed(lambda x: x + 1)
    assert "TrainingStep" not in step.explain()
    step._pieces["Python runs between its graphs: Unsupported Tensor.backward() call"] += 1
    assert advice in step.explain()


def test_what_is_logged_once_for_all_is_part_of_a_graph(caplog, monkeypatch):
    """As transformers' ``warning_once``, which GPT-2 calls in each training step: it says so once, as eagerly."""
    monkeypatch.setattr(
        logging.Logger, "once", functools.lru_cache(lambda self, *of: self.warning(*of)), raising=False
    )
    log, scale = logging.getLogger("a_program"), torch.full((4,), 2.0, device="cuda", requires_grad=True)

    def step(x):
        log.once("the default loss is used: %s", "mean")
        return (x * scale).mean()

    graphed = gfxgraph.graphed(step)
    for n in range(5):
        x = torch.full((4,), float(n), device="cuda")
        (grad,) = torch.autograd.grad(graphed(x), scale)
        assert torch.equal(grad, x / 4)
    assert [each.getMessage() for each in caplog.records if each.name == "a_program"] == [
        "the default loss is used: mean"
    ]
    assert graphed.stats()["calls"]["by_graph"] == 3 and not graphed.stats()["pieces"], graphed.explain()
