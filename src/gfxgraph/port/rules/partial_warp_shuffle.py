"""A full-mask intrinsic under a condition narrower than the wavefront."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX307",
    code="partial-warp-shuffle",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "A full-mask intrinsic under a condition narrower than the wavefront",
        "{expr}",
        "The mask promises lanes that do not take part; HIP may assert or fault where NVIDIA sees one whole warp.",
        "Put warpSize into the condition, or build the mask from the lanes that are active.",
    ),
    zh=Text(
        "条件窄于 wavefront，却使用全掩码",
        "{expr}",
        "掩码承诺了并未参与的 lane；NVIDIA 上恰是一个完整 warp，HIP 则可能断言或出错。",
        "在条件中使用 warpSize，或用活动 lane 构造掩码。",
    ),
    path="part.cu",
    bad="__global__ void k(float v) { if (threadIdx.x < 32) { v += __shfl_down_sync(MASK, v, 1); } }\n",
    good="__global__ void k(float v) { if (threadIdx.x < warpSize) { v += __shfl_down_sync(MASK, v, 1); } }\n",
    needs=("_sync",),
)
_NARROW = re.compile(
    r"\b(threadIdx\s*\.\s*x|tid\w*|thread_?id\w*)\s*<\s*(32|16|8)\b|\b(warp_?id|wid|warp_?idx)\s*==\s*0\b|\(\s*!\s*(warp_?id|wid)\s*\)|\b(threadIdx\s*\.\s*x|tid)\s*/\s*32\s*==\s*0"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("if_statement"):
        condition = f.source(n.child_by_field_name("condition"))
        body = f.source(n.child_by_field_name("consequence"))
        if _NARROW.search(condition) and "warpSize" not in condition and re.search(SYNC_INTRINSICS + r"\s*\(", body):
            yield cpp_hit(f, n, expr=condition[:80])
