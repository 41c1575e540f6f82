"""Programs of every kind give on the simulated device what they give on the CPU."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gfxgraph_simulator as simulator


@pytest.fixture(scope="module", autouse=True)
def card() -> Iterator[None]:
    """One card for all: these tests leave nothing behind on it."""
    with simulator.install():
        yield


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "conv": lambda: (nn.Conv2d(3, 8, 3, padding=1, stride=2), (torch.randn(2, 3, 8, 8),)),
    "depthwise": lambda: (nn.Conv2d(4, 4, 3, groups=4), (torch.randn(2, 4, 8, 8),)),
    "transposed": lambda: (nn.ConvTranspose2d(3, 4, 3), (torch.randn(2, 3, 5, 5),)),
    "batch_norm": lambda: (nn.BatchNorm2d(3), (torch.randn(4, 3, 5, 5),)),
    "layer_norm": lambda: (nn.LayerNorm(8), (torch.randn(4, 8),)),
    "rms_norm": lambda: (nn.RMSNorm(8), (torch.randn(4, 3, 8),)),
    "group_norm": lambda: (nn.GroupNorm(2, 4), (torch.randn(4, 4, 5),)),
    "lstm": lambda: (nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), (torch.randn(2, 6, 4),)),
    "gru": lambda: (nn.GRU(4, 5), (torch.randn(3, 2, 4),)),
    "attention": lambda: (nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 5, 8),) * 3),
    "transformer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, 0.0), (torch.randn(2, 5, 8),)),
    "embedding": lambda: (nn.Embedding(10, 4), (torch.randint(0, 10, (3, 4)),)),
    "embedding_bag": lambda: (nn.EmbeddingBag(10, 4), (torch.randint(0, 10, (3, 4)),)),
    "max_pool": lambda: (nn.MaxPool2d(2), (torch.randn(1, 2, 6, 6),)),
    "upsample": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (torch.randn(1, 2, 4, 4),)),
}


def first(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else value[0]


@pytest.mark.parametrize("name", MODULES)
def test_modules_compute_and_train(name: str) -> None:
    """Forward and every gradient agree with the CPU's."""
    torch.manual_seed(0)
    host, inputs = MODULES[name]()
    device = copy.deepcopy(host).cuda()
    here = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    there = [x.cuda().requires_grad_(x.is_floating_point()) for x in inputs]
    expected, made = first(host(*here)), first(device(*there))
    torch.testing.assert_close(made.cpu(), expected)
    expected.square().sum().backward()
    made.square().sum().backward()
    pairs = [*zip(host.parameters(), device.parameters()), *zip(here, there)]
    for one, other in pairs:
        if one.grad is not None:
            torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_modules_capture_and_replay(name: str) -> None:
    """A captured forward replays to eager's result, on inputs changed in between."""
    torch.manual_seed(0)
    host, inputs = MODULES[name]()
    module, static = host.cuda().eval(), [x.cuda() for x in inputs]
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        made = first(module(*static))
    for x in static:
        x.copy_(x.flip(0))
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(made, first(module(*static)))


OPTIMIZERS = [
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "NAdam",
    "RAdam",
    "Adamax",
    "ASGD",
    "Rprop",
]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_optimizers_step_alike(name: str, options: dict[str, bool]) -> None:
    """Three steps of each implementation agree with the CPU's."""
    make = getattr(torch.optim, name)
    torch.manual_seed(1)
    host, x = nn.Linear(4, 3), torch.randn(5, 4)
    device = copy.deepcopy(host).cuda()
    if options.get("fused") and name not in ("SGD", "Adam", "AdamW"):
        pytest.skip(f"{name} has no fused kernel on the device")
    optimizers = [make(module.parameters(), lr=1e-2, **options) for module in (host, device)]
    for _ in range(3):
        for module, optimizer, value in zip((host, device), optimizers, (x, x.cuda())):
            optimizer.zero_grad()
            module(value).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(device.weight.cpu(), host.weight)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop"])
def test_capturable_optimizers_replay_a_training_step(name: str) -> None:
    """A whole step with capturable=True, captured once, trains as eager does."""
    make = getattr(torch.optim, name)
    torch.manual_seed(1)
    host, x = nn.Linear(4, 3), torch.randn(5, 4)
    device, static = copy.deepcopy(host).cuda(), x.cuda()
    reference, optimizer = (
        make(host.parameters(), lr=1e-2),
        make(device.parameters(), lr=1e-2, capturable=True),
    )
    warm_up, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def step(module: nn.Module, chosen: Any, value: torch.Tensor) -> None:
        chosen.zero_grad(set_to_none=True)
        module(value).square().sum().backward()
        chosen.step()

    with torch.cuda.stream(warm_up):
        step(device, optimizer, static)
    torch.cuda.current_stream().wait_stream(warm_up)
    with torch.cuda.graph(graph):
        step(device, optimizer, static)
    for _ in range(2):
        graph.replay()
    for _ in range(3):
        step(host, reference, x)
    torch.testing.assert_close(device.weight.cpu(), host.weight)


