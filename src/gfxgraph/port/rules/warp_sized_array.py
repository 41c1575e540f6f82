"""An array whose size comes from the warp."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX333",
    code="warp-sized-array",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "An array whose size comes from the warp",
        "{name}",
        "What grows with the warp (a slot a lane) needs 64, what shrinks with it (a slot a warp) needs 32: with one constant for both, one of the two is written past its end.",
        "The upper bound 64 where the warp multiplies, the lower bound 32 where it divides.",
    ),
    zh=Text(
        "数组大小由 warp 宽度决定",
        "{name}",
        "随 warp 增大的（每 lane 一格）需要 64，随 warp 减小的（每 warp 一格）需要 32：两者共用一个常量，总有一个会越界。",
        "warp 在乘法中取上界 64，在除法中取下界 32。",
    ),
    path="arr.cu",
    bad="__global__ void k(float* o) {\n  __shared__ float part[1024 / warpSize];\n  part[0] = o[0];\n}\n",
    good="__global__ void k(float* o) {\n  __shared__ float part[1024 / MIN_LANES];\n  part[0] = o[0];\n}\n",
    needs=("warp",),
)


_ARRAY = re.compile(
    r"__shared__[^;=()\[]*\w(?:\[\w{1,20}\])?(\[[^\[\];]{0,60}(?i:warp_?size|threads_?per_?warp|num_?warps|n_?warps|warps_?per_?block)[^\];]{0,60}\])"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for number, line in enumerate(f.code.split("\n"), 1):
        if match := _ARRAY.search(line):
            yield line_hit(number + f.offset, match.start(), name=match.group()[:80])
