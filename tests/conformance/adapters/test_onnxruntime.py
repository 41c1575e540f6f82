"""GraphedSession on ONNX Runtime's CPU provider, and on stand-ins for its ROCm, CUDA and MIGraphX providers.

The stand-ins do on numpy what those providers do with their graphs: the first run under a graph's name fixes
its buffers and its sizes, and a run after it computes from those buffers whatever else is bound. No test
here ran on a GPU provider.
"""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

numpy = pytest.importorskip("numpy")
ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

import gfxgraph  # noqa: E402
from gfxgraph import adapters  # noqa: E402
from gfxgraph.adapters import onnxruntime  # noqa: E402
from gfxgraph.adapters.onnxruntime import GraphedSession  # noqa: E402
from tests.conformance.conftest import HAS_GPU  # noqa: E402

WEIGHT = numpy.random.default_rng(0).standard_normal((6, 5)).astype(numpy.float32)


def model(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        [helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.flatten()) for name, value in constants],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def linear():
    """Each row by itself."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return model(nodes, {"x": ["batch", 6]}, {"y": (TensorProto.FLOAT, ["batch", 5])}, [("w", WEIGHT)])


def found():
    """As many results as there are values above zero."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])]
    return model(nodes, {"x": ["batch", 6]}, {"y": (TensorProto.INT64, [2, "found"])})


def rows(n, seed=0, width=6):
    return numpy.random.default_rng(seed).standard_normal((n, width)).astype(numpy.float32)


def same(got, want):
    assert [array.shape for array in got] == [array.shape for array in want]
    for ours, theirs in zip(got, want):
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def plain(made):
    return ort.InferenceSession(made, providers=["CPUExecutionProvider"])


# -- the CPU provider ------------------------------------------------------------------------------------------


def test_a_provider_without_graphs_runs_the_session():
    """Every result is the session's, its errors and its other names are its own, and the reason is told."""
    session, wanted = GraphedSession(linear()), plain(linear())
    for n in (1, 3, 1):
        same(session.run(None, {"x": rows(n)}), wanted.run(None, {"x": rows(n)}))
    same(session.run(None, {"x": rows(3)}, ort.RunOptions()), wanted.run(None, {"x": rows(3)}))
    with pytest.raises(Exception, match="x"):
        session.run(None, {"x": rows(3, width=7)})
    assert session.get_inputs()[0].name == "x"
    assert session.why() == "CPUExecutionProvider, no graphs: CPUExecutionProvider has no graphs; 0 sets of shapes"
    assert session.stats()["provider"] == "CPUExecutionProvider"


def test_installed_every_session_is_ours():
    """With the adapter in place a new ``InferenceSession`` is a GraphedSession, and dies with its last reference."""
    before = plain(linear())
    adapters.install("onnxruntime")
    try:
        session = plain(linear())
        assert isinstance(session, GraphedSession)
        same(session.run(None, {"x": rows(3)}), before.run(None, {"x": rows(3)}))
        gone = weakref.ref(session)
        del session
        gc.collect()
        assert gone() is None
    finally:
        adapters.uninstall("onnxruntime")


# -- stand-ins for the providers with graphs -------------------------------------------------------------------


class Value:
    def __init__(self, array, device):
        self.array, self.device = array, device

    @classmethod
    def ortvalue_from_numpy(cls, array, device_type="cpu", device_id=0):
        return cls(array.copy(), device_type)

    def data_ptr(self):
        return self.array.ctypes.data

    def update_inplace(self, array):
        self.array[...] = array

    def numpy(self):
        return self.array


class Engine:
    """A module with providers that capture: ``faults`` says what goes wrong in it."""

    def __init__(self, provider, option="enable_cuda_graph", faults=()):
        self.OrtValue = Value
        self.provider, self.option, self.faults = provider, option, set(faults)
        self.sessions, self.captures = [], 0
        outer = self

        class RunOptions:
            def __init__(self):
                self.entries = {}

            def add_run_config_entry(self, name, value):
                self.entries[name] = value

        class InferenceSession(Session):
            engine = outer

        self.RunOptions, self.InferenceSession = RunOptions, InferenceSession

    def get_available_providers(self):
        return [self.provider, "CPUExecutionProvider"]