def test_autocast_and_scaler_follow_cuda_rules() -> None:
    """float16 matmuls, float32 softmax, and a GradScaler that steps."""
    module = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.SGD(module.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    before = module.weight.detach().clone()
    with torch.autocast("cuda", dtype=torch.float16):
        y = module(torch.randn(3, 4, device="cuda"))
        loss = F.softmax(y, -1).square().sum()
    assert y.dtype == torch.float16 and loss.dtype == torch.float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, module.weight)


def test_mixed_devices_raise_torchs_error() -> None:
    """A CPU tensor with dims among device operands is an error, a CPU scalar is not."""
    x = torch.ones(3, device="cuda")
    for wrong in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3) @ x,
        lambda: torch.cat([x, torch.ones(3)]),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            wrong()
    assert (x * torch.tensor(2.0)).tolist() == [2, 2, 2]


def test_indexing_in_place_and_out() -> None:
    """Views, masks, in-place view ops, resizes and out= behave as on the CPU."""

    def program(device: str) -> list[Any]:
        x = torch.arange(12.0, device=device).view(3, 4)
        x[0, 1] = 9
        x[x > 8] = 0
        x[torch.tensor([0, 1])] += 1
        x[:, 1].zero_()
        out = torch.empty(0, device=device)
        torch.add(x, 1, out=out)
        room = torch.zeros(12, device=device)
        torch.add(x[0], 1, out=room[2:2])
        values, where = torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
        torch.max(x, 1, out=(values, where))
        y = x.clone()
        y.t_().unsqueeze_(0).squeeze_()
        z = x.clone().resize_(2, 2)
        w = x.clone().resize_(20)[:12]
        x.data.mul_(2)
        return [t.tolist() for t in (x, out, room, values, where, y, z, w)]

    assert program("cuda") == program("cpu")


FACTORIES: dict[str, Callable[[str], torch.Tensor]] = {
    "kaiser": lambda device: torch.kaiser_window(7, device=device),
    "kaiser_symmetric": lambda device: torch.kaiser_window(7, False, device=device),
    "kaiser_beta": lambda device: torch.kaiser_window(7, True, 5.0, device=device),
    "signal_kaiser": lambda device: torch.signal.windows.kaiser(7, device=device),
    "hann": lambda device: torch.hann_window(7, device=device),
    "hamming": lambda device: torch.hamming_window(7, False, device=device),
    "blackman": lambda device: torch.blackman_window(7, device=device),
    "bartlett": lambda device: torch.bartlett_window(7, device=device),
    "logspace": lambda device: torch.logspace(0, 1, 5, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 5, device=device),
    "range": lambda device: torch.range(0, 4, device=device),
    "fftfreq": lambda device: torch.fft.fftfreq(5, device=device),
    "rfftfreq": lambda device: torch.fft.rfftfreq(5, device=device),
    "triu_indices": lambda device: torch.triu_indices(3, 3, device=device),
    "eye": lambda device: torch.eye(3, 4, device=device),
    "ctc_loss": lambda device: F.ctc_loss(
        torch.zeros(5, 2, 4, device=device).log_softmax(2), torch.ones(2, 3, dtype=torch.long, device=device), (5, 5),
        (2, 3),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.range")
@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    """What a composite kernel makes on the device is what it makes on the CPU."""
    made = FACTORIES[name]("cuda")
    assert made.is_cuda
    torch.testing.assert_close(made.cpu(), FACTORIES[name]("cpu"))


def test_resized_out_warns() -> None:
    """An out tensor that had elements is resized with torch's warning."""
    out, x = torch.zeros(2, device="cuda"), torch.ones(5, device="cuda")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.mul(x, 2, out=out)
    assert out.tolist() == [2] * 5


def test_saving_copying_and_moving() -> None:
    """state_dict, torch.save/load with map_location, pickle and deepcopy keep or move devices."""
    module = nn.Linear(3, 3).cuda()
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    for where, is_cuda in ((None, True), ("cpu", False), ("cuda:0", True)):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=where)
        assert loaded["weight"].is_cuda is is_cuda
        torch.testing.assert_close(loaded["weight"].cpu(), module.weight.detach().cpu())
    module.load_state_dict({name: torch.zeros_like(value).cpu() for name, value in loaded.items()})
    assert not module.weight.any()
    assert type(copy.deepcopy(module).weight) is nn.Parameter
    assert pickle.loads(pickle.dumps(torch.ones(2, device="cuda"))).is_cuda
    assert repr(torch.ones(1, device="cuda")) == "tensor([1.], device='cuda:0')"


def test_pinned_memory_is_known() -> None:
    """pin_memory and pin_memory=True make pinned tensors; others are not."""
    assert torch.randn(4).pin_memory()[1:].is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.randn(4).is_pinned() and not torch.randn(4, device="cuda").is_pinned()
    data = torch.utils.data.TensorDataset(torch.randn(8, 3))
    batches = list(torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True))
    assert all(batch.is_pinned() for (batch,) in batches)


