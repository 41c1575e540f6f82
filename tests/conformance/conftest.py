"""One scenario on every platform there is: the GPU where there is one, else the simulator as CUDA and as HIP."""

from __future__ import annotations

import contextlib
import gc
import sys
import zlib

import pytest
import torch

pytest.register_assert_rewrite("tests.conformance.bench")

HAS_GPU = torch.cuda.is_available()
PLATFORMS = ["gpu"] if HAS_GPU else ["cuda", "hip"]


@pytest.fixture(scope="session", autouse=True)
def workspace_of_products():
    """On HIP the bridge makes it before the first capture; here it is there from the start, on torch alone, too."""
    if HAS_GPU and torch.version.hip is not None:
        x = torch.ones(16, 16, dtype=torch.float16, device="cuda")
        torch.addmm(x[0], x, x)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Whatever a test is about: no capture of its goes on, and what captures change in the process is as before."""
    before = _of_the_process()
    yield
    gc_was, after = gc.isenabled(), _of_the_process()
    gc.enable()  # what a test leaves is its failure, not the next one's
    assert (gc_was, after) == (True, before)


def _of_the_process():
    here = sys.modules.get("gfxgraph.process.process")
    locks, names = (sys.modules.get(f"gfxgraph.capture.{name}") for name in ("capture_lock", "patches.patch_table"))
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autograd's threads": torch.autograd.is_multithreading_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "captures": [*here.sessions(), *here.leftover_modes()] if here is not None else [],
        "owners of the capture lock": locks._alive() if locks is not None else [],
        "names are replaced": names is not None and bool(names.INSTALLED),
    }


@pytest.fixture(params=PLATFORMS)
def platform(request):
    """The bridge enabled; everything put back afterwards."""
    import gfxgraph

    if request.param == "gpu":
        gfxgraph.enable(allow_cuda=True, validate=False)
    else:
        gfxgraph.enable(simulate=request.param, validate=False)
    gfxgraph.reset_stats()
    try:
        yield request.param
    finally:
        gfxgraph.disable()


on_both_platforms = pytest.mark.parametrize("platform", PLATFORMS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """A test marked ``any_platform`` runs on one, by its name: what it is about is above the driver."""
    test = metafunc.definition
    on_both = any("platform" in mark.args[0] for mark in test.iter_markers("parametrize"))
    if "platform" in metafunc.fixturenames and test.get_closest_marker("any_platform") and not on_both:
        one = PLATFORMS[zlib.crc32(metafunc.function.__name__.encode()) % len(PLATFORMS)]
        test.add_marker(pytest.mark.parametrize("platform", [one], indirect=True))


@pytest.fixture
def nothing_compiled(monkeypatch):
    """As in a process where Dynamo has compiled nothing yet: numbers flow through functions that code is guarded on."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and frames.FRAME_COUNTER:  # to reset it takes as long as a test
        torch._dynamo.reset()
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)


@pytest.fixture
def capture(platform):
    """capture(body, **kw) -> (graph, result): a plain torch.cuda.graph capture after one warm-up."""

    def do(body, graph=None, warm=True, **kw):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        if warm:
            saved = torch.cuda.get_rng_state()
            with torch.cuda.stream(stream):
                warm() if callable(warm) else body()
            torch.cuda.set_rng_state(saved)
        torch.cuda.current_stream().wait_stream(stream)
        graph = graph if graph is not None else torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, **kw):
            result = body()
        return graph, result

    return do


SURFACES = ["stock-gpu", "gpu"] if HAS_GPU else ["stock", "cuda", "hip", "hip-validating"]


class Surface:
    """Where a scenario runs: on torch alone, which shows that the scenario states what torch does, or bridged."""

    def __init__(self, name):
        self.name = name
        self.is_bridged = not name.startswith("stock")
        self.validates = name.endswith("validating")
        self.allowed = set()

    def allow(self, *kinds):
        """Events of these kinds ("split", "fallback"...) are part of the scenario; any other fails it."""
        self.allowed.update(kinds)

    def unexpected_events(self):
        if not self.is_bridged:
            return []
        import gfxgraph

        return [event for event in gfxgraph.stats()["events"] if event["kind"] not in self.allowed]

    @contextlib.contextmanager
    def installed(self):
        """The platform of that name, everything put back afterwards."""
        import gfxgraph

        if self.name == "stock-gpu":
            gc.collect()  # a graph of another test, collected inside a capture, ends that: torch's own captures do not wait
            yield
            return
        if self.name == "stock":
            import gfxgraph_simulator as simulator

            undo = simulator.install("cuda")
            try:
                yield
            finally:
                undo.undo()
            return
        if self.name == "gpu":
            gfxgraph.enable(allow_cuda=True, validate=False)
        else:
            gfxgraph.enable(simulate=self.name.split("-")[0], validate=None if self.validates else False)
        gfxgraph.reset_stats()
        try:
            yield
        finally:
            gfxgraph.disable()


@pytest.fixture(params=SURFACES)
def surface(request):
    """One scenario on torch alone and under the bridge: same results, and nothing reported that is not expected."""
    here = Surface(request.param)
    with here.installed():
        yield here
        assert not here.unexpected_events()


@pytest.fixture
def on_both():
    """on_both(scenario) -> (what it gives on torch alone, what it gives under the bridge)."""

    def run(scenario):
        results = []
        for name in SURFACES[:2]:
            with Surface(name).installed():
                results.append(scenario())
        return tuple(results)

    return run
