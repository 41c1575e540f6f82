"""ONNX Runtime: sessions whose provider captures graphs itself, set up as its graphs require.

The CUDA and ROCm providers have graphs of their own, off by default. They need three things that
``session.run`` does not provide: one size per graph, the same memory at every run, and an option whose name differs
by provider. A ``GraphedSession`` has the same ``run`` as an ``InferenceSession``, and underneath: IOBinding
with fixed buffers for each set of shapes, and the option. Nothing is padded: whether a model's
rows depend on each other cannot be known here, and the program that makes the batches can pad them.

Where first replays are validated, they are compared with the same call without a graph. If results differ, a bound
run fails, or a build or a provider has no graphs, the session runs from then on as ``InferenceSession.run`` does,
with that reason.

Source: onnxruntime 1.31.1's Python package; ``enable_cuda_graph`` and ``gpu_graph_id`` as its documentation and
onnxruntime_run_options_config_keys.h say; ``enable_hip_graph`` in onnxruntime-rocm 1.22.2, the last with that
provider. ``migraphx_hip_graph_enable`` of ROCm's builds stays off: MIGraphX launches parts of workgroups, and HIP 7's
graphs run whole ones (selftest/native/scenarios.py). Run here: the ROCm provider on AMD's emulator; the others as
stand-ins only.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gfxgraph import config
from gfxgraph.adapters._needs import NeededName
from gfxgraph.adapters.adapter import Adapter, GraphedObject
from gfxgraph.config import Activation, Config
from gfxgraph.core.replaced import Replaced
from gfxgraph.errors import first_line
from gfxgraph.hardware import defect_environment, defects
from gfxgraph.process import process
from gfxgraph.process.calls import Account

MOST_SHAPES = 16
"""Most sets of input shapes with buffers and a graph each; calls of further ones run without."""
NO_GRAPH = "-1"
_NONE = {"MIGraphXExecutionProvider": "MIGraphX launches parts of workgroups, which HIP's graphs run whole"}
_RELATIVE = {"float16": 1e-2, "float32": 2e-4, "float64": 1e-10}


OPTIONS = {
    "MIGraphXExecutionProvider": "",
    "ROCMExecutionProvider": "enable_hip_graph",
    "CUDAExecutionProvider": "enable_cuda_graph",
    "CPUExecutionProvider": "",
}
"""The option of each provider that enables its graphs, in order of preference; "": its graphs are not used."""


@dataclass(slots=True)
class BoundRun:
    """Buffers for one set of shapes, and the run that uses them."""

    binding: Any
    options: object
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    n_unchecked: int
    n_runs: int = 0


class GraphedSession(GraphedObject):
    """An ONNX Runtime session that runs as graphs, on fixed buffers, if its provider can.

    Args:
        model: path, bytes, as ``InferenceSession`` takes them.
        sess_options: likewise.
        providers: names, or pairs of name and options, likewise; None for the best that this build has.
        provider_options: likewise.
        graphs: False leaves the provider's graphs off.
        ort: the module; for tests.
        more: what ``InferenceSession`` takes besides.
    """

    inner = "session"

    def __init__(
        self,
        model: object,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[object] | None = None,
        *,
        graphs: bool = True,
        ort: Any = None,
        **more: object,
    ) -> None:
        self._ort = ort if ort is not None else import_module("onnxruntime")
        # Where the adapter is in place, the module's own name is this class.
        self._class = (ort or import_module("onnxruntime.capi.onnxruntime_inference_collection")).InferenceSession
        self._failures = _failures(self._ort)
        self._model, self._more = model, {**more, "sess_options": sess_options}
        self._asked: list[Any] = list(providers) if providers is not None else _best(self._ort)
        if provider_options:
            self._asked = list(zip(self._asked, provider_options))
        self.counts: Counter[str] = Counter()
        self.account = Account("onnxruntime")
        """How its runs ended."""
        weakref.finalize(self, self.account.close)
        self.why_no_graph = ""
        """Why the provider's graphs are off; "" while they are on."""
        self._made: dict[Any, BoundRun] = {}
        self._n_checks = _n_checks()
        self.session = self._open(graphs)
        self.provider = self.session.get_providers()[0]
        self._names = [output.name for output in self.session.get_outputs()]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """Like ``InferenceSession.run``: numpy arrays in, numpy arrays owned by the caller out.

        With the caller's own run options, the session runs as without us.
        """
        is_plain = run_options is None and all(hasattr(v, "shape") and hasattr(v, "dtype") for v in feeds.values())
        if self.why_no_graph or not is_plain:
            if run_options is None and not self.why_no_graph:
                run_options = self._options(NO_GRAPH)
            result = list(self.session.run(output_names, feeds, run_options))
            self.account.eager.count(
                self.why_no_graph or "the caller's own run options, or values that are no arrays"
            )
            return result
        self.counts["run_count"] += 1
        key = tuple((name, feeds[name].shape, feeds[name].dtype.str) for name in sorted(feeds))
        if key not in self._made and len(self._made) >= MOST_SHAPES:
            self._note(f"{MOST_SHAPES} sets of shapes have a graph; others run without: pad to fewer sizes")
            results = self._exactly(feeds)
            self.account.eager.count("more sets of shapes than have a graph")
        else:
            results = self._bound(key, feeds)
        return [results[name] for name in (self._names if output_names is None else output_names)]

    def why(self) -> str:
        """The provider, whether graphs are on and why, and for how many sets of shapes."""
        graphs = f"no graphs: {self.why_no_graph}" if self.why_no_graph else "graphs on"
        return f"{self.provider}, {graphs}; {len(self._made)} sets of shapes"

    def stats(self) -> dict[str, Any]:
        """Counts of this session, while its graphs are on; ``shapes`` are the runs of each set of shapes."""
        return {
            "provider": self.provider,
            "why_no_graph": self.why_no_graph,
            **{name: self.counts[name] for name in ("run_count", "validations", "fallback_count")},
            "calls": self.account.table(),
            "shapes": {str([list(shape) for _, shape, _ in key]): made.n_runs for key, made in self._made.items()},
        }

    # -- the session ------------------------------------------------------------------------------------

    def _open(self, graphs: bool) -> Any:
        """Open the session, with the graph option of its first provider if the build accepts it."""
        name, options = _parts(self._asked[0])
        option = OPTIONS.get(name, "")
        if not graphs or not option:
            self.why_no_graph = "not asked for" if option else _NONE.get(name, f"{name} has no graphs")
            return self._make(self._asked)
        session = why = None
        try:
            session = self._make([(name, {**options, option: "1"}), *self._asked[1:]])
        except self._failures as error:
            why = f"the session could not be made with {option} ({first_line(error)})"
        if session is not None and session.get_providers()[0] != name:
            self.why_no_graph = f"{name} is not in this build"
        elif session is not None and option not in session.get_provider_options().get(name, {}):
            why = f"this build of {name} does not have the option {option}"
        if why:
            self.why_no_graph = why
            self._note(f"ONNX Runtime's graphs are off: {why}")
        return self._make(self._asked) if session is None else session

    def _make(self, providers: Sequence[object]) -> Any:
        return self._class(self._model, providers=list(providers), **self._more)

    def _give_up(self, reason: str) -> None:
        """Run like ``InferenceSession.run`` from now on."""
        self.why_no_graph = reason
        self._made.clear()
        self.session = self._make(self._asked)
        self._note(f"ONNX Runtime: {reason}; it runs without a graph")

    # -- running ------------------------------------------------------------------------------------------

    def _exactly(self, feeds: Mapping[str, object]) -> dict[str, object]:
        """Run with its own memory, without a graph."""
        return dict(zip(self._names, self.session.run(self._names, dict(feeds), self._options(NO_GRAPH))))

    def _bound(self, key: Any, feeds: Mapping[str, Any]) -> dict[str, object]:
        """Run on the buffers of these shapes; the first times, where replays are validated, beside a plain run."""
        try:
            made = self._made[key] if key in self._made else self._bind(key, feeds)
            for name, value in made.inputs.items():
                value.update_inplace(feeds[name])
            made.binding.synchronize_inputs()
            self.session.run_with_iobinding(made.binding, made.options)
            made.binding.synchronize_outputs()
            results = {name: value.numpy().copy() for name, value in made.outputs.items()}
        except self._failures as error:
            right = self._exactly(feeds)  # first: wrong inputs raise here
            self._give_up(f"a run on fixed buffers failed ({first_line(error)})")
            self.account.eager.count(self.why_no_graph)
            return right
        made.n_runs += 1
        if not made.n_unchecked:
            self.account.n_gone += 1
            return results
        made.n_unchecked -= 1
        right = self._exactly(feeds)
        self.counts["validations"] += 1
        if worst := _worst(results, right):
            self._give_up(f"a run on fixed buffers gives different results ({worst})")
        self.account.eager.count(self.why_no_graph or "compared with its graph")
        return right

    def _bind(self, key: object, feeds: Mapping[str, object]) -> BoundRun:
        # Outputs take the shapes that the model gives them: found by one run without buffers.
        found = self._exactly(feeds)
        if not all(hasattr(array, "dtype") for array in found.values()):
            raise RuntimeError("an output is not a tensor")
        inputs = {name: self._value(array) for name, array in feeds.items()}
        outputs = {name: self._value(found[name]) for name in self._names}
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        options = self._options(str(len(self._made) + 1))
        made = self._made[key] = BoundRun(binding, options, inputs, outputs, self._n_checks)
        return made

    # -- small things ---------------------------------------------------------------------------------------

    def _value(self, array: Any) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)  # so both providers call their device

    def _options(self, graph_id: str) -> Any:
        options = self._ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", graph_id)
        return options

    def _note(self, reason: str) -> None:
        self.counts["fallback_count"] += 1
        process.tell("fallback", reason, "onnxruntime")


