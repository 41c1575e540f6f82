"""A CUDA library's version decides what is compiled."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX209",
    code="cuda-version-guard",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "A CUDA library's version decides what is compiled",
        "{text}",
        "torch's hipify turns CUDA_VERSION into TORCH_HIP_VERSION (major*100+minor, as 715): >= 11000 is false, < 11020 true, and the oldest path is taken.",
        "Say it outright: && !defined(USE_ROCM), or || defined(USE_ROCM).",
    ),
    zh=Text(
        "由 CUDA 库的版本决定编译内容",
        "{text}",
        "torch 的 hipify 把 CUDA_VERSION 换成 TORCH_HIP_VERSION（major*100+minor，如 715）：>= 11000 为假，< 11020 为真，最终走最老的路径。",
        "明确写出：&& !defined(USE_ROCM) 或 || defined(USE_ROCM)。",
    ),
    path="compat.cuh",
    bad="#if CUDA_VERSION >= 11000\n#define HAS_ASYNC 1\n#endif\n",
    good="#if !defined(USE_ROCM) && CUDA_VERSION >= 11000\n#define HAS_ASYNC 1\n#endif\n",
    needs=(
        "cuda_version",
        "cudart_version",
        "cudnn_",
        "cublas_ver",
        "nccl_version",
        "cudacc_ver",
        "cusparse_ver",
    ),
)


_NAMES = r"CUDA_VERSION|CUDART_VERSION|CUDNN_(VERSION|MAJOR|MINOR)|CUBLAS_VER\w*|CUSPARSE_VER\w*|CUFFT_VER\w*|NCCL_(VERSION_CODE|MAJOR|MINOR)|__CUDACC_VER_\w+"


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for arm, _ in macro_tests(f, _NAMES, ctx.project.macros):
        yield line_hit(arm.line + f.offset, text=arm.text[:100], guard_free=True)
    conditions = {d.line + f.offset for d in f.directives if d.kind != "define"}
    places = (p for p in f.idents_like(_NAMES) if p[1] not in conditions)
    yield from once_a_line(line_hit(line, column, text=name) for name, line, column in places)
