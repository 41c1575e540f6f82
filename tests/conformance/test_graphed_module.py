"""A graphed module is a module: what is done with it ends as with the module it was made of."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph import Graphed

pytestmark = pytest.mark.any_platform


@pytest.fixture(autouse=True)
def _platform(platform):
    torch.manual_seed(0)
    yield


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = 2.0

    def forward(self, input):
        return self.norm(self.layer(input)).relu() * self.scale


class Parent(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(4, 4)

    def forward(self, input):
        return self.head(self.inner(input))


def some(n=2):
    return torch.randn(n, 4, device="cuda")


def same_calls(module, eager, n=4, graphed=None):
    """Some calls of both give the same; return how many were replays."""
    graphed = Graphed.of(module) if graphed is None else Graphed.of(graphed)
    before = graphed.stats()["replays"]
    with torch.no_grad():
        for _ in range(n):
            x = some()
            assert torch.equal(module(x), eager(x))
    return graphed.stats()["replays"] - before


@pytest.fixture(params=[False, True], ids=["beside", "in place"])
def net(request):
    """A graphed module, in evaluation."""
    return gfxgraph.graphed(Net().cuda().eval(), in_place=request.param)


def test_it_has_everything_of_the_module():
    """Parameters, buffers, keys, children, attributes and modes are the module's, read and written on either."""
    module = Net().cuda()
    net = gfxgraph.graphed(module)
    assert isinstance(net, Net) and type(net).__name__ == "Net" and repr(net) == repr(module)
    assert list(net.state_dict()) == list(module.state_dict()) and "layer.weight" in net.state_dict()
    for name in ("parameters", "buffers", "children"):
        mine, others = list(getattr(net, name)()), list(getattr(module, name)())
        assert len(mine) == len(others) > 0 and all(a is b for a, b in zip(mine, others))
    assert [name for name, _ in net.named_modules()] == ["", "layer", "norm"]

    assert net.eval() is net and not module.training and not module.norm.training
    module.added = nn.Parameter(torch.ones(1, device="cuda"))
    assert net.added is module.added and "added" in net.state_dict()
    del net.added
    assert not hasattr(module, "added")
    same_calls(net, module)
    net.scale = 5.0
    assert module.scale == 5.0
    same_calls(net, module)

    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())
    assert net.half() is net and module.layer.weight.dtype == torch.float16
    net.to(torch.float64)
    assert module.norm.running_mean.dtype == torch.float64
    net.apply(lambda each: setattr(each, "met", True))
    assert module.met and module.layer.met
    module.layer.weight.grad = torch.ones_like(module.layer.weight)
    net.zero_grad()
    assert module.layer.weight.grad is None
    net.load_state_dict(Net().state_dict())


def test_as_a_child(net):
    """Assigned to a child's name, as a new attribute or in a Sequential: the same keys, and calls are replays."""
    inner = Net().cuda().eval()
    inner.load_state_dict(net.state_dict())
    eager = Parent(inner).cuda().eval()
    assigned = copy.deepcopy(eager)
    assigned.inner = net
    new = Parent(net).cuda().eval()
    new.head = assigned.head
    for each in (assigned, new):
        assert list(each.state_dict()) == list(eager.state_dict())
        assert len(list(each.parameters())) == len(list(eager.parameters()))
        assert same_calls(each, eager, graphed=net) >= 3
        assert each.train().inner.training and not each.eval().inner.norm.training
    several = nn.Sequential(net, nn.ReLU())
    assert list(several.state_dict())[:2] == ["0.layer.weight", "0.layer.bias"]
    assert same_calls(several, nn.Sequential(inner, nn.ReLU()), graphed=net) == 4


def test_in_a_graphed_module_it_is_part_of_the_graph(net):
    """The parent is one graph, and the child's own calls are none."""
    outer = gfxgraph.graphed(Parent(net).cuda().eval())
    inner = Net().cuda().eval()
    inner.load_state_dict(net.state_dict())
    eager = Parent(inner)
    eager.head = outer.head
    assert same_calls(outer, eager) == 3
    assert Graphed.of(net).stats()["signatures"] == 0


