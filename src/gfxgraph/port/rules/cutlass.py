"""CUTLASS or CuTe."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX203",
    code="cutlass",
    severity=Severity.HIGH,
    phase=2,
    en=Text(
        "CUTLASS or CuTe",
        "{name}",
        "They have no back end for AMD.",
        "Composable Kernel, hipBLASLt, Triton or aiter; or leave the target out of the ROCm build.",
    ),
    zh=Text(
        "CUTLASS 或 CuTe",
        "{name}",
        "它们没有 AMD 后端。",
        "改用 Composable Kernel、hipBLASLt、Triton 或 aiter；或在 ROCm 构建中排除该目标。",
    ),
    path="gemm.cu",
    bad="#include <cutlass/gemm/device/gemm.h>\n",
    good="// cutlass is not used here\nint gemm();\n",
    needs=("cutlass", "cute"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    found = list(include_hits(f, r"(cutlass|cute)(/|\.h)", group="includes"))
    yield from found
    if not found and re.search(r"\b(cutlass|cute)::", f.code):
        hits = [
            cpp_hit(f, n, name=f.source(n)[:60])
            for n in f.nodes("qualified_identifier")
            if re.match(r"(::)?(cutlass|cute)::", f.source(n))
        ]
        yield from once_a_line(hits)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for h in import_hits(f, r"cutlass|cute", Severity.HIGH, Severity.MEDIUM):
        yield replace(h, group="imports")
