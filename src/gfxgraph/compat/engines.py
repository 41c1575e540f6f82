"""Engines other than PyTorch's: MIGraphX, and those that call the graph API themselves."""

from __future__ import annotations

import shutil
from typing import Any

from gfxgraph import _native
from gfxgraph.compat.devices import detect_engines
from gfxgraph.hardware import software

__all__ = ["MIGraphXBackend", "cross_engine_support", "hipgraph_interposer_status", "migraphx_available"]


def migraphx_available() -> dict[str, object]:
    """``available``, ``python`` (its module), ``driver`` (its command) and ``note``."""
    driver = shutil.which("migraphx-driver") is not None
    python = software.migraphx_available()
    note = "gfxgraph.adapters.migraphx.graphed(program) runs it through graphs" if python else "MIGraphX is not here"
    return {"available": python or driver, "python": python, "driver": driver, "note": note}


class MIGraphXBackend:
    """1.1.0's placeholder. ``compile(program)`` now returns the program, run through graphs."""

    def __init__(self) -> None:
        self.status = migraphx_available()

    def compile(self, *args: object, **kwargs: Any) -> Any:
        """Run a compiled ``migraphx.program`` through graphs.

        Args:
            args: the program, then what ``adapters.migraphx.GraphedProgram`` takes.
            kwargs: likewise.

        Returns:
            A ``GraphedProgram``.

        Raises:
            NotImplementedError: without a program: models are read and compiled by MIGraphX itself.
        """
        if not args or args[0] is None:
            raise NotImplementedError(
                "give compile() a compiled migraphx.program: reading and compiling a model is MIGraphX's own "
                "(migraphx.parse_onnx(...).compile(...)); or use onnxruntime with MIGraphXExecutionProvider"
            )
        # lazily: it needs torch and MIGraphX
        from gfxgraph.adapters.migraphx import GraphedProgram

        return GraphedProgram(*args, **kwargs)

    run = compile


def hipgraph_interposer_status() -> dict[str, object]:
    """``built``, ``lib`` (the preload library's path, or None) and ``note``."""
    found = _native.library_path("gfxgraph_preload")
    how = "gfxgraph run --preload -- COMMAND" if found else "pip install ./native builds it"
    return {"built": found is not None, "lib": str(found) if found else None, "note": how}


def cross_engine_support() -> dict[str, str]:
    """The support for each kind of engine, in words."""
    here = detect_engines()
    llama = " (installed here)" if here["llama_cpp_bin"] or here["llama_cpp_python"] else ""
    preload = "graph calls guarded and explained by gfxgraph run --preload; errors by gfxgraph explain"
    return {
        "torch_engines (vllm, sglang, TGI)": "graphs, GUARD and explained errors, through torch.cuda.CUDAGraph",
        "llama.cpp": preload + llama,
        "candle": preload,
        "any engine": "errors explained: pipe its output through gfxgraph explain",
    }