class OnnxruntimeAdapter(Adapter):
    """Makes ``onnxruntime.InferenceSession`` a ``GraphedSession``."""

    name = "onnxruntime"
    module = "onnxruntime"
    needs = {
        "onnxruntime": (
            NeededName("InferenceSession", takes="path_or_bytes sess_options providers provider_options"),
            NeededName("InferenceSession.run", takes="output_names input_feed run_options"),
            NeededName("InferenceSession.run_with_iobinding", takes="run_options"),
            *(
                NeededName(f"InferenceSession.{name}")
                for name in ("io_binding", "get_provider_options", "get_providers")
            ),
            NeededName("OrtValue.ortvalue_from_numpy", takes="device_type device_id"),
            *(NeededName(f"OrtValue.{name}") for name in ("numpy", "update_inplace")),
            *(NeededName(f"IOBinding.bind_ortvalue_{name}") for name in ("input", "output")),
            *(NeededName(f"IOBinding.synchronize_{name}") for name in ("inputs", "outputs")),
        )
    }
    tested = "1.31.1"

    def wanted(self, settings: Config) -> bool:
        return False  # a session for each model more: only on request by name

    def put_in_place(self, undo: Replaced, part: object) -> None:
        undo.replace(part, "InferenceSession", GraphedSession)


