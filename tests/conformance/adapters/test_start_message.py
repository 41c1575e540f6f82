"""What SGLang's log says of gfxgraph when its first graph is about to be captured."""

from __future__ import annotations

import logging
import re

import pytest
import torch

import gfxgraph
from gfxgraph.adapters import _eager_fallback, sglang


class Backend:
    """As SGLang's runner backends: captures a shape."""

    def __init__(self):
        self._pool, self._tp_group, self.captured = None, None, []

    def capture_one(self, shape_key, forward_fn):
        for _ in range(sglang.N_WARMUPS):
            forward_fn()
        self.captured.append(shape_key)


@pytest.fixture
def backend(platform, monkeypatch):
    monkeypatch.setattr(sglang, "_told", set())
    monkeypatch.setattr(_eager_fallback, "any_rank_failed", lambda group, failed: failed)
    monkeypatch.setattr(Backend, "capture_one", sglang._leaving_out(Backend.capture_one))
    return Backend()


def test_sglang_says_once_that_it_is_on_and_healthy(backend, caplog):
    """Version, mode and memory cap; the GPU with its memory: two lines, at SGLang's own level."""
    with caplog.at_level(logging.INFO, "sglang"):
        for shape in (8, 4):
            backend.capture_one(shape, lambda: torch.ones(2, device="cuda") * 2)
    assert backend.captured == [8, 4]
    lines = [record.getMessage() for record in caplog.records if record.name == "sglang.gfxgraph"]
    assert lines[0] == f"gfxGRAPH v{gfxgraph.__version__} enabled (mode=normal, vram_cap=0.80)"
    assert re.fullmatch(r"gfxGRAPH health check passed: .+ \(.+\), VRAM \d+MB free / \d+MB total", lines[1])
    assert len(lines) == 2


def test_a_failed_check_is_a_warning(backend, caplog, monkeypatch):
    """With what was found; the capture goes on, and falls back by itself where it must."""
    monkeypatch.setattr(sglang.health, "health_check", lambda: {"ok": False, "details": "replays are wrong"})
    with caplog.at_level(logging.INFO, "sglang"):
        backend.capture_one(8, lambda: None)
    assert caplog.messages[-1] == "gfxGRAPH health check failed: replays are wrong" and backend.captured == [8]


def test_nothing_is_checked_that_nobody_reads(backend, caplog, monkeypatch):
    """An SGLang that logs warnings alone pays for no check; one where the bridge is off says nothing."""
    monkeypatch.setattr(sglang.health, "health_check", lambda: pytest.fail("nobody reads it"))
    with caplog.at_level(logging.WARNING, "sglang"):
        backend.capture_one(8, lambda: None)
    assert caplog.messages == []
    monkeypatch.setattr(sglang, "_told", set())
    monkeypatch.setattr(sglang.bridge, "is_enabled", lambda: False)
    with caplog.at_level(logging.INFO, "sglang"):
        backend.capture_one(8, lambda: None)
    assert caplog.messages == []
