"""__launch_bounds__ with a second argument."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX313",
    code="launch-bounds",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "__launch_bounds__ with a second argument",
        "{expr}",
        "CUDA reads it as least blocks per multiprocessor, HIP as least warps per execution unit: the same number asks for something else.",
        "A value by platform, or no second argument on ROCm.",
    ),
    zh=Text(
        "__launch_bounds__ 带有第二个参数",
        "{expr}",
        "CUDA 把它理解为每个多处理器的最少线程块数，HIP 则理解为每个执行单元的最少 warp 数：同一数字含义不同。",
        "按平台给值，或在 ROCm 上省去第二个参数。",
    ),
    path="lb.cu",
    bad="__global__ void __launch_bounds__(256, 4) k(float* x) {}\n",
    good="__global__ void __launch_bounds__(256) k(float* x) {}\n",
    needs=("__launch_bounds__",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for match in re.finditer(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)", f.code):
        parts = re.split(r",(?![^(<]{0,80}[)>])", match.group(1))
        if (
            len(parts) == 2
            and parts[1].strip() != "1"
            and "#" not in f.code[f.code.rfind("\n", 0, match.start()) + 1 : match.start()][:2]
        ):
            line = f.code.count("\n", 0, match.start()) + 1 + f.offset
            yield line_hit(
                line,
                match.start() - f.code.rfind("\n", 0, match.start()) - 1,
                expr=" ".join(match.group().split()),
            )
