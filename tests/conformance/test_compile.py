"""torch.compile with graphs of ours: eager's results, from replays; Inductor's own ways, in the simulator too.

In the simulator Inductor partitions, plans and hands over as on a GPU; its kernels are torch's own operations.
"""

from __future__ import annotations

import copy
import gc
import json
import logging
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.exc import TorchRuntimeError

import gfxgraph
from gfxgraph import GuardMismatch, torch_names
from gfxgraph.callables.pieces.region import Region
from gfxgraph.compile import backend
from gfxgraph.compile import regions as living
from tests.conformance.conftest import HAS_GPU

BOTH = pytest.mark.parametrize("how", [{"backend": "gfxgraph"}, {"mode": "reduce-overhead"}], ids=["backend", "mode"])
pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32")


_before: list[Region] = []


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setenv("GFXGRAPH_COMPILE", "1")  # on an NVIDIA GPU nothing changes unless asked
    torch._dynamo.reset()
    backend.register()  # as an installed package's entry points do
    _before[:] = living()
    yield
    _before.clear()
    torch._dynamo.reset()
    gc.collect()


def regions():
    """Those of this test."""
    return [region for region in living() if region not in _before]


@pytest.fixture
def cuda():
    """One platform where what is tested does not depend on it."""
    gfxgraph.enable(**({"allow_cuda": True} if HAS_GPU else {"simulate": "cuda"}), validate=False)
    yield
    gfxgraph.disable()


def total(what):
    return sum(region.stats()[what] for region in regions())


def shown():
    return "\n".join(region.explain() for region in regions())