def test_default_devices() -> None:
    """torch.device as a context and set_default_device reach factories and modules."""
    with torch.device("cuda"):
        assert torch.ones(3).is_cuda and nn.Linear(2, 2).weight.is_cuda
    assert not torch.ones(3).is_cuda
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0


def test_functional_transforms_and_checkpointing() -> None:
    """vmap, grad and both kinds of checkpointing work on the device."""
    x = torch.randn(3, 4, device="cuda")
    torch.testing.assert_close(torch.func.vmap(lambda row: (row * 2).sum())(x), (x * 2).sum(1))
    torch.testing.assert_close(torch.func.grad(lambda t: t.square().sum())(x), 2 * x)
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).cuda()
    leaf = x.clone().requires_grad_()
    for reentrant in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.utils.checkpoint.checkpoint(module, leaf, use_reentrant=reentrant).sum().backward()
    assert leaf.grad is not None


def test_accelerator_and_properties() -> None:
    """torch.accelerator and the device queries speak of one card."""
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    torch.accelerator.synchronize()
    assert torch.cuda.get_device_name() == "gfxgraph simulator (cuda, sm_90)"
    assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.is_bf16_supported()
    with torch.cuda.nvtx.range("a"):
        torch.cuda.nvtx.mark("b")


UNARY = [
    "abs",
    "exp",
    "sort",
    "argsort",
    "cumsum",
    "softmax",
    "flip",
    "var",
    "amax",
    "argmax",
    "logsumexp",
    "prod",
]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_reductions_and_the_like(name: str, dtype: torch.dtype) -> None:
    """Eager and replayed results of common ops equal the CPU's, in every float dtype."""
    host = torch.randn(4, 6, dtype=torch.float32).to(dtype)
    device = host.cuda()
    call = (lambda x: getattr(x, name)()) if name in ("abs", "exp") else (lambda x: _over_dim(x, name))
    expected = call(host)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call(device)
    graph.replay()
    for one, other, eager in zip(_many(expected), _many(made), _many(call(device))):
        torch.testing.assert_close(other.cpu(), one)
        torch.testing.assert_close(eager.cpu(), one)


def _over_dim(x: torch.Tensor, name: str) -> Any:
    return getattr(x, name)((1,) if name == "flip" else 1)


def _many(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def test_linear_algebra_in_eager() -> None:
    """Factorizations agree with the CPU's."""
    a = torch.randn(3, 3)
    a = a @ a.T + torch.eye(3)
    for name in ("inv", "cholesky", "det", "eigvalsh", "svdvals"):
        call = getattr(torch.linalg, name)
        torch.testing.assert_close(call(a.cuda()).cpu(), call(a), rtol=1e-3, atol=1e-4)


def test_data_dependent_shapes() -> None:
    """nonzero, unique, masks and repeats have the CPU's results in eager."""
    x = torch.tensor([3, 0, 3, 1])
    for call in (
        lambda t: t.nonzero(),
        lambda t: t.unique(),
        lambda t: t[t > 0],
        lambda t: torch.repeat_interleave(t),
        lambda t: torch.repeat_interleave(t, output_size=7),
        lambda t: torch.bincount(t),
        lambda t: t.masked_select(t > 1),
    ):
        assert call(x.cuda()).tolist() == call(x).tolist()
    assert torch.equal(x.cuda(), x.cuda()) and x.cuda().tolist() == x.tolist()


def test_repeats_with_known_size_are_capturable() -> None:
    """repeat_interleave with output_size needs no value on the host."""
    repeats, graph = torch.tensor([1, 0, 2], device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.repeat_interleave(repeats, output_size=3)
    graph.replay()
    assert y.tolist() == [0, 2, 2]
