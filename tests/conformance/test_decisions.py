"""The defect table: each of its answers is acted on."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import torch

import gfxgraph
from gfxgraph.hardware.defects import Decisions
from gfxgraph.process import process


def test_every_decision_is_acted_on():
    """Each answer of the defect table is read somewhere; what is done whatever the table says is none."""
    package = Path(gfxgraph.__file__).parent
    source = "\n".join(
        path.read_text("utf-8")
        for path in package.rglob("*.py")
        if path.name != "defects.py" and path.parent != "port"
    )
    names = {item.name for item in fields(Decisions)} - {"reasons", "env", "advice"}
    read = {name for name in names if re.search(rf'decisions, "{name}"|decisions\.{name}\b', source)}
    assert read == names


def test_relaxed_captures_where_they_crash(platform, monkeypatch):
    """relaxed_capture_mode: what a program asks for as relaxed is captured in the mode that the table names."""
    state, modes = process.require(), []
    begin = state.base.capture_begin
    monkeypatch.setattr(
        state.base,
        "capture_begin",
        lambda graph, pool, mode, *a, **k: (modes.append(mode), begin(graph, pool, mode))[1],
    )
    for answer in (None, "thread_local"):
        state.decisions = replace(state.decisions, relaxed_capture_mode=answer)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
            torch.ones(4, device="cuda") + 1
    assert modes == ["relaxed", "thread_local"]