def test_training(net):
    """Gradients and buffers of steps are eager's."""
    eager = Net().cuda()
    eager.load_state_dict(net.state_dict())
    net.train()
    for _ in range(4):
        x = some(4)
        for each in (net, eager):
            each.zero_grad()
            each(x).sum().backward()
        for mine, others in zip(net.parameters(), eager.parameters()):
            assert torch.equal(mine.grad, others.grad)
        assert torch.equal(net.norm.running_mean, eager.norm.running_mean)


def test_hooks_run_once_a_call(net):
    """Forward hooks and pre-hooks run as in eager, and find the module among the model's."""
    model = nn.Sequential(net)
    names = {module: name for name, module in model.named_modules()}
    met = []
    net.register_forward_pre_hook(lambda module, args: met.append(("before", names[module])))
    net.register_forward_hook(lambda module, args, result: met.append(("after", names[module])))
    for n in range(1, 5):
        with torch.no_grad():
            model(some())
        assert met == [("before", "0"), ("after", "0")] * n


def test_copies():
    """A copy has a state of its own and the same options, and is graphed anew; of one in place, it is not graphed."""
    net = gfxgraph.graphed(Net().cuda().eval(), mode="hot")
    same_calls(net, Graphed.of(net)._fn)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)]
    for each in (*copies, copy.copy(net), copy.deepcopy(nn.Sequential(net))[0]):
        assert type(each) is type(net) and each != net and not each.stats()["captures"]
        assert Graphed.of(each)._options == Graphed.of(net)._options
        assert same_calls(each, net) == 3
    copies[0].layer.weight.data.zero_()
    assert net.layer.weight.any()
    same_calls(net, Graphed.of(net)._fn)
    for each in (copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        again = each(gfxgraph.graphed(Net(), in_place=True))
        assert type(again) is Net
        with pytest.raises(TypeError, match="graphed"):
            Graphed.of(again)


def test_in_distributed_data_parallel(platform, net):
    """DDP has its parameters under their names, its calls are replays, and its steps give eager's gradients."""
    import torch.distributed as dist

    eager = Net().cuda().eval()
    eager.load_state_dict(net.state_dict())
    dist.init_process_group("nccl" if platform == "gpu" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(net)
        assert list(parallel.state_dict()) == [f"module.{name}" for name in eager.state_dict()]
        assert same_calls(parallel, eager, graphed=net) == 3
        # DDP's backward over simulated tensors is a segmentation fault, graphed or not: on the CPU instead.
        device = "cuda" if platform == "gpu" else "cpu"
        parallel = nn.parallel.DistributedDataParallel(net.train().to(device))
        eager.train().to(device)
        for _ in range(3):
            x = some(4).to(device)
            for each in (parallel, eager):
                each.zero_grad()
                each(x).sum().backward()
            for mine, others in zip(parallel.parameters(), eager.parameters()):
                assert torch.equal(mine.grad, others.grad)
    finally:
        dist.destroy_process_group()


def test_in_a_trainer(tmp_path):
    """A Hugging Face model trains, is saved and loaded by the calls of a Trainer, as without graphs."""
    transformers = pytest.importorskip("transformers")
    from transformers.trainer_pt_utils import get_parameter_names
    from transformers.utils.generic import find_labels

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 16}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    eager = transformers.LlamaForCausalLM(config).cuda()
    model = gfxgraph.graphed(copy.deepcopy(eager))
    assert isinstance(model, transformers.PreTrainedModel)
    assert find_labels(model.__class__) == find_labels(type(eager)) == ["labels"]
    assert inspect.signature(model.forward) == inspect.signature(eager.forward)
    assert get_parameter_names(model, [nn.Embedding]) == get_parameter_names(eager, [nn.Embedding])
    ids = torch.randint(0, 16, (2, 5), device="cuda")
    for each in (model, eager):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each.train()
        losses = []
        for _ in range(4):
            loss = each(input_ids=ids, labels=ids)["loss"]
            loss.backward()
            nn.utils.clip_grad_norm_(each.parameters(), 1.0)
            optimizer.step()
            each.zero_grad()
            losses.append(loss.detach())
        each.losses = torch.stack(losses)
        each.eval()
        each.save_pretrained(tmp_path / each.__class__.__name__ / str(each is eager))
    assert torch.equal(model.losses, eager.losses) and model.losses[-1] < model.losses[0]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, eager(input_ids=ids).logits)
    loaded = type(model).from_pretrained(tmp_path / "LlamaForCausalLM" / "False")
    assert type(loaded) is type(eager) and loaded.config.architectures == ["LlamaForCausalLM"]
    for (name, mine), (others_name, others) in zip(loaded.state_dict().items(), eager.state_dict().items()):
        assert name == others_name and torch.equal(mine, others.cpu())


