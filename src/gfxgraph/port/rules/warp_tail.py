"""The end of a reduction that one warp finishes."""

from __future__ import annotations

from gfxgraph.port.rule_api import (
    Context,
    CppFile,
    Fix,
    Hit,
    Iterator,
    Rule,
    Severity,
    Text,
    functions_with,
    line_hit,
    lines_of,
    once_a_line,
    re,
)

RULE = Rule(
    id="GFX330",
    code="warp-tail",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "The end of a reduction is left to 32 lanes",
        "{name}",
        "The loop over the block stops, and barriers turn into warp fences, where 32 lanes are left: that is NVIDIA's warp. On 32-lane wavefronts two of them take part in the step of 32; on 64-lane ones the fence is no barrier for the block.",
        "Let the loop with __syncthreads() go down to the device's wavefront, or to 0; it is as fast.",
    ),
    zh=Text(
        "归约的末尾交给 32 个 lane",
        "{name}",
        "循环在剩 32 个 lane 处停止，屏障换成 warp 级同步：那是 NVIDIA 的 warp。在 32 宽的 wavefront 上，步长 32 那一步有两个 wavefront 参与；在 64 宽的上，warp 级同步对块不是屏障。",
        "让带 __syncthreads() 的循环一直走到设备的 wavefront 宽度或 0，速度相同。",
    ),
    path='r.cu',
    bad='__global__ void k(float* s) {\n  for (int o = blockDim.x >> 1; o > 32; o >>= 1) {\n    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];\n    __syncthreads();\n  }\n  for (int o = 32; o > 0; o >>= 1) {\n    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];\n    __syncwarp();\n  }\n}\n',
    good='__global__ void k(float* s) {\n  for (int o = blockDim.x >> 1; o > 0; o >>= 1) {\n    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];\n    __syncthreads();\n  }\n}\n',
    needs=('__syncwarp', 'volatile'),
)


_TAIL = re.compile(r"__syncwarp|\bvolatile\b[^;]*\*|warp_?[Rr]educe")
_LOOP = r"\bfor\s*\([^;]*;[^;]*>=?\s*32u?\s*;[^)]*|\bfor\s*\([^;]*=\s*32u?\s*;[^;]*>[^;]*;[^)]*(?:>>=\s*1|/=\s*2)"
_STEP = r"\bif\s*\(\s*\(?(?:threadIdx\.x|\w*[tT]id\w*|\w*[tT]hread\w*)\s*(?:<\s*32u?|<=\s*31)\s*\)"


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: CppFile) -> Iterator[Hit]:
    for node, text in functions_with(f, _TAIL):
        fenced = "__syncwarp" in text or "volatile" in text
        for line, column, found in lines_of(f, node, text, f"{_LOOP}|{_STEP}" if fenced else _STEP):
            yield line_hit(line, column, name=" ".join(found.split())[:80])
