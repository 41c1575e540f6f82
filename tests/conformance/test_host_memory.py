"""Host memory that captured code reads: what a replay would not see is noticed, what the code writes is repeated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import gfxgraph
from tests.conformance.conftest import on_both_platforms

pytestmark = [pytest.mark.any_platform, pytest.mark.usefixtures("nothing_compiled")]


def captured(body):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()
    return graph, result


def ones():
    return torch.ones(4, device="cuda")


def _scalar_operand(x, host):
    return lambda: x * host[2]


def _item(x, host):
    return lambda: x * host.max().item()


def _host_arithmetic(x, host):
    return lambda: x * (host * 2).sum().cuda()


READS = {"a scalar operand": _scalar_operand, "item": _item, "arithmetic": _host_arithmetic}


@on_both_platforms
@pytest.mark.parametrize("name", READS)
def test_a_host_tensor_that_changed_is_noticed(platform, name):
    """It was read at capture: with the same content replays are right, with another they name line and values."""
    x, host = ones(), torch.tensor([0.0, 1.0, 2.0])
    body = READS[name](x, host)
    graph, y = captured(body)
    x.fill_(3.0)
    graph.replay()
    assert torch.equal(y, body())
    host[2] = 7.0
    with pytest.raises(gfxgraph.GuardMismatch) as caught:
        graph.replay()
    assert caught.value.code == "host_memory_changed"
    assert "element 2 of a host tensor" in str(caught.value) or "a host tensor" in str(caught.value)
    assert "test_host_memory.py" in str(caught.value)
    assert "was 2.0 when captured and is 7.0 now" in str(caught.value)
    host[2] = 2.0
    graph.replay()
    assert torch.equal(y, body())


def test_a_large_host_tensor_is_noticed_by_its_writes(platform):
    """Too large to keep a copy of: torch counts the writes."""
    host = torch.zeros(1 << 19)
    x = ones()
    graph, y = captured(lambda: x + host.sum().item())
    graph.replay()
    assert y.tolist() == [1.0] * 4
    host[5] = 1.0
    with pytest.raises(gfxgraph.GuardMismatch, match="number of writes"):
        graph.replay()


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_a_list_or_array_that_changed_is_noticed(platform, make):
    """A tensor was made of it at capture."""
    x, numbers = ones(), make([1.0, 2.0, 3.0, 4.0])
    graph, y = captured(lambda: x * torch.tensor(numbers, device="cuda"))
    graph.replay()
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0]
    numbers[1] = 9.0
    with pytest.raises(gfxgraph.GuardMismatch, match="element 1 of a list or array"):
        graph.replay()


@pytest.mark.parametrize("is_watched_by_dynamo", [False, True])
def test_what_the_captured_code_makes_is_not_watched(platform, is_watched_by_dynamo):
    """Literals, host tensors made inside and a list that the code fills anew: replays stay one launch.

    While Dynamo watches, frames of Python's hold more references, which say nothing about who can change a list.
    """
    x, scratch = ones(), []

    def body():
        scratch.clear()
        scratch.extend([0, 1])
        index = torch.tensor(scratch)
        scratch.clear()
        return x * torch.tensor([1.0, 2.0]).sum() + index.sum().item() * torch.tensor(2.0)

    frames = torch._C._dynamo.eval_frame
    before = frames.set_eval_frame(False) if is_watched_by_dynamo else None
    try:
        graph, y = captured(body)
    finally:
        if is_watched_by_dynamo:
            frames.set_eval_frame(before)
    assert graph._program.host_reads == [] and graph._program.is_plain
    x.fill_(2.0)
    graph.replay()
    assert y.tolist() == [8.0] * 4


def test_what_captured_code_writes_on_the_host_is_repeated(platform):
    """A step counter in a host tensor counts replays, and not the capture; what depends on it follows."""
    x, step = ones(), torch.zeros(())
    steps = [torch.zeros(()) for _ in range(2)]

    def body():
        step.add_(1)
        torch._foreach_add_(steps, 2)
        return x * (1 - 0.5 ** step.item()) + steps[1]

    graph, y = captured(body)
    assert step.item() == 0
    for n in (1, 2, 3):
        graph.replay()
        assert step.item() == n and y.tolist() == pytest.approx([1 - 0.5**n + 2 * n] * 4)


def test_draws_on_the_host_are_repeated(platform):
    """Each replay draws anew, from the generator where the program left it; the capture draws none."""
    x = ones()
    mine, twin = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    graph, y = captured(lambda: x * torch.rand(4, generator=mine).cuda())
    for _ in range(3):
        graph.replay()
        assert torch.equal(y.cpu(), torch.rand(4, generator=twin))


@pytest.mark.parametrize("is_blocking", [True, False])
def test_memory_shared_with_numpy_is_pinned(platform, is_blocking):
    """What is copied there may be read through the array, which nobody sees."""
    x = ones()
    host = torch.zeros(4).pin_memory()
    array = host.numpy()

    def body():
        host.copy_(x, non_blocking=not is_blocking)
        torch.cuda.synchronize()
        return x * float(array[0])

    graph, y = captured(body)
    graph.replay()
    assert y.tolist() == [1.0] * 4
    x.fill_(3.0)
    with pytest.raises(gfxgraph.GuardMismatch, match=r"value\[0\] .* was 1.0 when captured and is 3.0 now"):
        graph.replay()


def test_a_copy_that_nobody_waits_for_is_free(platform):
    """The usual output buffer, read through NumPy after a replay."""
    x = ones()
    host = torch.zeros(4).pin_memory()
    array = host.numpy()
    graph, _ = captured(lambda: host.copy_(x * 2, non_blocking=True))
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert array.tolist() == [2 * value] * 4


def test_copies_to_the_device_are_read_anew(platform):
    """What a copy takes from host memory is followed, not compared."""
    x, array = ones(), np.zeros(4, dtype=np.float32)
    graph, y = captured(lambda: x + torch.from_numpy(array).to("cuda"))
    array[:] = 3.0
    graph.replay()
    assert y.tolist() == [4.0] * 4


def _normalized(x, table):
    mean = torch.tensor([0.5, 0.25]).to(x.device)
    return (x.view(2, 2) - mean) * torch.tensor(2.0, device=x.device)


def _masked(x, table):
    scores = x.view(2, 2) * 1
    scores[:, 0] = torch.tensor([[7.0], [8]]).flatten()
    scores[1, 1] = float("-inf")
    return scores


def _changed_between(x, table):
    host = torch.zeros(1)
    first = host.to(x.device)
    host += 1
    return x + first + 10 * host.to(x.device, torch.float64)


def _selected(x, table):
    return x[torch.tensor([2, 0], device="cuda")] + torch.eye(2, dtype=torch.bool).t().to("cuda")


def _of_another_list(x, table):
    return x.view(2, 2) * torch.tensor(table, device="cuda")


def _biased_by_distance(x, table):
    at = torch.arange(6)
    distance = (at[:, None] - at).abs().clamp(max=4)
    return x.view(2, 2) * distance.to(x.device, torch.float32)[1:3, 2:4] + x[distance % 4][0, 0]


def _written_after_the_copy(x, table):
    host = torch.arange(20.0)
    first = torch.zeros(20, device=x.device)
    first.copy_(host)
    host += 1
    return x.sum() + first + 10 * host.to(x.device, torch.float64)


def _changed_on_the_device(x, table):
    counts = torch.arange(20.0).to(x.device)
    counts += x.sum()
    return counts


FEW_NUMBERS = (_normalized, _masked, _changed_between, _selected, _of_another_list)
TABLES = (_biased_by_distance, _written_after_the_copy, _changed_on_the_device)


@pytest.mark.parametrize("body", FEW_NUMBERS + TABLES)
def test_numbers_of_its_own_go_into_the_graph(platform, body):
    """What the captured code wrote down or computed on the host, used on the device: one graph, and no host memory to
    read.
    """
    x, table = torch.arange(4.0, device="cuda"), [1.0, 2.0]
    with torch.no_grad():
        graph, y = captured(lambda: body(x, table))
    assert graph._program.is_plain
    for value in (1.0, -3.0):
        x.add_(value)
        graph.replay()
        assert torch.equal(y, body(x, table)) and y.dtype is body(x, table).dtype
    if body is _of_another_list:
        table[0] = 5.0
        with pytest.raises(gfxgraph.GuardMismatch, match="a list"):
            graph.replay()


def test_a_large_table_is_copied_by_the_host(platform):
    """More than a megabyte is no second copy on the device, but a step between two graphs."""
    x = ones()
    graph, y = captured(lambda: x.sum() + torch.arange(2.0**19).to("cuda"))
    x.fill_(2.0)
    graph.replay()
    assert y[:20].tolist() == [8.0 + i for i in range(20)] and not graph._program.is_plain


def test_torchs_own_behaviour_asks_nothing(platform):
    """on_unsafe="raise": host work is a constant, as in torch."""
    x, host = ones(), torch.zeros(())
    graph = torch.cuda.CUDAGraph(on_unsafe="raise")
    with torch.cuda.graph(graph):
        host.add_(1)
        y = x * host.item()
    host.fill_(5.0)
    graph.replay()
    assert y.tolist() == [1.0] * 4


@on_both_platforms
def test_a_tensor_made_from_the_device_is_pinned(platform):
    """Whether it is pinned is asked of its memory: that reads no content, and each replay makes another."""
    x = ones()

    def body():
        return x.cpu().sort().values.pin_memory().to("cuda", non_blocking=True) * 2

    graph, y = captured(body)
    for value in (1.0, 3.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, body())


@on_both_platforms
def test_pinned_memory_that_the_capture_itself_made(platform):
    """What it writes there is done once: the graph's copy reads it at each replay, though the program lets it go."""
    x = ones()

    def body():
        host = torch.zeros(4, pin_memory=True)
        host += 1
        y = host.to("cuda", non_blocking=True) * x
        del host
        return y + torch.full((4,), 5.0, pin_memory=True).to("cuda", non_blocking=True)

    graph, y = captured(body)
    for value in (1.0, 3.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, body())