@BOTH
def test_results_are_eagers_and_the_callers_own(platform, how):
    """Calls are replays after one warm-up, parameters are not copied, and results kept are never overwritten."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
    compiled = torch.compile(model, **how)
    kept = []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(4, 8, device="cuda")
            kept.append((compiled(x), model(x)))
    for a, b in kept:
        assert torch.allclose(a, b, atol=1e-5)
    assert total("replays") == 5, shown()
    (region,) = regions()
    assert [line.strip() for line in region.explain().splitlines() if "replays of" in line][0].startswith(
        "float32[4, 8]: 5"
    )


@BOTH
def test_training_follows_eager(cuda, how):
    """Forward and backward replay; gradients are eager's, also where results of several forwards are held."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).cuda()
    trained = copy.deepcopy(eager)
    compiled = torch.compile(trained, **how)
    for turn in range(16):
        xs = [torch.randn(4, 8, device="cuda") for _ in range(1 + turn // 14)]
        for model in (compiled, eager):
            model.zero_grad()
            sum(out.square().mean() for out in [model(x) for x in xs]).backward()
        for p, q in zip(trained.parameters(), eager.parameters()):
            assert torch.allclose(p.grad, q.grad, atol=1e-5), turn
    by_kind = {region.name.split()[1]: region.stats()["replays"] for region in regions()}
    assert by_kind["forward"] >= 16 and by_kind["backward"] >= 6, shown()


def test_other_parameters_are_read(cuda):
    """A parameter replaced by one elsewhere is read where it lies now, and going back finds the capture again."""
    model = nn.Linear(8, 8).cuda()
    compiled = torch.compile(model, backend="gfxgraph")
    first, second = model.weight, nn.Parameter(torch.randn(8, 8, device="cuda"))
    with torch.no_grad():
        for weight in (first, first, first, second, second, second, first, second):
            model.weight = weight
            x = torch.randn(4, 8, device="cuda")
            assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert total("variants") == 2 and total("replays") == 6, shown()


def test_a_region_where_it_was_is_not_searched(cuda, monkeypatch):
    """At the addresses of the call before it has the graph of the call before; a search costs more than the replay."""
    model = nn.Linear(8, 8).cuda()
    compiled, x = torch.compile(model, backend="gfxgraph"), torch.randn(4, 8, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
        monkeypatch.setattr(Region, "_find", None)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert total("replays") >= 3, shown()


class Layer(nn.Module):
    """A layer with parameters, a buffer, and a cache that it writes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("scale", torch.rand(8) + 0.5)
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x):
        if not torch.is_grad_enabled():
            self.seen.add_(x)
        return x + self.inner(x).tanh() * self.scale + self.seen


def layers(n):
    """So many layers, and the same compiled one by one: all run through one compiled region."""
    theirs = nn.Sequential(*[Layer() for _ in range(n)]).cuda()
    ours = copy.deepcopy(theirs)
    for layer in ours:
        layer.compile(mode="reduce-overhead")
    return ours, theirs


def test_layers_compiled_one_by_one_are_read_in_place(cuda):
    """However many share a region: nothing but the step's argument is copied, and what changes is seen."""
    ours, theirs = layers(10)
    with torch.no_grad():
        for turn in range(6):
            x = torch.randn(4, 8, device="cuda")
            assert torch.allclose(ours(x), theirs(x), rtol=1e-4, atol=1e-3), turn
            assert all(torch.allclose(a.seen, b.seen, rtol=1e-4, atol=1e-3) for a, b in zip(ours, theirs))
            for model in (ours, theirs):
                model[3].inner.weight.mul_(1.1)
            if turn == 3:
                changed = nn.Linear(8, 8).cuda()
                for model in (ours, theirs):
                    model[2].inner = copy.deepcopy(changed)
    (region,) = [each for each in regions() if each.stats()["replays"]]
    found = region.stats()
    assert found["variants"] == 10 and found["replays"] >= 30 and sum(found["eager"].values()) <= 12, shown()
    assert all(len(variant.moving) == 1 for variant in region._variants.values()), shown()


def test_layers_compiled_one_by_one_are_trained(cuda):
    """Their gradients are eager's."""
    ours, theirs = layers(6)
    for turn in range(5):
        x = torch.randn(4, 8, device="cuda")
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().sum().backward()
        for p, q in zip(ours.parameters(), theirs.parameters()):
            assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-4), turn


def test_written_inputs_are_the_callers_own(cuda):
    """What the function writes to is written where it lies; with a new address each time it runs eagerly."""

    def step(cache, x):
        cache.add_(x)
        return cache * 2

    compiled = torch.compile(step, backend="gfxgraph")
    cache = torch.zeros(8, device="cuda")
    for i in range(6):
        assert torch.equal(compiled(cache, torch.ones(8, device="cuda")).cpu(), torch.full((8,), 2.0 * (i + 1)))
    assert torch.equal(cache.cpu(), torch.full((8,), 6.0))
    assert total("replays") >= 3, shown()
    kept = [torch.zeros(8, device="cuda") for _ in range(24)]
    for cache in kept:
        compiled(cache, torch.ones(8, device="cuda"))
        assert torch.equal(cache.cpu(), torch.ones(8))
    assert "has a new address each time" in shown()


def test_each_size_is_captured(cuda):
    """Dynamic shapes: a capture for each size."""
    model = nn.Linear(8, 8).cuda()
    compiled = torch.compile(model, backend="gfxgraph", dynamic=True)
    with torch.no_grad():
        for n in [3, 5, 3, 5, 3, 5]:
            x = torch.randn(n, 8, device="cuda")
            assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert total("replays") == 4, shown()


def test_watching_modules_is_not_traced(cuda):
    """A model that slices its layers, as Llama does, is compiled once, though module registration is watched."""
    from torch._dynamo.utils import counters

    model = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]).cuda()

    def f(x):
        for layer in model[:2]:
            x = layer(x)
        return x

    with torch.no_grad():
        gfxgraph.graphed(lambda x: model[0](x))(torch.randn(4, 8, device="cuda"))  # from here on modules are watched
        compiled = torch.compile(f, mode="reduce-overhead")
        frames = []
        for _ in range(4):
            compiled(torch.randn(4, 8, device="cuda"))
            frames.append(counters["frames"]["total"])
    assert frames[0] == frames[-1]


@BOTH
def test_the_host_stands_between_graphs(cuda, how):
    """What Inductor splits out (here a way over the host) runs between the graphs of the partitions."""

    def f(x, scale):
        y = torch.sin(x) * scale
        z = y.cpu() + 1
        return torch.cos(z.to("cuda") + y)

    compiled = torch.compile(f, **how)
    for i in range(6):
        x, scale = torch.randn(16, device="cuda"), torch.tensor(float(i))
        assert torch.allclose(compiled(x, scale), f(x, scale), atol=1e-5)
    assert len(regions()) >= 2 and total("replays") >= 5, shown()


