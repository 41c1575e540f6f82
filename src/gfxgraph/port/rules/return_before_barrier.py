"""Some threads leave before a barrier."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX332",
    code="return-before-barrier",
    severity=Severity.LOW,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "A row or warp of threads leaves before a barrier",
        "{name}",
        "Where the rows are 32 wide NVIDIA's barrier no longer waits for a warp that has left. A 64-lane wavefront holds two of them and goes on with half of its lanes.",
        "Keep the threads: compute nothing for them, but let all of them reach __syncthreads().",
    ),
    zh=Text(
        "一行或一个 warp 的线程在屏障之前返回",
        "{name}",
        "若每行 32 个线程，NVIDIA 的屏障不再等待已退出的 warp；而 64 宽的 wavefront 含有两行，会带着一半 lane 继续。",
        "保留这些线程：不做计算，但让它们都到达 __syncthreads()。",
    ),
    path="ret.cu",
    bad="__global__ void k(float* o, int n) {\n  int row = blockIdx.x * blockDim.y + threadIdx.y;\n  if (row >= n) return;\n  __syncthreads();\n  o[row] = 0;\n}\n",
    good="__global__ void k(float* o, int n) {\n  int row = blockIdx.x * blockDim.y + threadIdx.y;\n  __syncthreads();\n  if (row >= n) return;\n  o[row] = 0;\n}\n",
    needs=("__syncthreads",),
)


_BARRIER = re.compile(r"__syncthreads\s*\(\s*\)")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for node, text in functions_with(f, _BARRIER):
        last = max(m.start() for m in _BARRIER.finditer(text))
        rows = set(re.findall(r"\b(\w+)\s*=[^;=]*\b(?:threadIdx\s*\.\s*[yz]|warp_?[iI]d\w*)[^;]*;", text))
        names = "|".join(map(re.escape, sorted(rows | {"warp_id", "warpId"})))
        leaves = rf"\bif\s*\([^;{{}}]*(?:threadIdx\s*\.\s*[yz]|\b(?:{names})\b)[^;{{}}]*\)\s*\{{?\s*return\s*;"
        for line, column, found in lines_of(f, node, text[:last], leaves):
            yield line_hit(line, column, name=" ".join(found.split())[:80])