@on_both_platforms
def test_a_replay_under_a_function_mode(platform):
    """A mode round the replay changes none of its reads and steps."""

    class Negates(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return -out if getattr(func, "__name__", "") in ("item", "mul", "__getitem__") else out

    x = ones()

    def body():
        return (x * x.max().item())[x > 0].sum()

    graph, y = captured(body)
    x.fill_(3.0)
    with Negates():
        graph.replay()
    assert y.item() == body().item() == 36.0


@pytest.mark.parametrize("asks", ["event", "stream"])
def test_what_was_done_when_asked_is_waited_for(platform, monkeypatch, asks):
    """A program that polls until its download has arrived reads it then: each replay waits before it reads."""
    waited = []
    synchronize = torch.cuda.Stream.synchronize
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda self: (waited.append(1), synchronize(self))[1])
    x = torch.ones(4, device="cuda")
    host = torch.zeros(4, pin_memory=True)

    def step():
        host.copy_(x * 2, non_blocking=True)
        if asks == "event":
            done = torch.cuda.Event()
            done.record()
        else:
            done = torch.cuda.current_stream()
        while not done.query():
            pass
        return x * host.max()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    x.fill_(3.0)
    waited.clear()
    graph.replay()
    assert waited and y.tolist() == [18.0] * 4
