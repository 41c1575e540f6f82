"""Shared storage of a block collective is used again without a barrier."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX329",
    code="shared-storage-reuse",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "Shared storage of a block collective is used again without a barrier",
        "{name}",
        "A block of 64 threads is one wavefront on gfx9: the collective has no barrier of its own there, so the second call writes over what the first still reads.",
        "__syncthreads() between the two calls, or a TempStorage for each.",
    ),
    zh=Text(
        "块级原语的共享存储未加屏障就再次使用",
        "{name}",
        "在 gfx9 上 64 个线程的块就是一个 wavefront：原语内部没有屏障，第二次调用会覆盖第一次仍在读取的数据。",
        "两次调用之间加 __syncthreads()，或各用一个 TempStorage。",
    ),
    path="b.cu",
    bad="__global__ void k(float* o) {\n  using B = cub::BlockReduce<float, 64>;\n  __shared__ typename B::TempStorage s;\n  float a = B(s).Sum(o[0]);\n  float b = B(s).Sum(o[1]);\n  o[2] = a + b;\n}\n",
    good="#ifndef USE_ROCM\n__global__ void k(float* o) {\n  using B = cub::BlockReduce<float, 64>;\n  __shared__ typename B::TempStorage s;\n  float a = B(s).Sum(o[0]);\n  __syncthreads();\n  o[2] = a + B(s).Sum(o[1]);\n}\n#endif\n",
    needs=("tempstorage",),
)


_STORAGE = re.compile(r"\bTempStorage\s+\w+")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for node, text in functions_with(f, _STORAGE):
        for name in dict.fromkeys(re.findall(r"\bTempStorage\s+(\w+)\s*;", text)):
            used = (
                r"\b\w+(?:<[^;{}]*>)?\s*\(\s*" + re.escape(name) + r"[\w.]*\s*\)\s*\.\s*\w+|__syncthreads|\bsync\s*\("
            )
            before = ""
            for line, column, found in lines_of(f, node, text, used):
                if before and name in found:
                    yield line_hit(line, column, name=found)
                before = found if name in found else ""