def test_breaks_of_the_traced_graph(cuda):
    """A function that Dynamo breaks is several regions; one's results are the next one's inputs."""

    def f(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * 2

    compiled = torch.compile(f, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(16, device="cuda")
        assert torch.allclose(compiled(x), f(x))
    assert len(regions()) == 2 and total("replays") == 8, shown()


def drops(x):
    return nn.functional.dropout(x, 0.5) * 2


def rewinds(x):
    state = torch.cuda.get_rng_state()
    y = nn.functional.dropout(x, 0.5)
    torch.cuda.set_rng_state(state)
    return y * 2


def test_dropout_in_a_region(cuda):
    """Dropout draws anew at each replay, and the same from the same seed."""
    compiled = torch.compile(drops, backend="gfxgraph")
    x = torch.ones(64, device="cuda")
    for _ in range(4):
        compiled(x)
    drawn = []
    for _ in range(2):
        torch.cuda.manual_seed(7)
        drawn += [compiled(x).cpu() for _ in range(3)]
    assert torch.equal(drawn[0], drawn[3]) and torch.equal(drawn[2], drawn[5]) and not torch.equal(drawn[0], drawn[1])
    assert total("replays") == 9


IS_COMPILED_AGAIN = torch_names.set_is_in_mode_without_ignore_compile_internals is None
"""torch 2.9: a guard on a tensor compares the thread's dispatch keys, a recorder's among them, so that what was compiled
outside is compiled once more in the first capture.
"""


@pytest.mark.parametrize("body, draws_anew", [(drops, True), (rewinds, False)])
def test_compiled_code_with_random_state_in_a_capture(capture, body, draws_anew):
    """Dropout inside a capture; and code that reads and sets the random state there, compiled once only."""
    from torch._dynamo.utils import counters

    x = torch.ones(64, device="cuda")
    compiled = torch.compile(body, mode="reduce-overhead")
    for _ in range(2):
        compiled(x)
    if IS_COMPILED_AGAIN:
        capture(lambda: compiled(x), warm=False)
    n_frames = counters["frames"]["total"]
    graph, y = capture(lambda: compiled(x), warm=False)
    assert counters["frames"]["total"] == n_frames
    torch.cuda.manual_seed(7)
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(y.cpu().clone())
    assert torch.equal(drawn[0], drawn[1]) != draws_anew
    assert set(drawn[0].tolist()) == {0.0, 4.0}


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_compiled_checkpoint_in_a_capture(capture, is_warm):
    """It draws from generators of its own, which no graph knows: each replay drops anew, forwards as backwards.

    Compiled inside the capture, it seeds them there, which no replay repeats.
    """
    layer = nn.Linear(64, 64, device="cuda")
    with torch.no_grad():
        layer.weight.fill_(0.1)

    def drops_again(t):
        return nn.functional.dropout(layer(t).relu(), 0.3)

    compiled = torch.compile(
        lambda x: torch.utils.checkpoint.checkpoint(drops_again, x, use_reentrant=False), backend="aot_eager"
    )
    x = torch.ones(64, device="cuda")

    def step():
        layer.zero_grad()
        y = compiled(x)
        y.sum().backward()
        return y.detach()

    try:
        graph, y = capture(step, warm=is_warm)
    except TorchRuntimeError as error:
        assert not is_warm and "cannot JIT compile during CUDA graph capture" in str(error)  # torch 2.14
        return
    kept = []
    for _ in range(3):
        graph.replay()
        kept.append((y > 0).cpu())
        assert torch.equal(kept[-1], (layer.bias.grad > 0).cpu())
    assert not torch.equal(kept[0], kept[1])


def test_compiled_code_that_breaks_at_a_read_in_a_capture(capture):
    """Dynamo, which looks at every frame between two compiled pieces, leaves what reads the number alone."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    x = torch.ones(4, device="cuda")
    step = torch.compile(lambda t: t * t.sum().item() + 1, backend="eager")
    wanted = [step(x.fill_(value)).cpu() for value in (1.0, 3.0, 4.0)]
    if IS_COMPILED_AGAIN:
        capture(lambda: step(x))
    n_before = counters["stats"]["unique_graphs"]
    x.fill_(1.0)
    graph, out = capture(lambda: step(x))
    for value, expected in zip((1.0, 3.0, 4.0), wanted):
        x.fill_(value)
        try:
            graph.replay()
        except GuardMismatch:
            assert value != 1.0
            continue
        assert torch.equal(out.cpu(), expected)
    assert counters["stats"]["unique_graphs"] == n_before


@pytest.mark.any_platform
@pytest.mark.skipif(torch_names.version() < (2, 11), reason="this torch gives a subgraph its operands one by one")
def test_a_boxed_subgraph_in_a_capture_gets_its_list(capture):
    """As Inductor's code for a nested region does; what it calls is recorded."""
    invoke_subgraph = import_module("torch._higher_order_ops.invoke_subgraph").invoke_subgraph

    def body(operands):
        return (operands.pop().sin(),)

    body._boxed_call = True
    x = torch.ones(4, device="cuda")
    graph, (out,) = capture(lambda: invoke_subgraph(body, "one", x))
    x.fill_(2.0)
    graph.replay()
    assert torch.equal(out, x.sin())


def test_stock_again_after_disable(cuda):
    """disable() puts torch's method back; compiled code made meanwhile keeps working."""
    ours = torch._TorchCompileInductorWrapper.__call__
    gfxgraph.disable()
    stock = torch._TorchCompileInductorWrapper.__call__
    assert stock is not ours and "gfxgraph.compile" not in stock.__module__


def test_left_to_inductor_where_asked(monkeypatch):
    """GFXGRAPH_COMPILE=0: nothing of torch.compile is touched."""
    before = torch._TorchCompileWrapper.__init__
    monkeypatch.setenv("GFXGRAPH_COMPILE", "0")
    gfxgraph.enable(**({"allow_cuda": True} if HAS_GPU else {"simulate": "cuda"}))
    try:
        assert torch._TorchCompileWrapper.__init__ is before
    finally:
        gfxgraph.disable()


def test_a_policy_of_somebody_elses_stays(cuda):
    """Where the program has set a policy of its own, its compilations are not ours."""
    from torch._inductor import config

    if not hasattr(config, "cudagraph_policy"):
        pytest.skip("this torch has no policies")
    with config.patch(cudagraph_policy=object(), fallback_by_default=True):
        compiled = torch.compile(lambda x: x + 1, mode="reduce-overhead")
        assert torch.equal(compiled(torch.zeros(4, device="cuda")).cpu(), torch.ones(4))
    assert not regions()


class TestOnROCm:
    """A recorded ROCm machine: safe settings, each from a row, in force while something is compiled."""

    @pytest.fixture
    def rocm(self, tmp_path, monkeypatch):
        if HAS_GPU:
            pytest.skip("the recorded machine is for the simulator")
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({"environment": {"platform": "hip", "rocm": "7.2.1", "archs": ["gfx1030"]}}))
        monkeypatch.setenv("GFXGRAPH_ENVIRONMENT", str(path))

        def enable():
            gfxgraph.enable(simulate="hip", validate=False)

        yield enable
        gfxgraph.disable()

    @pytest.fixture
    def seen(self, monkeypatch):
        """Settings in force while Inductor compiles, where an image has set variables for them."""
        from torch._inductor import compile_fx, config

        # As TORCHINDUCTOR_MAX_AUTOTUNE=1 and TORCHINDUCTOR_MEMORY_PLANNING=1 do: defaults, not assignments.
        for name in ("max_autotune", "memory_planning"):
            monkeypatch.setattr(config._config[name], "default", True)
        found = []
        stock = compile_fx.compile_fx_inner

        def watch(*args, **kwargs):
            found.append({name: getattr(config, name) for name in ("max_autotune", "memory_planning")})
            return stock(*args, **kwargs)

        monkeypatch.setattr(compile_fx, "compile_fx_inner", watch)
        monkeypatch.setattr(compile_fx.compile_fx, "__defaults__", (watch, *compile_fx.compile_fx.__defaults__[1:]))
        with config.patch(max_autotune=True, memory_planning=True):
            yield found

    def run(self, **how):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: torch.relu(x) + 1, **how)
        x = torch.randn(8, device="cuda")
        for _ in range(3):
            assert torch.equal(compiled(x), torch.relu(x) + 1)

    def test_settings_are_safe_and_restored(self, rocm, seen, caplog):
        """Autotuning that the user did not ask for and memory planning are off; graphs are ours; said once."""
        from torch._inductor import config

        rocm()
        with caplog.at_level(logging.WARNING, "gfxgraph"):
            logging.getLogger("gfxgraph").propagate = True
            self.run(mode="reduce-overhead")
            self.run(mode="reduce-overhead")
        assert seen and all(found == {"max_autotune": False, "memory_planning": False} for found in seen)
        assert total("replays") >= 2
        told = [r.getMessage() for r in caplog.records if "uses gfxgraph's graphs" in r.getMessage()]
        assert len(told) == 1 and "inductor-graphs-slow" in told[0]
        events = {event["reason"] for event in gfxgraph.stats()["events"] if event["kind"] == "compile_setting"}
        assert any("max_autotune" in reason and "inductor-autotune-by-image" in reason for reason in events)
        assert config.max_autotune and config.memory_planning  # outside a compilation as they were

    def test_what_the_user_asked_for_stays(self, rocm, seen, monkeypatch):
        """A mode, an option or an assignment leaves a setting alone."""
        from torch._inductor import config

        rocm()
        self.run(options={"triton.cudagraphs": True, "max_autotune": True, "memory_planning": True})
        assert seen[-1] == {"max_autotune": True, "memory_planning": True}
        monkeypatch.setattr(config._config["max_autotune"], "default", False)  # so True is an assignment
        self.run(mode="reduce-overhead")
        assert seen[-1]["max_autotune"] is True

    def test_nothing_of_it_on_cuda(self, cuda, seen):
        """On NVIDIA no setting changes."""
        self.run(mode="reduce-overhead")
        assert seen[-1] == {"max_autotune": True, "memory_planning": True}

    def test_doctor_tells(self, rocm, capsys):
        """doctor --why shows each row, what it sets, and how to keep the original."""
        from click.testing import CliRunner

        from gfxgraph.cli.doctor import command

        text = CliRunner().invoke(command, ["--why"]).output
        for part in ("inductor-memory-planning", "memory_planning = False", "options={'memory_planning': ...}"):
            assert part in text, text
        assert "inductor_graphs = ours" in text and "GFXGRAPH_COMPILE=0" in text


