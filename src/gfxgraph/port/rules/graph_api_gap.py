"""A graph call that HIP lacks or shapes differently."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX706",
    code="graph-api-gap",
    severity=Severity.HIGH,
    phase=7,
    en=Text(
        "A graph call that HIP lacks or shapes differently",
        "{name}",
        "HIP has no conditional nodes and no launch from the device, and its capture queries take other arguments.",
        "gfxgraph's bridges cover conditionals and pipelines on the host; otherwise simplify.",
    ),
    zh=Text(
        "HIP 缺少或形式不同的图接口",
        "{name}",
        "HIP 没有条件节点，也不能从设备启动图，捕获查询的参数也不同。",
        "gfxgraph 的桥接在主机侧覆盖条件与流水线；否则简化。",
    ),
    path="graph.cu",
    bad="void f(cudaGraph_t g) { cudaGraphConditionalHandle h; cudaGraphConditionalHandleCreate(&h, g, 0, 0); }\n",
    good="#ifndef USE_ROCM\nvoid f(cudaGraph_t g) { cudaGraphConditionalHandle h; cudaGraphConditionalHandleCreate(&h, g, 0, 0); }\n#endif\n",
    needs=("graph", "capture"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from ident_hits(
        f,
        r"cudaGraphConditional\w+|cudaGraphSetConditional|cudaGraphInstantiateFlagDeviceLaunch|cudaStreamUpdateCaptureDependencies_v2|cudaGraphCondType\w+|cudaGetCurrentGraphExec|cudaGraphKernelNodeSet(Attribute|Enabled|GridDim|Param)\b|cudaGraphDeviceNode_t",
    )
    for call in f.calls("cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_v2", "cudaStreamGetCaptureInfo_v3"):
        if len(call.args) >= 4:
            yield cpp_hit(f, call, severity=Severity.MEDIUM, name=f.source(call.node)[:80])
    for call in f.calls("cudaGraphLaunch"):
        if f.qualifiers(call.node) & {"__global__", "__device__"}:
            yield cpp_hit(f, call, name="cudaGraphLaunch in device code")
