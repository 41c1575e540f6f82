"""CUDA source inside a C++ string."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX231",
    code="cuda-in-cpp-string",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "CUDA source inside a C++ string",
        "{text}",
        "What a generator prints or NVRTC compiles is text: no hipify pass translates it, and hiprtc or hipcc gets it as it is.",
        "Print HIP's name, or one of the project's own that each platform defines; __global__ and threadIdx themselves may stay.",
    ),
    zh=Text(
        "C++ 字符串中的 CUDA 源码",
        "{text}",
        "代码生成器打印的、或由 NVRTC 编译的都只是文本：hipify 不会翻译它，hiprtc 或 hipcc 会原样收到。",
        "改为打印 HIP 的名称，或由各平台分别定义的项目自有名称；__global__ 与 threadIdx 本身可以保留。",
    ),
    path="printer.cpp",
    bad='#include <ostream>\nvoid print(std::ostream& out) { out << "unsigned m = __ballot_sync(0xffffffff, p);\\n"; }\n',
    good='#include <ostream>\nvoid print(std::ostream& out) { out << "unsigned m = project::ballot(p);\\n"; }\n',
    needs=("_sync(", "cuda_", "cooperative_groups", "asm volatile", "curand", "__ldg"),
)
_CUDA = re.compile(
    r"__(?:shfl\w*|ballot|any|all|match_\w+)_sync\s*\(|\bcuda_(?:runtime|fp16|bf16|fp8)\w*\.h|cooperative_groups|"
    r"\basm\s+volatile|\bcurand_\w+\s*\(|#include\s*<(?:cuda|cub|mma|curand)"
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if not _CUDA.search(f.code):
        return
    bare = blank_comments(f.text, strings=True).split("\n")
    for number, line in enumerate(f.code.split("\n"), 1):
        match = None if line.lstrip().startswith("#") else _CUDA.search(line)
        if match and match.group() not in bare[number - 1] and '"' in line:
            yield line_hit(number + f.offset, match.start(), text=line.strip()[:90])
