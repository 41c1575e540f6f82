"""MODULE libraries."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

_SO = re.compile(
    r"lib(cudart|cuda|nvrtc|cublas|cublasLt|cudnn|nvidia-ml|nvJitLink|cufft)(\.so[\d.]*|[\d_]*\.dll)?$|libcuda\.so"
)
# The project's own library, which its build names after the platform: "libfoo_cuda*.so", or a pattern such as cuda(\\d+).
_OWN = re.compile(r"^lib\w*_cuda(?![a-z])|(?:^|_)cuda\(?\\d")
# What torch binds on ROCm too, under CUDA's names (torch/csrc/cuda/shared/cudart.cpp, torch 2.13).
_BOUND = frozenset(
    "cudaProfilerStart cudaProfilerStop cudaHostRegister cudaHostUnregister cudaStreamCreate cudaStreamDestroy "
    "cudaMemGetInfo cudaGetErrorString cudaError".split()
)


def cuda_dso(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if "libamdhip64" in f.text:
        return
    for call in f.calls(
        "ctypes.CDLL",
        "ctypes.cdll.LoadLibrary",
        "ctypes.util.find_library",
        "*.LoadLibrary",
        "*.find_library",
        "ctypes.PyDLL",
    ):
        text = text_of(call.args[0] if call.args else None) or ""
        if _SO.search(text) or (
            f.call_name(call).endswith("find_library")
            and text in ("cudart", "cuda", "nvrtc", "cublas", "cudnn", "nvidia-ml")
        ):
            tried = f.caught(call, "OSError", "FileNotFoundError")
            yield hit(call, guarded_by=f"line {tried.lineno}: try" if tried else "", name=text)
    yield from _own(f)
    for call in f.calls("torch.cuda.cudart"):
        up = f.parent(call)
        if isinstance(up, ast.Attribute) and up.attr in _BOUND:
            continue
        yield hit(call, severity=Severity.LOW, name=f.source(up if isinstance(up, ast.Attribute) else call)[:60])


def _own(f: PyFile) -> Iterator[Hit]:
    """Where a file that loads libraries makes a library's name with "cuda" in it."""
    if not re.search(r"CDLL|load_library|LoadLibrary", f.text):
        return
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and len(node.value) < 80 and _OWN.search(node.value):
            yield hit(node, severity=Severity.MEDIUM, name=node.value)


_NAMES = r"dropout_layer_norm|rotary_emb|fused_dense_lib|xentropy_cuda_lib|fused_softmax_lib|awq_ext|awq_v2_ext|exl_ext|exlv2_ext|awq_inference_engine|quant_cuda|\w+_cuda|\w+_cuda_(lib|ext|kernels?)|vllm_flash_attn\w*|causal_conv1d|mamba_ssm"


def cuda_extension_import(f: PyFile, ctx: Context) -> Iterator[Hit]:
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


def fix_import(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    return optional_import(node, f)
