"""Managed memory."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX225",
    code="managed-memory",
    severity=Severity.LOW,
    phase=2,
    tier="extended",
    confidence="documented",
    en=Text(
        "Managed memory",
        "{name}",
        "It works through HMM and XNACK on some parts only, and is slow or fails on the others.",
        "Copy explicitly, or gate on hipDeviceAttributeManagedMemory.",
    ),
    zh=Text(
        "托管内存",
        "{name}",
        "它依赖 HMM 与 XNACK，仅部分产品支持，其余缓慢或失败。",
        "改为显式复制，或根据 hipDeviceAttributeManagedMemory 判断。",
    ),
    path="um.cu",
    bad="void f(float** p) { cudaMallocManaged(p, 64); }\n",
    good="void f(float** p);\n",
    needs=("managed", "memprefetch", "memadvise"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from ident_hits(f, r"cudaMallocManaged|cudaMemPrefetchAsync|cudaMemAdvise|__managed__|cuMemAllocManaged")
