"""MODULE graphs."""

from __future__ import annotations

from gfxgraph.port.rule_api import *


def manual_capture_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if any(v.split(".")[0] == "gfxgraph" for v in f.imports.values()):
        return
    names = (
        *CAPTURES,
        "torch.cuda.CUDAGraph",
        "torch.cuda.make_graphed_callables",
        "torch.cuda.graphs.make_graphed_callables",
    )
    yield from once_a_line(hit(c, expr=f.source(c)[:80]) for c in f.calls(*names))


def manual_capture_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(
        cpp_hit(f, c, expr=c.name) for c in f.calls("cudaStreamBeginCapture", "cudaGraphInstantiate")
    )