class Session:
    engine: Engine

    def __init__(self, made, sess_options=None, providers=()):
        engine = self.engine
        self.options = dict(providers[0][1]) if isinstance(providers[0], tuple) else {}
        self.captures = self.options.get(engine.option) == "1"
        if self.captures and "session" in engine.faults:
            raise RuntimeError("This session cannot use the CUDA Graph feature: it has control flow nodes")
        if "option" in engine.faults:
            self.captures = False
        self.inner = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
        self.graphs = {}
        self.get_inputs, self.get_outputs = self.inner.get_inputs, self.inner.get_outputs
        engine.sessions.append(self)

    def get_providers(self):
        return [self.engine.provider, "CPUExecutionProvider"]

    def get_provider_options(self):
        known = (
            {} if "option" in self.engine.faults else {self.engine.option: self.options.get(self.engine.option, "0")}
        )
        return {self.engine.provider: known}

    def io_binding(self):
        return Binding()

    def run(self, names, feeds, options=None):
        by_run = (options.entries if options else {}).get("gpu_graph_id") == "-1"
        assert not self.captures or by_run, "memory of the moment, under a graph that captures it"
        return self.inner.run(names, feeds)

    def run_with_iobinding(self, binding, options=None):
        engine = self.engine
        if self.captures and "run" in engine.faults:
            raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")
        if self.captures:
            name = (options.entries if options else {}).get("gpu_graph_id", "0")
            if name not in self.graphs:
                engine.captures += 1
                self.graphs[name] = binding
            binding = self.graphs[name]
        feeds = {name: value.array for name, value in binding.inputs.items()}
        for name, array in zip(binding.outputs, self.inner.run(list(binding.outputs), feeds)):
            if binding.outputs[name].array.shape != array.shape:
                raise RuntimeError("the output's shape is another")
            wrong = self.captures and "replay" in engine.faults
            binding.outputs[name].array[...] = array + 1 if wrong else array


class Binding:
    def __init__(self):
        self.inputs, self.outputs = {}, {}
        self.synchronize_inputs = self.synchronize_outputs = lambda: None

    def bind_ortvalue_input(self, name, value):
        self.inputs[name] = value

    def bind_ortvalue_output(self, name, value):
        self.outputs[name] = value


GPU = {
    "rocm": ("ROCMExecutionProvider", "enable_hip_graph"),
    "cuda": ("CUDAExecutionProvider", "enable_cuda_graph"),
}


@pytest.fixture(params=GPU)
def gpu(request):
    provider, option = GPU[request.param]
    return SimpleNamespace(provider=provider, engine=lambda *faults: Engine(provider, option, faults))


def test_migraphx_gets_no_graphs():
    """Its kernels fill no whole workgroups, and a graph of HIP 7 would write beyond their arrays."""
    engine = Engine("MIGraphXExecutionProvider", "migraphx_hip_graph_enable")
    session = GraphedSession(linear(), ort=engine)
    drive(session)
    assert engine.captures == 0 and "parts of workgroups" in session.why_no_graph


def drive(session, made=None):
    wanted = plain(made or linear())
    for seed, n in enumerate((3, 4, 1, 8, 3, 4, 1, 8)):
        same(session.run(None, {"x": rows(n, seed)}), wanted.run(None, {"x": rows(n, seed)}))


def test_graphs_are_asked_for_and_each_size_has_its_own(gpu):
    """The provider's own option is set, each size is captured once, on its device, and no run reads old memory."""
    engine = gpu.engine()
    session = GraphedSession(linear(), ort=engine)
    drive(session)
    assert session.provider == gpu.provider and session.why_no_graph == ""
    assert engine.captures == 4
    assert {value.device for made in session._made.values() for value in made.inputs.values()} == {"cuda"}
    assert session.stats()["shapes"] == {f"[[{n}, 6]]": 2 for n in (3, 4, 1, 8)}