def _best(ort: Any) -> list[str]:
    """The first of the known providers that the build has, followed by the CPU."""
    available = ort.get_available_providers()
    found = [name for name in OPTIONS if name in available]
    return [found[0], *(["CPUExecutionProvider"] if found[0] != "CPUExecutionProvider" else [])]


def _parts(asked: Any) -> tuple[str, dict[str, object]]:
    return (asked, {}) if isinstance(asked, str) else (asked[0], dict(asked[1]))


def _worst(results: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """The name of the first output that differs by more than rounding; "" if none does."""
    import numpy

    for name, wanted in right.items():
        got = results[name]
        if got.shape != wanted.shape:
            return f"the shape of {name!r}"
        relative = _RELATIVE.get(str(wanted.dtype), 0.0)
        scale = float(numpy.abs(wanted[numpy.isfinite(wanted)]).max(initial=0.0)) if relative else 0.0
        if not numpy.allclose(got, wanted, rtol=0.0, atol=relative * scale, equal_nan=bool(relative)):
            return repr(name)
    return ""


def _failures(ort: object) -> tuple[type[Exception], ...]:
    """The exceptions of ONNX Runtime, which have no base class of their own."""
    state = getattr(getattr(ort, "capi", None), "onnxruntime_pybind11_state", None)
    names = ("Fail", "RuntimeException", "InvalidArgument", "InvalidGraph", "EPFail", "NotImplemented", "EngineError")
    found = [getattr(state, name) for name in names if hasattr(state, name)]
    return (RuntimeError, *found)


def _n_checks() -> int:
    """How many first replays of each graph to compare: as requested, or by the defect table for this machine."""
    settings = config.load()
    if settings.validate_replays is not None:
        return settings.validate_replays
    by_table = defects.decide(defect_environment.detect()).validate_replays
    return max(by_table, 3) if settings.activation is Activation.VALIDATE else by_table


ADAPTER = OnnxruntimeAdapter()
