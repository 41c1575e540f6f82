"""Inline PTX assembly."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX202",
    code="inline-ptx",
    severity=Severity.CRITICAL,
    phase=2,
    en=Text(
        "Inline PTX assembly",
        "{text}",
        "There is no PTX on AMD, and hipify does not translate it.",
        "Write a USE_ROCM arm with a builtin or plain C++. Usual replacements: %laneid by __lane_id(), ld.global.nc and st.global by plain accesses, cp.async by a load and a store, shfl.sync by __shfl.",
    ),
    zh=Text(
        "内联 PTX 汇编",
        "{text}",
        "AMD 上没有 PTX，hipify 也不会翻译它。",
        "写一个 USE_ROCM 分支，用内建函数或普通 C++。常见替换：%laneid 用 __lane_id()，ld.global.nc 与 st.global 用普通访存，cp.async 用一次读加一次写，shfl.sync 用 __shfl。",
    ),
    path="kernel.cu",
    bad='__device__ int lane() {\n  int v;\n  asm volatile("mov.u32 %0, %%laneid;" : "=r"(v));\n  return v;\n}\n',
    good='__device__ void fence() { asm volatile("" ::: "memory"); }\nvoid pause_cpu() { asm volatile("pause"); }\n',
    needs=("asm",),
)
PTX = re.compile(
    r"\b(?:ld|st|mov|cvt|cvta|cp|mma|wgmma|ldmatrix|stmatrix|bar|barrier|red|atom|fma|shfl|lop3|prefetchu?|tanh|ex2|lg2|sin|cos|rcp|rsqrt|sqrt|griddepcontrol|"
    r"mbarrier|fence|membar|setmaxnreg|elect|vote|activemask|nanosleep|createpolicy|prmt|bfe|bfi|bfind|mad|add|sub|mul|div|min|max|shl|shr|shf|and|or|xor|not|neg|abs|"
    r"setp|selp|set|slct|bra|trap|tcgen05|isspacep|applypriority|discard|clz|popc|brev|dp4a|dp2a|copysign|match|redux|mapa|multimem|vadd\w*|vsub\w*|vmin\w*|vmax\w*|vset\w*|testp|rem|sad|cnot|addc|subc|madc|clusterlaunchcontrol)"
    r"\.(?:[a-z]|%)|%%?(?:laneid|smid|warpid|nsmid|nwarpid|globaltimer|clock|clock64|lanemask_\w+|cluster\w*|dynamic_smem_size|total_smem_size|envreg\d)|\bgriddepcontrol\b|\btrap;|\bexit;|\bbrkpt;"
)
_AMD = re.compile(r"\b(?:v_|s_|ds_|buffer_|global_|flat_|image_|scratch_)[a-z0-9_]+")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for line, column, text in asm_blocks(f):
        if PTX.search(text) and not _AMD.search(text):
            yield line_hit(line, column, text=" ".join(text.replace("\\n", " ").replace("\\t", " ").split())[:80])
