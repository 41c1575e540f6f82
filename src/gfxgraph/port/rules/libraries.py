"""Packages that are NVIDIA's alone, imported or loaded."""

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


_LOADERS = ("ctypes.CDLL", "ctypes.PyDLL", "*.LoadLibrary", "*.find_library")


def cuda_dso(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if "libamdhip64" in f.text:
        return
    for call in f.calls(*_LOADERS):
        text = text_of(call.args[0] if call.args else None) or ""
        finds = last_name(f, call) == "find_library"
        if _SO.search(text) or (finds and text in ("cudart", "cuda", "nvrtc", "cublas", "cudnn", "nvidia-ml")):
            tried = f.caught(call, "OSError", "FileNotFoundError")
            yield hit(call, guarded_by=f"line {tried.lineno}: try" if tried else "", name=text)
    if re.search(r"CDLL|load_library|LoadLibrary", f.text):
        for node, text in strings(f):
            if len(text) < 80 and _OWN.search(text):
                yield hit(node, severity=Severity.MEDIUM, name=text)
    for call in f.calls("torch.cuda.cudart"):
        up = f.parent(call)
        if not (isinstance(up, ast.Attribute) and up.attr in _BOUND):
            yield hit(call, severity=Severity.LOW, name=f.source(up if isinstance(up, ast.Attribute) else call)[:60])


_NAMES = r"dropout_layer_norm|rotary_emb|fused_dense_lib|xentropy_cuda_lib|fused_softmax_lib|awq_ext|awq_v2_ext|exl_ext|exlv2_ext|awq_inference_engine|quant_cuda|\w+_cuda|\w+_cuda_(lib|ext|kernels?)|vllm_flash_attn\w*|causal_conv1d|mamba_ssm"


def cuda_extension_import(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name in imports_of(f, _NAMES):
        root = name.split(".")[0]
        own = root in ctx.project.extension_names or ctx.project.module_path(f.path, root)
        if not own and root not in ("flash_attn_2_cuda", "flash_attn_cuda", "flash_attn_3_cuda"):
            severity = Severity.MEDIUM if f.at_import(node) else Severity.LOW
            yield hit(node, severity=severity, guarded_by=import_guard(f, node), name=name)
