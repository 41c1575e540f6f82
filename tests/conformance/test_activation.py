"""Switching the bridge on and off in one process: what is replaced, put back, counted, logged and checked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gfxgraph
from tests.conformance.bench import Bench, attributes, patched, same
from tests.warm_python import warm_python

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="switches the simulated card on and off")
PAGE_STATS = {
    "enabled_at",
    "capture_count",
    "replay_count",
    "fallback_count",
    "validation_failures",
    "avg_replay_us",
}
PAGE_HEALTH = {"ok", "gpu", "rocm", "native_bridge", "vram_total_mb", "vram_free_mb", "details"}
TORCHES = {
    "cpu": ("None", "None", "not_rocm_cpu_torch"),
    "cuda": ("'13.0'", "None", "not_rocm_cuda_torch"),
    "none": ("", "", "no_torch"),
    "old": ("None", "'6.1'", "torch_too_old"),
    "no gpu": ("None", "'7.2'", "no_gpu"),
    "cuda, no gpu": ("'13.0'", "None", "no_cuda_gpu"),
}


@pytest.fixture(autouse=True)
def off_afterwards():
    yield
    gfxgraph.disable()


@pytest.mark.parametrize("profile", ["cuda", "hip"])
def test_disable_puts_everything_back(profile):
    """Every name of torch and math is the object it was, after captures, splits and failures too."""
    before = attributes()
    for _ in range(2):
        gfxgraph.enable(simulate=profile, on_unsafe="strict")
        assert gfxgraph.is_enabled()
        bench = Bench()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bench.split()
        graph.replay()
        with pytest.raises(gfxgraph.CaptureError):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                bench.x * bench.x.sum().item()
        gfxgraph.disable()
        assert not gfxgraph.is_enabled()
        assert patched(before) == []
        gfxgraph.disable()


def test_nothing_stays_replaced_between_captures():
    """Enabled, and no capture under way: host reads and waits are torch's own."""
    gfxgraph.enable(simulate="hip", validate=False)
    bench = Bench()
    before = attributes()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bench.split()
        assert "Tensor.item" in patched(before)
    assert patched(before) == []


@pytest.mark.parametrize("program", ["plain", "split", "in_place"])
def test_graphs_replay_after_disable(program):
    """A graph captured before disable() keeps working, with torch's own names back in place."""
    import gfxgraph_simulator as simulator
    from gfxgraph.process import bridge

    gfxgraph.enable(simulate="hip", validate=False)
    bench = Bench()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = getattr(bench, program)()
    bridged = torch.cuda.CUDAGraph
    # All of the bridge, but the simulated card stays: a real one would.
    card = bridge.undo.pop(0)
    try:
        gfxgraph.disable()
        assert torch.cuda.CUDAGraph is not bridged and isinstance(graph, bridged)
        assert simulator.active() is not None
        bench.assert_replay_is_eager(graph, outputs, getattr(bench, program))
        fresh = torch.cuda.CUDAGraph()
        assert type(fresh) is not bridged
        with torch.cuda.graph(fresh):
            y = bench.x + 1
        fresh.replay()
        same([y], [bench.x + 1])
        graph.reset()
    finally:
        card()


def test_enable_twice():
    """The same again does nothing; another way of treating unsafe operations, or another card, is refused."""
    gfxgraph.enable(simulate="hip")
    bridged = torch.cuda.CUDAGraph
    gfxgraph.enable(simulate="hip")
    assert torch.cuda.CUDAGraph is bridged
    for different in ({"on_unsafe": "pin"}, {"simulate": "cuda"}):
        with pytest.raises(gfxgraph.ActivationError) as caught:
            gfxgraph.enable(**{"simulate": "hip", **different})
        assert caught.value.code == "already_enabled_differently"
        (name, value) = next(iter(different.items()))
        assert name in str(caught.value) and value in str(caught.value)
    assert torch.cuda.CUDAGraph is bridged


