"""Nvcuda::wmma."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX204",
    code="wmma",
    severity=Severity.HIGH,
    phase=2,
    tier="extended",
    confidence="documented",
    en=Text(
        "nvcuda::wmma",
        "{name}",
        "ROCm has no such header; its matrix units take other shapes.",
        "rocWMMA (gfx90a and later CDNA, gfx11 and later RDNA), or MFMA and WMMA builtins by architecture.",
    ),
    zh=Text(
        "nvcuda::wmma",
        "{name}",
        "ROCm 没有该头文件，其矩阵单元的形状也不同。",
        "使用 rocWMMA（gfx90a 及之后的 CDNA、gfx11 及之后的 RDNA），或按架构使用 MFMA 与 WMMA 内建函数。",
    ),
    path="mm.cu",
    bad="#include <mma.h>\nusing namespace nvcuda;\n",
    good="namespace mylib { namespace wmma { struct tile {}; } }\n",
    needs=("mma",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from include_hits(f, r"(crt/)?mma\.h(pp)?$")
    yield from ident_hits(f, r"nvcuda|__nv_wgmma\w*")
