"""Scoped or packed atomics."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX212",
    code="scoped-atomics",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "Scoped or packed atomics",
        "{name}",
        "HIP has no _block names, and packed half atomics depend on the architecture.",
        "__hip_atomic_fetch_add(..., __HIP_MEMORY_SCOPE_WORKGROUP); a compare-and-swap loop for halves.",
    ),
    zh=Text(
        "带作用域或打包的原子操作",
        "{name}",
        "HIP 没有 _block 这类名称，打包半精度原子操作取决于架构。",
        "使用 __hip_atomic_fetch_add(..., __HIP_MEMORY_SCOPE_WORKGROUP)；半精度用比较并交换循环。",
    ),
    path="atom.cu",
    bad="__global__ void k(int* p) { atomicAdd_block(p, 1); }\n",
    good="__global__ void k(int* p) { atomicAdd(p, 1); }\n",
    needs=("atomic",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls_like(r"atomic\w+_block") if "_block" in f.code else ():
        yield cpp_hit(f, call, name=call.name)
    for call in f.calls("atomicAdd"):
        if call.texts and re.search(
            r"\(\s*(__half2|half2|__nv_bfloat162|__half|half|__nv_bfloat16)\s*\*\s*\)|reinterpret_cast<\s*(__half2|half2|__nv_bfloat162|__half|half)\s*\*>",
            call.texts[0],
        ):
            yield cpp_hit(f, call, name=f.source(call.node)[:60])
