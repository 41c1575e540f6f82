"""SGLang: in every process of a server, and a graph that cannot be captured becomes eager.

SGLang's runners capture each shape through a backend and end the server if that raises. We make the backends (full,
breakable) leave the shape out instead: their ``can_run`` is then False for it, and the runner takes its eager path
for unknown shapes. A piece of the torch.compile backend becomes eager by itself, into the same memory. Graphs of
attention metadata, which SGLang captures while it serves, fail like torch's own if a backend reads a value on the
host: SGLang then continues eagerly, which it could not do at a replay that refuses another value.

How a process gets here: gfxgraph, which each process switches on as it imports torch (startup/hook.py), sees it
import the backends. ``SGLANG_RDNA2_KERNELS=1`` asks for the bridge as ``GFXGRAPH=1`` does,
``SGLANG_DISABLE_GFXGRAPH=1`` refuses it.

Source: sglang/srt/model_executor/runner_backend and sglang/srt/compilation/cuda_piecewise_backend.py of
SGLang 0.5.23, which `make test-engines` runs unmodified.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gfxgraph
from gfxgraph.adapters._eager_fallback import Downgraded, attempt, report
from gfxgraph.adapters._needs import NeededName
from gfxgraph.adapters.adapter import Adapter
from gfxgraph.config import Activation
from gfxgraph.core.replaced import Replaced
from gfxgraph.process import bridge, health, process
from gfxgraph.types import OnUnsafe

_FULL = "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend"
_BREAKABLE = "sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend"
_UTILS = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph"
_PIECEWISE = "sglang.srt.compilation.cuda_piecewise_backend"
_GLUE = "sglang.srt.model_executor.runner.metadata_glue_graph"

N_WARMUPS = 2
"""How often both backends run the model before they capture it."""


class SglangAdapter(Adapter):
    """Wraps the calls with which SGLang's backends capture."""

    name = "sglang"
    module = "sglang"
    needs = {
        _FULL: (
            NeededName("FullCudaGraphBackend", keeps="_graphs _outputs _pool _tp_group"),
            NeededName("FullCudaGraphBackend.capture_one", takes="shape_key forward_fn"),
        ),
        _BREAKABLE: (
            NeededName("BreakableCudaGraphBackend", keeps="_graphs _outputs _capture_inputs _pool _tp_group"),
            NeededName("BreakableCudaGraphBackend.capture_one", takes="shape_key forward_fn"),
        ),
        _PIECEWISE: (
            NeededName(
                "CUDAPiecewiseBackend",
                keeps="concrete_size_entries sym_shape_indices first_run_finished graph_pool piecewise_compile_index",
            ),
            NeededName("ConcreteSizeEntry", keeps="cudagraph num_finished_warmup output runnable"),
            NeededName("is_in_torch_compile_warmup"),
            NeededName("get_pcg_capture_stream"),
        ),
        _GLUE: (NeededName("MetadataGlueGraph.run"),),
    }
    tested = "0.5.23"

    def put_in_place(self, undo: Replaced, part: Any) -> None:
        if part.__name__ == _PIECEWISE:
            owner = part.CUDAPiecewiseBackend
            undo.replace(owner, "__call__", _surviving(owner.__call__, part))
            return
        if part.__name__ == _GLUE:
            undo.replace(part.MetadataGlueGraph, "run", _refusing(part.MetadataGlueGraph.run))
            return
        owner = part.FullCudaGraphBackend if part.__name__ == _FULL else part.BreakableCudaGraphBackend
        undo.replace(owner, "capture_one", _leaving_out(owner.capture_one))


