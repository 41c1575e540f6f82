"""A multiplication that must not be fused with an addition."""

import ast as _ast

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX415",
    code="fp-contract",
    severity=Severity.MEDIUM,
    phase=4,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "A multiplication that must not be fused with an addition",
        "{name}",
        "nvcc's --fmad=false, __fmul_rn and __dmul_rn keep products rounded on their own. HIP's compilers fuse by default, across statements too (-ffp-contract=fast-honor-pragmas), and HIP's __fmul_rn is a plain product: exact predicates, compensated sums and results compared bit by bit change without an error.",
        "Build the HIP side with -ffp-contract=off, or write #pragma clang fp contract(off) at the top of the function.",
    ),
    zh=Text(
        "不允许与加法融合的乘法",
        "{name}",
        "nvcc 的 --fmad=false 以及 __fmul_rn、__dmul_rn 保证乘积单独舍入。HIP 编译器默认融合乘加，且跨语句（-ffp-contract=fast-honor-pragmas），HIP 的 __fmul_rn 只是普通乘法：精确谓词、补偿求和与逐位比较的结果会悄然改变。",
        "HIP 侧以 -ffp-contract=off 构建，或在函数体开头写 #pragma clang fp contract(off)。",
    ),
    path="two_product.cu",
    bad="__device__ float low(float a, float b, float p) { return __fadd_rn(__fmul_rn(a, b), -p); }\n",
    good="__device__ float f(float a, float b, float c) { return fmaf(a, b, c); }\n",
    needs=("mul_rn", "fmad"),
)
_FLAG = re.compile(r"(?:^|[\s\"'=;,])(--?fmad(?:=|\s+)(?:false|0))\b")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if re.search(r"#\s*pragma\s+(?:clang\s+fp\s+contract|STDC\s+FP_CONTRACT)", f.text):
        return
    found = f.idents_like(r"__[fd]mul_rn")
    yield from once_a_line(line_hit(line, column, name=name, group="products") for name, line, column in found)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if "ffp-contract" in f.text:
        return
    for node in f.nodes(_ast.Constant):
        if isinstance(node.value, str) and not f.is_docstring(node) and (match := _FLAG.search(node.value)):
            yield hit(node, name=match.group(1))


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if any("ffp-contract" in line for line in f.lines):
        return
    for entry, match in f.matching(_FLAG.pattern):
        yield entry_hit(f, entry, match.group(), name=match.group(1).strip())


check_cmake = check_make = check_shell = _scan


def fix_cmake(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    return fix_entry(f, hit.line)
