"""Device intrinsic that HIP lacks or has in a weaker form."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX211",
    code="unmapped-device-intrinsic",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "Device intrinsic that HIP lacks or has in a weaker form",
        "{name}",
        "Some names do not exist; of the rounding forms most have only round-to-nearest.",
        "A macro arm under USE_ROCM: plain operators, sqrtf, fmaf, normal stores.",
    ),
    zh=Text(
        "HIP 缺少或较弱的设备内建函数",
        "{name}",
        "有的名称不存在；带舍入方式的多数只有就近舍入。",
        "在 USE_ROCM 下写宏：普通运算符、sqrtf、fmaf、普通写入。",
    ),
    path="round.cu",
    bad="__device__ float f(float a, float b) { return __fadd_rz(a, b); }\n",
    good="__device__ float f(float a, float b) { return a + b; }\n",
    needs=("__", "cudart_"),
)
_MISSING = (
    r"__f(add|sub|mul|div|sqrt|rcp|maf|ma)_r[zud]|__d(add|sub|mul|div|sqrt|rcp)_r[zud]|__fma_r[zud]|__st(wb|cg|cs|wt)|__ldc[vgs]|__ldlu|__ldca|__nanosleep|__brkpt|__prof_trigger|"
    r"__v(abs|add|sub|avg|max|min|neg|sad|set|cmp)\w*[24]|__dp[24]a(_\w+)?|__reduce_(add|min|max|and|or|xor)_sync|__h\w+2_mask|__isGlobal|__isShared|__cvta_\w+|__pipeline_\w+|__half2loc|__trap|__grid_constant__|__cluster_dims__|__nv_cvt_\w+|CUDART_(?:INF|NAN|PI|ONE|ZERO|MAX|MIN|SQRT|THIRD|TWO|NEG|L2|LN)\w*|__fns|__i?mul24hi"
)
_WEAK = r"__f(add|sub|div|sqrt|rcp|maf)_rn|__d(add|sub|div|sqrt|rcp)_rn|__fsqrt_rn|__frsqrt_rn"


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    own = set(re.findall(r"__device__[^;{}()]*?\b(__\w+)\s*\([^;]*?\)\s*\{", f.code))
    known = ctx.project.macros.known
    for pattern, severity, group in ((_MISSING, None, ""), (_WEAK, Severity.INFO, "nearest")):
        for h in ident_hits(f, pattern, severity=severity, group=group):
            if h.values["name"] not in own and h.values["name"] not in known:
                yield h