def _leaving_out(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``capture_one`` of a backend: a shape whose capture fails is left out, and runs eagerly."""

    @functools.wraps(original)
    def capture_one(
        self: Any, shape_key: object, forward_fn: Callable[[], object], *args: object, **kwargs: object
    ) -> None:
        _announce()
        n_done = 0

        def counted() -> object:
            nonlocal n_done
            result = forward_fn()
            n_done += 1
            return result

        _, error = attempt(
            self,
            self._pool,
            self._tp_group,
            lambda: original(self, shape_key, counted, *args, **kwargs),
            began=lambda: n_done >= N_WARMUPS,
            clean=_leave_capture,
        )
        if error is None:
            return
        for kept in ("_graphs", "_outputs", "_capture_inputs"):
            getattr(self, kept, {}).pop(shape_key, None)
        report("SGLang", f"{type(self).__name__} {shape_key}", error)

    return capture_one


_told: set[str] = set()


def _announce() -> None:
    """Log once, below SGLang's own logger, that gfxgraph is on, how it is set up, and whether graphs work here.

    Called when SGLang is about to capture its first graph: the GPU is initialized, and a capture disturbs nothing.
    """
    state = process.current()
    if _told or state is None or not bridge.is_enabled():
        return
    _told.add("sglang")
    log = logging.getLogger("sglang.gfxgraph")
    settings = state.settings
    mode = {Activation.DEBUG: "debug", Activation.VALIDATE: "validate"}.get(settings.activation, "normal")
    log.info("gfxGRAPH v%s enabled (mode=%s, vram_cap=%.2f)", gfxgraph.__version__, mode, settings.vram_cap)
    if not log.isEnabledFor(logging.INFO):
        return  # the check's result would not be logged
    found = health.health_check()
    if found["ok"]:
        log.info(
            "gfxGRAPH health check passed: %s (%s), VRAM %sMB free / %sMB total",
            found["gpu"],
            found["rocm"] or "not ROCm",
            found["vram_free_mb"],
            found["vram_total_mb"],
        )
    else:
        log.warning("gfxGRAPH health check failed: %s", found["details"])


def _leave_capture() -> None:
    """Leave a breakable capture whose first segment failed to begin: its ``__exit__`` is never called then."""
    module = sys.modules.get(f"{_UTILS}.breakable_cuda_graph")
    capture = module._current_capture_var.get() if module is not None else None
    if capture is not None:
        with suppress(AssertionError):  # that there is no segment to end; by then everything else is put back
            capture.__exit__(None, None, None)


def _surviving(original: Callable[..., object], module: Any) -> Callable[..., object]:
    """Wrap ``__call__`` of a compiled piece, so that it continues after a failed capture."""

    @functools.wraps(original)
    def __call__(self: Any, *args: object) -> object:
        eager: dict[object, Downgraded] = self.__dict__.setdefault("_gfxgraph_eager", {})
        shape = args[self.sym_shape_indices[0]] if self.sym_shape_indices else None
        if shape in eager:
            return eager[shape](*args)
        entry = self.concrete_size_entries.get(shape)
        if (
            entry is None
            or entry.cudagraph is not None
            or not self.first_run_finished
            or entry.num_finished_warmup < 1
            or module.is_in_torch_compile_warmup()
            or module.get_pcg_capture_stream() is None
        ):
            return original(self, *args)
        result, error = attempt(
            self,
            self.graph_pool,
            _tp_group(),
            lambda: original(self, *args),
            began=lambda: True,
            clean=lambda: None,
        )
        if error is None:
            return result
        entry.cudagraph = entry.output = None
        report("SGLang", f"piece {self.piecewise_compile_index}, size {shape}", error)
        eager[shape] = Downgraded(entry.runnable)
        return eager[shape](*args)

    return __call__


def _refusing(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``run`` of a glue graph: its capture raises at unsafe operations, which SGLang catches."""
    # lazily: adapters are listed and asked about where there is no torch
    from gfxgraph.capture.graph import graphs_made

    @functools.wraps(original)
    def run(self: object, *args: object, **kwargs: object) -> None:
        with graphs_made(OnUnsafe.RAISE):
            original(self, *args, **kwargs)

    return run


def _tp_group() -> object:
    context = sys.modules.get("sglang.srt.runtime_context")
    return context.get_parallel().tp_group if context is not None else None


ADAPTER = SglangAdapter()