def test_the_entry_point_is_the_backend():
    """What pyproject.toml names is there, and takes what torch.compile passes."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, name = project["project"]["entry-points"]["torch_dynamo_backends"]["gfxgraph"].split(":")
    assert callable(getattr(import_module(module), name))


def test_unknown_options_are_refused(cuda):
    """An option that neither we nor Inductor know is Inductor's error, at the first call."""
    compiled = torch.compile(lambda x: x + 1, backend="gfxgraph", options={"buckts": [1]})
    with pytest.raises(Exception, match="buckts"):
        compiled(torch.zeros(4, device="cuda"))


def test_a_region_whose_results_are_its_inputs(cuda):
    """A result that lies in an input is never a view that owns nothing: later calls leave it as it is."""
    calls = []

    def model(inputs):
        calls.append(len(inputs))
        x, y = inputs
        inputs.clear()
        return [x.view(2, 4), x + y]

    region, kept = Region(model, [0], [], is_backward=True, is_inference=False), []
    for _ in range(5):
        x, y = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
        view, added = region([x, y])
        assert torch.equal(added.cpu(), (x + y).cpu())
        kept.append((view, x.view(2, 4).cpu()))
        del x, y
    assert all(torch.equal(view.cpu(), wanted) for view, wanted in kept)
    assert region.stats()["replays"] >= 2


@pytest.mark.parametrize("what", [{"is_partition": True}, {"is_backward": True, "is_inference": False}])
def test_a_region_that_computes_into_an_argument(cuda, what):
    """Inductor does so where it is the argument's last use, and returns it; no operation of torch's tells."""

    def model(inputs):
        x, y = inputs
        inputs.clear()
        with torch._C._AutoDispatchBelowAutograd(), torch.autograd._unsafe_preserve_version_counter(x):
            x.add_(y)
        return [x]

    region = Region(model, [], [], **what)
    for _ in range(5):
        x, y = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
        wanted = (x + y).cpu()
        (made,) = region([x.clone(), y])
        assert torch.equal(made.cpu(), wanted)
    assert region.stats()["replays"] >= 2
