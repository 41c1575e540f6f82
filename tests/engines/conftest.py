"""The engines' own files on every platform there is; see surroundings.py for what is real."""

from __future__ import annotations

import pytest
import torch

from gfxgraph import adapters
from gfxgraph.adapters import adapter
from gfxgraph.process import process
from gfxgraph.types import OnUnsafe
from tests.conformance.conftest import platform  # noqa: F401
from tests.engines import surroundings

SIZES = (8, 4, 2, 1)
HIDDEN = 16


def engine_fixture(name):
    @pytest.fixture
    def engine(platform, monkeypatch):  # noqa: F811
        why_not = surroundings.missing(name)
        if why_not:
            pytest.skip(why_not)
        monkeypatch.setattr(adapter, "installed_version", lambda module: surroundings.VERSIONS[name])
        with surroundings.surroundings(name):
            yield Model()
            adapters.uninstall(name)

    return engine


vllm = engine_fixture("vllm")
sglang = engine_fixture("sglang")


class Model:
    """A decoder's step in three parts, over static inputs of the largest size, as the engines' runners keep them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.a = (torch.randn(HIDDEN, HIDDEN, generator=generator) / 4).cuda()
        self.b = (torch.randn(HIDDEN, HIDDEN, generator=generator) / 4).cuda()
        self.cache = torch.zeros(8, HIDDEN, device="cuda")
        self.x = torch.zeros(max(SIZES), HIDDEN, device="cuda")
        self.hidden = torch.zeros(max(SIZES), HIDDEN, device="cuda")
        self.fail_in = ""
        self.n_runs = 0

    def before(self, x):
        self._maybe_fail("before")
        return (x @ self.a).relu() + x

    def attention(self, h, out):
        """Writes into a buffer of the caller's, as the engines' attention does."""
        self.cache[: h.shape[0]].add_(h)
        out.copy_(h + self.cache.sum(0))

    def after(self, h):
        self._maybe_fail("after")
        self.n_runs += 1
        return (h @ self.b).tanh()

    def step(self, x):
        h = self.before(x)
        out = self.hidden[: x.shape[0]]
        self.attention(h, out)
        return self.after(out)

    def _maybe_fail(self, part):
        """Inside a capture: a value that Python reads and computes with, refused as under "strict"."""
        if self.fail_in == part and torch.cuda.is_current_stream_capturing():
            process.active_session().policy = OnUnsafe.STRICT
            scale = self.a.abs().max().item()
            self.a.mul_(scale / scale)

    def fill(self, n, seed):
        self.x[:n].copy_(torch.randn(n, HIDDEN, generator=torch.Generator().manual_seed(seed)))

    def check(self, run, n, seed):
        """``run(n)`` gives what eager execution gives, the cache included."""
        fail_in, self.fail_in = self.fail_in, ""
        self.fill(n, seed)
        self.cache.zero_()
        want, cache = self.step(self.x[:n]).clone(), self.cache.clone()
        self.fail_in = fail_in
        self.cache.zero_()
        self.hidden.zero_()
        got = run(n)
        torch.cuda.synchronize()
        assert torch.allclose(got, want, rtol=1e-5, atol=1e-5), (n, seed)
        assert torch.allclose(self.cache, cache, rtol=1e-5, atol=1e-5), (n, seed)
