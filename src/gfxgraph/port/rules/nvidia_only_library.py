"""Library without ROCm support under this name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX503",
    code="nvidia-only-library",
    severity=Severity.HIGH,
    phase=5,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "Library without ROCm support under this name",
        "{name}: on ROCm {instead}",
        "An ImportError, or a CUDA binary.",
        "Import it optionally, and use the counterpart named with the finding.",
    ),
    zh=Text(
        "该名称下没有 ROCm 支持的库",
        "{name}：ROCm 上 {instead}",
        "会得到 ImportError，或一个 CUDA 二进制。",
        "改为可选导入，并使用所列的替代。",
    ),
    bad="import tensorrt\n",
    good="try:\n    import tensorrt\nexcept ImportError:\n    tensorrt = None\n",
    needs=(
        "tensorrt",
        "flashinfer",
        "sageattention",
        "deep_gemm",
        "deep_ep",
        "nvshmem",
        "modelopt",
        "cuequivariance",
        "dali",
        "cudf",
        "cuml",
        "transformer_engine",
        "apex",
        "cugraph",
        "spconv",
        "tilelang",
        "nvtabular",
    ),
)
_TABLE = (
    (r"tensorrt|torch_tensorrt|tensorrt_llm", "MIGraphX"), (r"flashinfer", "aiter"), (r"sageattention", "SDPA or aiter"),
    (r"deep_gemm", "aiter or hipBLASLt"), (r"deep_ep|nvshmem\w*", "mori or rocSHMEM"), (r"modelopt", "Quark"), (r"cuequivariance\w*", "none"),
    (r"nvidia\.dali", "rocAL"), (r"cudf|cuml|cugraph|rmm|dask_cudf", "none"), (r"transformer_engine\w*", "ROCm's TransformerEngine"),
    (r"apex|amp_C|fused_layer_norm_cuda|fused_weight_gradient_mlp_cuda", "ROCm's apex"),
)  # fmt: skip


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for pattern, instead in _TABLE:
        yield from import_hits(f, pattern, Severity.HIGH, Severity.MEDIUM, instead=instead)


def fix_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    return optional_import(node, f)
