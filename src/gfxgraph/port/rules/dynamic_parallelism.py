"""A kernel is launched from device code."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX219",
    code="dynamic-parallelism",
    severity=Severity.HIGH,
    phase=2,
    tier="extended",
    confidence="documented",
    en=Text(
        "A kernel is launched from device code",
        "{expr}",
        "HIP has no dynamic parallelism.",
        "Launch from the host, or use a persistent kernel.",
    ),
    zh=Text("从设备代码启动核函数", "{expr}", "HIP 没有动态并行。", "改由主机启动，或使用常驻核函数。"),
    path="dp.cu",
    bad="__global__ void child() {}\n__global__ void parent() { child<<<1, 1>>>(); }\n",
    good="__global__ void child() {}\nvoid parent() { child<<<1, 1>>>(); }\n",
    needs=("<<<", "cudalaunchdevice", "cudagetparameterbuffer"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("kernel_call_syntax") if "<<<" in f.code else ():
        qualifiers = f.qualifiers(n)
        if "__global__" in qualifiers or ("__device__" in qualifiers and "__host__" not in qualifiers):
            yield cpp_hit(f, n, expr=f.source(n.parent)[:80])
    yield from (cpp_hit(f, c, expr=c.name) for c in f.calls("cudaLaunchDevice", "cudaGetParameterBuffer"))
