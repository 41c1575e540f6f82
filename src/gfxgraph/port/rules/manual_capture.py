"""A graph is captured by hand."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX701",
    code="manual-capture",
    severity=Severity.INFO,
    phase=7,
    confidence="documented",
    en=Text(
        "A graph is captured by hand",
        "{expr}",
        "It works on ROCm, but operations that no graph can hold may pass the capture there and replay wrong data.",
        "Check the replay against eager on the device before trusting it: import gfxgraph and enable(), or GFXGRAPH=validate.",
    ),
    zh=Text(
        "手工捕获图",
        "{expr}",
        "ROCm 上可用，但图无法容纳的操作可能在捕获时不报错，重放时却给出错误数据。",
        "信任之前先在设备上把重放与 eager 对照：导入 gfxgraph 并调用 enable()，或设 GFXGRAPH=validate。",
    ),
    bad="import torch\n\ng = torch.cuda.CUDAGraph()\n",
    good="import gfxgraph\nimport torch\n\ngfxgraph.enable()\ng = torch.cuda.CUDAGraph()\n",
    needs=("cudagraph", "cuda.graph", "make_graphed_callables", "streambegincapture"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if any(v.split(".")[0] == "gfxgraph" for v in f.imports.values()):
        return
    names = (
        *CAPTURES,
        "torch.cuda.CUDAGraph",
        "torch.cuda.make_graphed_callables",
        "torch.cuda.graphs.make_graphed_callables",
    )
    yield from once_a_line(hit(c, expr=f.source(c)[:80]) for c in f.calls(*names))


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(
        cpp_hit(f, c, expr=c.name) for c in f.calls("cudaStreamBeginCapture", "cudaGraphInstantiate")
    )
