"""CUB is used by name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX232",
    code="cub-primitives",
    severity=Severity.LOW,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "CUB by name",
        "{name}",
        "HIP's is hipCUB: another header and another namespace. Nothing translates them in this build.",
        "One header: #include <hipcub/hipcub.hpp> and namespace cub = hipcub; on HIP, <cub/cub.cuh> otherwise.",
    ),
    zh=Text(
        "直接使用 CUB 名称",
        "{name}",
        "HIP 对应的是 hipCUB：头文件与命名空间都不同，而此构建中没有任何步骤转换它们。",
        "统一放进一个头文件：HIP 下 #include <hipcub/hipcub.hpp> 并写 namespace cub = hipcub;，否则用 <cub/cub.cuh>。",
    ),
    path="sum.cu",
    bad="void f(void* t, size_t& n, float* a, float* b) { cub::DeviceReduce::Sum(t, n, a, b, 10); }\n",
    good="#include <hipcub/hipcub.hpp>\nvoid f(void* t, size_t& n, float* a, float* b) { hipcub::DeviceReduce::Sum(t, n, a, b, 10); }\n",
    needs=("cub::",),
)


_USED = re.compile(
    r"(?<![\w:])(?:::)?cub::(?:Device|Block|Warp|Double|Arg|Counting|Cache|Transform|Caching|Sum|Min|Max)\w*"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if ctx.project.is_translated(f.path) or re.search(r"namespace\s+cub\s*=", f.code):
        return
    for number, line in enumerate(f.code.split("\n"), 1):
        if match := _USED.search(line):
            yield line_hit(number + f.offset, match.start(), name=match.group(), group="names")