def test_names():
    """The module's own names win; what ``Graphed`` offers is there for the others, and always by ``Graphed.of``."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.stats = nn.Linear(2, 2)
            self.explain = "mine"

        def reset(self):
            return "reset"

        def forward(self, x):
            return self.stats(x)

    module = Own().cuda()
    net = gfxgraph.graphed(module)
    assert net.stats is module.stats and net.explain == "mine" and net.reset() == "reset"
    assert net.graphs == [] and net.why_eager == "" and callable(net.capture_all) and "graphs" in dir(net)
    assert Graphed.of(net).stats()["captures"] == 0 and "Own" in Graphed.of(net).explain()
    assert Graphed.of(gfxgraph.graphed(module, in_place=True)).stats()["captures"] == 0
    with pytest.raises(TypeError, match="Linear"):
        Graphed.of(nn.Linear(2, 2))
    assert not hasattr(net, "nothing")
    x = torch.ones(1, 2, device="cuda")
    again = gfxgraph.graphed(net, max_graphs=3)  # of the module, with other options
    assert torch.equal(again(x), module.stats(x)) and Graphed.of(again)._fn is module


def test_in_place():
    """The very object: nothing else refers to it; sizes may vary by its parameters' names; it can be ended."""
    net = Net().cuda().eval()
    eager = copy.deepcopy(net)
    assert gfxgraph.graphed(net, in_place=True, dynamic={"input": {0: "batch"}}, buckets=[4]) is net
    with torch.no_grad():
        for n in (4, 3, 2, 3):
            x = some(n)
            assert torch.allclose(net(x), eager(x))
    assert "batch=4" in Graphed.of(net).explain() and Graphed.of(net).explain().startswith("Net:")
    net._compiled_call_impl = None
    with pytest.raises(TypeError):
        Graphed.of(net)
    with pytest.raises(gfxgraph.ArgumentError, match="in_place"):
        gfxgraph.graphed(lambda x: x, in_place=True)


def test_methods_make_ordinary_modules():
    """A slice is an ordinary module; a parametrization, which would change one of two objects, is refused."""
    net = gfxgraph.graphed(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda())
    assert type(net[:1]) is nn.Sequential and net[0] is Graphed.of(net)._fn[0] and len(net) == 2
    with pytest.raises(TypeError, match="in_place"):
        nn.utils.parametrizations.weight_norm(gfxgraph.graphed(nn.Linear(4, 4)))
    linear = nn.utils.parametrizations.weight_norm(gfxgraph.graphed(nn.Linear(4, 4).cuda(), in_place=True))
    eager = copy.deepcopy(linear)
    with torch.no_grad():
        for _ in range(4):
            x = some()
            assert torch.equal(linear(x), eager(x))


def test_memory_goes_with_it():
    """Without a run of the garbage collector: nothing of a graphed module refers back to it."""
    net = gfxgraph.graphed(Net())
    gone = weakref.ref(Graphed.of(net)._fn), weakref.ref(net)
    gc.disable()
    try:
        del net
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
