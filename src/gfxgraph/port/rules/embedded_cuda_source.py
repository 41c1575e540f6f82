"""CUDA source inside a Python string."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX220",
    code="embedded-cuda-source",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "CUDA source inside a Python string",
        "{first}",
        "No hipify pass sees it. The C++ rules have been run on it; what they found stands at the string's own lines.",
        "Follow that advice; put macros at the top of the string, chosen with __HIPCC__.",
    ),
    zh=Text(
        "Python 字符串中的 CUDA 源码",
        "{first}",
        "任何 hipify 都看不到它。C++ 规则已在其上运行，结果列在字符串自己的行上。",
        "按那些建议处理；在字符串开头放宏，用 __HIPCC__ 选择。",
    ),
    bad='import cupy\n\nk = cupy.RawKernel("""\nextern "C" __global__ void f(float* x) { x[threadIdx.x] = 0; }\n""", "f")\n',
    good='import cupy\n\nk = cupy.RawKernel("""\n#ifdef __HIPCC__\n#define MASK\n#endif\nextern "C" __global__ void f(float* x) { x[threadIdx.x] = 0; }\n""", "f")\n',
    needs=("__global__", "threadidx", "__shfl", "__device__"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_test_file(f.path) and "assert" in f.text and "RawKernel" not in f.text:
        return
    for node, text, _ in embedded_sources(f):
        if re.search(r"__HIPCC__|__HIP_PLATFORM_AMD__|USE_ROCM|__HIP__", text):
            continue
        first = next(
            (t.strip() for t in text.splitlines() if re.search(r"__global__|__device__|threadIdx|__shfl", t)),
            "",
        )
        yield hit(node, first=first[:80])
