"""CUDA shared objects, or cudart, called by name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX510",
    code="cuda-dso",
    severity=Severity.HIGH,
    phase=5,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "CUDA shared objects, or cudart, called by name",
        "{name}",
        "The file is missing on ROCm, or the project's own build names it after the platform; torch.cuda.cudart() offers only some HIP functions under CUDA names.",
        "libamdhip64.so, or the name that the ROCm build gives, chosen by torch.version.hip.",
    ),
    zh=Text(
        "按名称加载 CUDA 共享库或调用 cudart",
        "{name}",
        "ROCm 上没有该文件，或项目自己的库按平台命名；torch.cuda.cudart() 只以 CUDA 名称提供部分 HIP 函数。",
        "由 torch.version.hip 选择：使用 libamdhip64.so，或 ROCm 构建所用的文件名。",
    ),
    bad='import ctypes\n\nlib = ctypes.CDLL("libcudart.so")\n',
    good='import ctypes\n\nlib = ctypes.CDLL("libm.so.6")\n',
    needs=("libcuda", "libnvrtc", "libcublas", "libcudnn", "libnccl", "cudart", "libnvidia", "cdll", "load_library"),
)
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


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
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
