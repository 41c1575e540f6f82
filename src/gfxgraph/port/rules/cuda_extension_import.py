"""A compiled CUDA extension is imported with no fallback."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX515",
    code="cuda-extension-import",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    en=Text(
        "A compiled CUDA extension is imported with no fallback",
        "{name}",
        "The published binaries are for CUDA. Built from source for ROCm the module may have the same name, or not exist.",
        'Import it optionally and keep a path in PyTorch; a test of device.type == "cuda" does not keep AMD out.',
    ),
    zh=Text(
        "导入已编译的 CUDA 扩展却没有回退",
        "{name}",
        "发布的二进制针对 CUDA。为 ROCm 从源码构建时，模块可能同名，也可能不存在。",
        '改为可选导入，并保留 PyTorch 路径；判断 device.type == "cuda" 并不能排除 AMD。',
    ),
    bad="import dropout_layer_norm\n",
    good="try:\n    import dropout_layer_norm\nexcept ImportError:\n    dropout_layer_norm = None\n",
    needs=(
        "_cuda",
        "layer_norm",
        "rotary_emb",
        "fused_dense",
        "awq_ext",
        "exl_ext",
        "xentropy",
        "quant_cuda",
        "_ext",
    ),
)
_NAMES = r"dropout_layer_norm|rotary_emb|fused_dense_lib|xentropy_cuda_lib|fused_softmax_lib|awq_ext|awq_v2_ext|exl_ext|exlv2_ext|awq_inference_engine|quant_cuda|\w+_cuda|\w+_cuda_(lib|ext|kernels?)|vllm_flash_attn\w*|causal_conv1d|mamba_ssm"


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name in imports_of(f, _NAMES):
        root = name.split(".")[0]
        if (
            root in ("flash_attn_2_cuda", "flash_attn_cuda", "flash_attn_3_cuda")
            or root in ctx.project.extension_names
            or ctx.project.module_path(f.path, root)
        ):
            continue
        severity = Severity.MEDIUM if f.at_import(node) else Severity.LOW
        yield hit(node, severity=severity, guarded_by=import_guard(f, node), name=name)


def fix_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    return optional_import(node, f)
