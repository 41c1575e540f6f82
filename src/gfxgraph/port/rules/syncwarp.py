"""__syncwarp."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX317",
    code="syncwarp",
    severity=Severity.LOW,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    versions="absent before ROCm 6.2",
    en=Text(
        "__syncwarp",
        "{expr}",
        "It is absent before ROCm 6.2.",
        "Guard it for older toolchains; keep it on new ones.",
    ),
    zh=Text("__syncwarp", "{expr}", "ROCm 6.2 之前没有它。", "为旧工具链加条件；新工具链保留。"),
    path="sw.cu",
    bad="__global__ void k() { __syncwarp(); }\n",
    good="__global__ void k() {\n#ifndef USE_ROCM\n  __syncwarp();\n#endif\n}\n",
    needs=("__syncwarp",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    known = ctx.project.macros.known
    if "__syncwarp" in known:
        return
    yield from once_a_line(cpp_hit(f, c, expr=f.source(c.node)) for c in f.calls("__syncwarp"))
