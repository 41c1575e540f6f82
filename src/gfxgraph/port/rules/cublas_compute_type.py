"""CuBLAS call in a form that hipBLAS refuses."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX216",
    code="cublas-compute-type",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "cuBLAS call in a form that hipBLAS refuses",
        "{expr}",
        "hipBLAS takes a hipblasComputeType_t, and the tensor-op switches have no meaning there.",
        "Pass a cublasComputeType_t (valid from CUDA 11 on as well); drop tensor-op math modes under USE_ROCM.",
    ),
    zh=Text(
        "hipBLAS 不接受的 cuBLAS 调用形式",
        "{expr}",
        "hipBLAS 需要 hipblasComputeType_t，tensor-op 开关在那里没有意义。",
        "传入 cublasComputeType_t（CUDA 11 起也可用）；USE_ROCM 下去掉 tensor-op 数学模式。",
    ),
    path="blas.cu",
    bad="void f(cublasHandle_t h) { cublasSetMathMode(h, CUBLAS_TENSOR_OP_MATH); }\n",
    good="#ifndef USE_ROCM\nvoid f(cublasHandle_t h) { cublasSetMathMode(h, CUBLAS_TENSOR_OP_MATH); }\n#endif\n",
    needs=("cublas",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f, ctx))


def _all(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls_like(r"cublas(GemmEx|GemmBatchedEx|GemmStridedBatchedEx)"):
        if any(re.match(r"CUDA_R_", t) for t in call.texts[-2:]):
            yield cpp_hit(f, call, expr=f"{call.name}(..., {call.texts[-2]}, {call.texts[-1]})")
    for call in f.calls("cublasSetMathMode", "cublasHgemm", "cublasHgemmStridedBatched", "cublasHgemmBatched"):
        if call.name.replace("cublas", "hipblas") in ctx.project.macros.known:
            continue  # a header of the project's gives it another body on HIP
        yield cpp_hit(f, call, expr=f.source(call.node)[:80])
    for name, line, column in f.idents_like(
        r"CUBLAS_TENSOR_OP_MATH|CUBLAS_GEMM_\w*TENSOR_OP|CUBLAS_PEDANTIC_MATH|CUBLAS_TF32_TENSOR_OP_MATH"
    ):
        yield line_hit(line, column, expr=name)
