"""The dynamic shared memory limit of a kernel is raised."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX224",
    code="func-set-attribute",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "The dynamic shared memory limit of a kernel is raised",
        "{expr}",
        "HIP wants a const void*; the call cannot raise the limit over the LDS of the architecture (64 KiB on most, 160 KiB on gfx950).",
        "Cast the kernel to const void* and check the size against the device.",
    ),
    zh=Text(
        "提高核函数的动态共享内存上限",
        "{expr}",
        "HIP 需要 const void*；该调用也不能超过架构的 LDS（多数为 64 KiB，gfx950 为 160 KiB）。",
        "把核函数转换为 const void*，并对照设备检查大小。",
    ),
    path="smem.cu",
    bad="void f(int n) { cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n); }\n",
    good="void f(int n) { g(reinterpret_cast<const void*>(kernel), n); }\n",
    needs=("funcsetattribute",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("cudaFuncSetAttribute", "cuFuncSetAttribute"):
        if call.texts and not re.search(r"void\s*(const)?\s*\*", call.texts[0]):
            yield cpp_hit(f, call, expr=f.source(call.node)[:100])
