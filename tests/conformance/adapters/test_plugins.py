"""What vLLM and SGLang call in each of their processes once gfxgraph is installed beside them."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph import adapters

ROOT = Path(__file__).parents[3]
STAND_INS = Path(__file__).parent / "stand_ins"
GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}
LISTS = {"vllm": "VLLM_PLUGINS", "sglang": "SGLANG_PLUGINS"}
VARIABLES = ("GFXGRAPH", "GFXGRAPH_SIMULATE", "SGLANG_RDNA2_KERNELS", "SGLANG_DISABLE_GFXGRAPH", *LISTS.values())


@pytest.fixture(params=GROUPS)
def engine(request, monkeypatch):
    """An engine's name, its stand-in on the path; nothing asked for, nothing in place."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(STAND_INS / request.param)
    calls = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", calls.append)
    yield request.param, calls
    gfxgraph.disable()
    adapters.uninstall(request.param)
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "ImportWatcher"]
    for name in [name for name in sys.modules if name.split(".")[0] == request.param]:
        del sys.modules[name]


def plugin(name):
    """The function that the package's metadata name for the engine's group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, attribute = project["entry-points"][GROUPS[name]]["gfxgraph"].split(":")
    return getattr(import_module(module), attribute)


def import_parts(name):
    for part in adapters.get(name).parts:
        import_module(part)


def test_nothing_happens_where_nobody_asked(engine):
    """Installed beside an engine and not asked for, gfxgraph changes nothing and looks for no GPU."""
    name, calls = engine
    plugin(name)()
    import_parts(name)
    assert not gfxgraph.is_enabled() and not adapters.get(name).is_installed and calls == []


@pytest.mark.parametrize("how", ["variable", "list"])
def test_asked_for_it_waits_for_the_gpu(engine, monkeypatch, how):
    """By GFXGRAPH=1 or by its name in the engine's list; the bridge comes when torch initializes the GPU."""
    name, calls = engine
    monkeypatch.setenv(*(("GFXGRAPH", "1") if how == "variable" else (LISTS[name], "other,gfxgraph")))
    plugin(name)()
    plugin(name)()
    assert not gfxgraph.is_enabled() and calls == [gfxgraph.enable] * 2
    assert not adapters.get(name).is_installed  # the engine has imported no graphs yet
    import_parts(name)
    assert adapters.get(name).is_installed


def test_refused_by_name(engine, monkeypatch):
    """GFXGRAPH=0 is heard before the engine's list."""
    name, calls = engine
    monkeypatch.setenv(LISTS[name], "gfxgraph")
    monkeypatch.setenv("GFXGRAPH", "0")
    plugin(name)()
    import_parts(name)
    assert calls == [] and not adapters.get(name).is_installed


def test_in_the_simulator_it_does_not_wait(engine, monkeypatch):
    """A simulated GPU must be there before anybody looks for one."""
    name, calls = engine
    monkeypatch.setenv("GFXGRAPH", "1")
    monkeypatch.setenv("GFXGRAPH_SIMULATE", "hip")
    plugin(name)()
    assert gfxgraph.is_enabled() and calls == []


def test_sglangs_variable(engine, monkeypatch):
    """SGLANG_RDNA2_KERNELS=1 asks, in any engine's process; SGLANG_DISABLE_GFXGRAPH=1 refuses."""
    name, calls = engine
    monkeypatch.setenv("SGLANG_RDNA2_KERNELS", "1")
    plugin(name)()
    assert len(calls) == 1
    monkeypatch.setenv("SGLANG_DISABLE_GFXGRAPH", "1")
    plugin(name)()
    assert len(calls) == 1
