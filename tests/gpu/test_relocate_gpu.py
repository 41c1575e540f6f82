"""Arguments read in place on a real GPU: torch's own kernels, cuBLAS, new addresses. Skips without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gfxgraph

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(params=["enabled", "alone"], autouse=True)
def bridge(request):
    if request.param == "enabled":
        gfxgraph.enable(allow_cuda=True, validate=False)
    with torch.no_grad():
        yield request.param
    gfxgraph.disable()


def weight(n=1024):
    torch.manual_seed(0)
    return torch.randn(n, n, device="cuda")


def elementwise(x):
    return (x * 1.5 + 1).relu() - x


def reduced(x):
    return x.sum(0), x.amax(1), x.softmax(-1)


def normalized(x):
    return nn.functional.layer_norm(x, (x.shape[-1],))


def strided(x):
    return x[::2, 3:] * 2, x.t() + 1


def matmul(x):
    return x @ WEIGHT[0]


WEIGHT = []

CASES = {f.__name__: f for f in (elementwise, reduced, normalized, strided, matmul)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_moved_arguments_give_eagers_results(name, dtype):
    """Twenty addresses, results as eager's; where it is refused, a kernel or a reason is named."""
    WEIGHT[:] = [weight().to(dtype)]
    fn = CASES[name]
    g = gfxgraph.graphed(fn, moved="relocate")
    kept = []
    for _ in range(20):
        kept.append(torch.randn(1024, 1024, device="cuda").to(dtype))
        got, want = g(kept[-1]), fn(kept[-1])
        for a, b in zip(got if isinstance(got, tuple) else [got], want if isinstance(want, tuple) else [want]):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert g.stats()["replays"] == 19, g.explain()
    (entry,) = g._entries.values()
    if entry.first.moving is None:
        assert entry.why_copied, g.explain()
        pytest.skip(f"copied: {entry.why_copied}")
    assert entry.first.moving.n_moves >= 18
    print(name, dtype, entry.first.moving)


def test_an_elementwise_chain_is_moved():
    """torch's elementwise kernels at least are understood; nothing is copied into the buffer."""
    g = gfxgraph.graphed(elementwise, moved="relocate")
    kept = [torch.randn(1 << 20, device="cuda") for _ in range(10)]
    for x in kept:
        assert torch.equal(g(x), elementwise(x))
    (entry,) = g._entries.values()
    assert entry.first.moving is not None, g.explain()
    assert not any(torch.equal(entry.statics[0].tensor, x) for x in kept[3:])


def test_calls_in_flight_keep_their_addresses():
    """A hundred calls queued without waiting, each at another address: what is queued is not changed any more."""
    g = gfxgraph.graphed(elementwise, moved="relocate")
    xs = [torch.full((1 << 20,), float(i), device="cuda") for i in range(100)]
    torch.cuda._sleep(1 << 22)
    got = [g(x) for x in xs]
    assert all(torch.equal(a, elementwise(x)) for a, x in zip(got, xs))


def test_writes_go_to_the_callers_memory():
    """x.mul_(2) in place, at whatever address."""

    def writes(x):
        x.mul_(2)
        return x + 1

    g = gfxgraph.graphed(writes, moved="relocate")
    for _ in range(8):
        x = torch.randn(1 << 20, device="cuda")
        mine = x.clone()
        assert torch.equal(g(mine), x * 2 + 1) and torch.equal(mine, x * 2)