def test_enable_again_can_ask_for_more_checks():
    """A program that enables with validate=True under GFXGRAPH=1 gets its validation."""
    gfxgraph.enable(simulate="cuda", validate=False)
    gfxgraph.enable(simulate="cuda", validate=True)
    bench, graph = Bench(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bench.plain()
    graph.replay()
    assert gfxgraph.stats()["validations"] == 1


def test_enable_fails_without_a_trace(monkeypatch):
    """Where something goes wrong half-way, what was replaced by then is put back."""
    from gfxgraph.capture import torchs_graph

    before = attributes()
    monkeypatch.setattr(torchs_graph, "exit_of_graph", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gfxgraph.enable(simulate="hip")
    assert not gfxgraph.is_enabled() and patched(before) == []
    with pytest.raises(gfxgraph.SimulatorError):
        gfxgraph.enable(simulate="no such card")
    assert not gfxgraph.is_enabled() and patched(before) == []


SCRIPT = """
import sys, torch
import torch.cuda
before = dict(vars(torch)), dict(vars(torch.cuda))
import gfxgraph
try:
    gfxgraph.enable()
except gfxgraph.ActivationError as error:
    print(error.code)
    print(str(error).count("\\n"))
assert (dict(vars(torch)), dict(vars(torch.cuda))) == before and not gfxgraph.is_enabled()
"""


@pytest.mark.parametrize("kind", TORCHES)
def test_unsuitable_torch(tmp_path, kind):
    """Each torch that will not do has an error of its own, and nothing of it is replaced."""
    cuda, hip, code = TORCHES[kind]
    package = tmp_path / "torch"
    (package / "cuda").mkdir(parents=True)
    version = "2.8.0" if kind == "old" else "2.11.0"
    (package / "__init__.py").write_text(f"__version__ = {version!r}\nfrom torch import cuda, version\n")
    (package / "version.py").write_text(f"cuda = {cuda or None}\nhip = {hip or None}\n")
    (package / "cuda" / "__init__.py").write_text("def is_available():\n    return False\n")
    script = SCRIPT
    if kind == "none":
        (package / "__init__.py").write_text("raise ImportError('no torch here')\n")
        script = (
            "import gfxgraph\ntry:\n    gfxgraph.enable()\nexcept gfxgraph.ActivationError as e:\n    print(e.code)"
        )
    if kind == "cuda, no gpu":
        script = script.replace("enable()", "enable(allow_cuda=True)")
    source = str(Path(gfxgraph.__file__).parent.parent)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB"))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}", "GFXGRAPH_LANG": "en"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == code


WITHOUT_THE_REST = """
import sys

class Absent:
    names = ("click", "rich", "hyperscan")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(name, name=name)

for name in [name for name in sys.modules if name.partition(".")[0] in Absent.names]:
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
import gfxgraph, torch

gfxgraph.enable(simulate="hip")
x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
x.fill_(4)
graph.replay()
double = gfxgraph.graphed(lambda x: x * 2)
print(y.tolist(), [double(x) for _ in range(4)][-1].tolist(), gfxgraph.health_check()["ok"])
print(gfxgraph.explain("HIP error: out of memory").code)
"""


def test_torch_and_python_are_enough():
    """Graphs, graphed functions, checks and explanations need no other package; the commands do."""
    done = subprocess.run([warm_python(), "-c", WITHOUT_THE_REST], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["[8.0, 8.0, 8.0] [8.0, 8.0, 8.0] True", "out_of_memory"], done.stderr


def test_stats_have_the_keys_of_the_page():
    """Before enable, while enabled, and after a replay."""
    assert PAGE_STATS <= set(gfxgraph.stats())
    gfxgraph.enable(simulate="cuda", validate=False)
    gfxgraph.reset_stats()
    bench, graph = Bench(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bench.split()
    for _ in range(5):
        graph.replay()
    stats = gfxgraph.stats()
    assert set(stats) >= PAGE_STATS
    assert (stats["capture_count"], stats["replay_count"], stats["fallback_count"]) == (1, 5, 0)
    assert stats["enabled_at"] > 1.7e9 and stats["avg_replay_us"] > 0
    del graph
    assert gfxgraph.stats()["replay_count"] == 5
    gfxgraph.disable()
    assert gfxgraph.stats()["replay_count"] == 5


@pytest.mark.parametrize("profile", ["cuda", "hip"])
def test_health_check(profile):
    """Every key of the page; ok where a graph works, and a reason where not."""
    assert gfxgraph.health_check().keys() == PAGE_HEALTH
    assert gfxgraph.health_check()["ok"] is False and "no GPU" in gfxgraph.health_check()["details"]
    gfxgraph.enable(simulate=profile)
    health = gfxgraph.health_check()
    assert health.keys() == PAGE_HEALTH
    assert health["ok"] is True and health["gpu"] and health["details"] == "Graph capture/replay OK, output verified"
    assert (health["rocm"] is not None) == (profile == "hip")
    assert health["vram_total_mb"] >= health["vram_free_mb"] > 0
    assert health["native_bridge"] in (True, False)


def test_health_check_of_a_card_that_fails():
    """A capture that cannot begin, and a replay that lies: not ok, said, nothing raised."""
    from gfxgraph_simulator import Faults, WrongReplay, active

    gfxgraph.enable(simulate="cuda", validate=False)
    active().faults = Faults(wrong_replays=[WrongReplay(node=-1)])
    health = gfxgraph.health_check()
    assert health["ok"] is False and "different result" in health["details"]
    active().faults = faults = Faults()
    faults.fail_nth("begin", 1, 1)
    health = gfxgraph.health_check()
    assert health["ok"] is False and "invalid argument" in health["details"]
    active().faults = Faults()
    assert gfxgraph.health_check()["ok"] is True


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", {"debug", "info", "warn", "error"}), ("info", {"info", "warn", "error"}), ("warn", {"warn", "error"})]
    + [("error", {"error"})],
)
def test_log_level(level, shown):
    """HGB_LOG_LEVEL decides what is written to stderr; each reason once, at debug level each time."""
    script = (
        "import torch, gfxgraph\n"
        "gfxgraph.enable(simulate='cuda', validate=False)\n"
        "from gfxgraph_simulator import Faults, WrongReplay, active\n"
        "x = torch.ones(4, device='cuda')\n"
        "g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g):\n"
        "    y = x * 2 if x.sum().item() > 0 else x\n"
        "for _ in range(3):\n"
        "    active().faults = f = Faults(); f.fail_nth('launch', 1, 1)\n"
        "    g.replay()\n"
        "active().faults = Faults(wrong_replays=[WrongReplay(node=-1)])\n"
        "g.validate()\n"
    )
    environment = os.environ | {"HGB_LOG_LEVEL": level, "GFXGRAPH_LANG": "en"}
    done = subprocess.run([warm_python(), "-c", script], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = {
        "debug": "fallback because of: ",
        "info": "split: ",
        "warn": "ran the tape",
        "error": "validation_mismatch: ",
    }
    assert {name for name, text in lines.items() if text in done.stderr} == shown, done.stderr
    assert done.stderr.count("ran the tape") <= (3 if level == "debug" else 1)


def test_users_own_logging_is_left_alone():
    """A program that has configured logging gets our lines through it, once."""
    logger = logging.getLogger("gfxgraph")
    handlers, propagate, level = list(logger.handlers), logger.propagate, logger.level
    logger.handlers, logger.propagate = [], True
    root = logging.getLogger()
    mine = logging.NullHandler()
    root.addHandler(mine)
    try:
        gfxgraph.enable(simulate="cuda")
        assert logger.handlers == [] and logger.propagate is True
    finally:
        root.removeHandler(mine)
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


FAILED_CAPTURE = """
import sys, torch, gfxgraph
gfxgraph.enable(simulate=sys.argv[1], validate=False)
from gfxgraph.capture.patches import deferred_calls
from gfxgraph_simulator import Faults, active, launch_opaque
deferred_calls.prepare_device(0)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    held = torch.ones(4, device="cuda")
active().faults = faults = Faults()
call, n, code = sys.argv[2].split(",")
faults.fail_nth(call, int(n), int(code))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id):
    launch_opaque("k", lambda t: None, held)
    y = held + torch.rand(4, device="cuda")
"""


@pytest.mark.parametrize("profile", ["cuda", "hip"])
@pytest.mark.parametrize("failure", ["begin,1,1", "op,2,901", "end,1,904", "instantiate,1,2"])
def test_exit_after_an_uncaught_failure(profile, failure):
    """A program that lets the error fly ends with its traceback and status 1, never with a crash."""
    done = subprocess.run(
        [warm_python(), "-c", FAILED_CAPTURE, profile, failure], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.rstrip().count("Traceback") >= 1 and "Exception ignored" not in done.stderr


HELD_TO_THE_END = """
import sys, types, torch, gfxgraph
gfxgraph.enable(simulate="cuda", validate=False)
x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
if sys.argv[1] == "off":
    gfxgraph.disable()
holder = sys.modules["gfxgraph.types"]  # gone after the modules that a graph needs
holder.held, holder.itself = (graph, y), holder
del graph, x, y
"""


@pytest.mark.parametrize("bridge", ["on", "off"])
def test_a_graph_that_outlives_everything_ends_quietly(bridge):
    done = subprocess.run([warm_python(), "-c", HELD_TO_THE_END, bridge], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_that_the_user_names_must_load(monkeypatch, tmp_path):
    """GFXGRAPH_LIB=/nonexistent is an error of enable() and of the preload, and nothing else is looked for."""
    from gfxgraph import native

    gfxgraph.disable()
    monkeypatch.setenv("GFXGRAPH_LIB", str(tmp_path / "nonexistent.so"))
    stock = torch.cuda.CUDAGraph
    with pytest.raises(gfxgraph.GfxGraphError) as caught:
        gfxgraph.enable(simulate="hip")
    assert caught.value.code == "native_library_unusable" and "nonexistent.so" in str(caught.value)
    assert torch.cuda.CUDAGraph is stock and not gfxgraph.is_enabled()
    assert list(native._native.candidates()) == [str(tmp_path / "nonexistent.so")] and native.library_path() is None
    with pytest.raises(gfxgraph.GfxGraphError, match="nonexistent.so: not installed"):
        native.preload_environment({}, tmp_path / "report")


def test_beside_the_other_gfxgraph_it_is_refused(monkeypatch, tmp_path):
    """PyPI's gfxgraph 1.1.0 has modules of the same names: one sentence says so, and nothing is patched."""
    gfxgraph.disable()
    about = tmp_path / "gfxgraph-1.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gfxgraph\nVersion: 1.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stock = torch.cuda.CUDAGraph
    with pytest.raises(gfxgraph.ActivationError, match="another project's package called gfxgraph") as caught:
        gfxgraph.enable(simulate="hip")
    assert (
        caught.value.code == "other_gfxgraph" and "1.1.0" in str(caught.value) and str(tmp_path) in str(caught.value)
    )
    assert torch.cuda.CUDAGraph is stock and not gfxgraph.is_enabled()