def test_most_sets_of_shapes(gpu, monkeypatch):
    """Up to the limit each set has its buffers, whose memory stays; results are the caller's own; others run without."""
    monkeypatch.setattr(onnxruntime, "MOST_SHAPES", 3)
    session, wanted = GraphedSession(linear(), ort=gpu.engine()), plain(linear())
    kept, addresses = [], set()
    for seed, n in enumerate((1, 2, 3, 2, 5, 3, 11, 1)):
        kept.append((session.run(None, {"x": rows(n, seed)}), wanted.run(None, {"x": rows(n, seed)})))
        addresses |= {(made.inputs["x"].data_ptr(), made.outputs["y"].data_ptr()) for made in session._made.values()}
    for got, want in kept:
        same(got, want)
    assert len(addresses) == 3 and session.stats()["fallback_count"] == 2
    assert session.stats()["shapes"] == {"[[1, 6]]": 2, "[[2, 6]]": 2, "[[3, 6]]": 2}


def test_outputs_whose_size_depends_on_values(gpu):
    """Buffers of one size cannot hold them: the session runs as it would without us, every result right."""
    session, wanted = GraphedSession(found(), ort=gpu.engine()), plain(found())
    for seed, n in enumerate((4, 3, 4, 2, 4)):
        same(session.run(None, {"x": rows(n, seed)}), wanted.run(None, {"x": rows(n, seed)}))
    assert session.why_no_graph and session.stats()["fallback_count"] == 1


def test_a_call_that_is_not_of_arrays_alone_runs_without_a_graph(gpu):
    """Its memory is the caller's, so its run is none of the graph's."""
    session = GraphedSession(linear(), ort=gpu.engine())
    same(session.run(None, {"x": rows(3).tolist()}), plain(linear()).run(None, {"x": rows(3)}))
    assert session.stats()["shapes"] == {}


@pytest.mark.skipif(HAS_GPU, reason="a simulated card beside a real one is refused")
def test_fallbacks_are_counted_by_gfxgraph_too(gpu):
    """With the bridge on, a session's fallbacks are in gfxgraph.stats()."""
    gfxgraph.enable(simulate="cuda")
    try:
        gfxgraph.reset_stats()
        GraphedSession(linear(), ort=gpu.engine("option"))
        assert gfxgraph.stats()["fallback_count"] == 1
    finally:
        gfxgraph.disable()


def test_a_build_without_the_option(gpu):
    """A build that does not take the option runs without graphs, and says so."""
    session = GraphedSession(linear(), ort=gpu.engine("option"))
    drive(session)
    assert "does not have the option" in session.why_no_graph


def test_a_session_that_cannot_be_made_with_graphs(gpu):
    """The provider refuses the model, for its control flow: a session without graphs takes its place."""
    session = GraphedSession(linear(), ort=gpu.engine("session"))
    drive(session)
    assert "control flow" in session.why_no_graph
    assert session.stats()["fallback_count"] >= 1


def test_a_capture_that_fails(gpu):
    """The first run under a graph fails: the same call runs without, and so do all that follow."""
    session = GraphedSession(linear(), ort=gpu.engine("run"))
    drive(session)
    assert "900" in session.why_no_graph


def test_a_replay_that_computes_something_else(gpu, monkeypatch):
    """Where first replays are validated, a wrong one is never handed out, and graphs are given up."""
    monkeypatch.setenv("GFXGRAPH_VALIDATE_REPLAYS", "2")
    session = GraphedSession(linear(), ort=gpu.engine("replay"))
    drive(session)
    assert "different results" in session.why_no_graph


def test_how_many_replays_are_validated_follows_the_defect_table(gpu, monkeypatch, tmp_path):
    """On a machine whose row of the table asks for it, and not on another."""
    import json

    for rocm, arch, wanted in (("7.2.1", "gfx942", True), ("", "", False)):
        file = tmp_path / "machine.json"
        about = {
            "platform": "hip" if rocm else "cuda",
            "rocm": rocm,
            "hip": "",
            "torch": "",
            "archs": [arch][: bool(arch)],
        }
        file.write_text(json.dumps(about | {"n_gpus": 1, "environ": {}}))
        monkeypatch.setenv("GFXGRAPH_ENVIRONMENT", str(file))
        session = GraphedSession(linear(), ort=gpu.engine())
        for seed in range(6):
            session.run(None, {"x": rows(4, seed)})
        assert (session.stats()["validations"] > 0) == wanted


def test_graphs_left_off(gpu):
    """``graphs=False`` sets no option."""
    engine = gpu.engine()
    session = GraphedSession(linear(), graphs=False, ort=engine)
    drive(session)
    assert session.why_no_graph == "not asked for" and all(not one.options for one in engine.sessions)
