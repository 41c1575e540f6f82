"""CUDA shared objects, or cudart, called by name."""

from gfxgraph.port.rule_api import Context, Fix, Hit, Iterator, PyFile, Rule, Severity, Text, ast, hit, re, text_of

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
        "The file is missing; torch.cuda.cudart() offers on ROCm only some HIP functions under CUDA names.",
        "libamdhip64.so on ROCm, chosen by torch.version.hip.",
    ),
    zh=Text(
        "按名称加载 CUDA 共享库或调用 cudart",
        "{name}",
        "文件不存在；ROCm 上 torch.cuda.cudart() 只以 CUDA 名称提供部分 HIP 函数。",
        "ROCm 上使用 libamdhip64.so，由 torch.version.hip 选择。",
    ),
    bad='import ctypes\n\nlib = ctypes.CDLL("libcudart.so")\n',
    good='import ctypes\n\nlib = ctypes.CDLL("libm.so.6")\n',
    needs=("libcuda", "libnvrtc", "libcublas", "libcudnn", "libnccl", "cudart", "libnvidia"),
)
_SO = re.compile(
    r"lib(cudart|cuda|nvrtc|cublas|cublasLt|cudnn|nvidia-ml|nvJitLink|cufft)(\.so[\d.]*|[\d_]*\.dll)?$|libcuda\.so"
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
    for call in f.calls("torch.cuda.cudart"):
        up = f.parent(call)
        yield hit(call, severity=Severity.LOW, name=f.source(up if isinstance(up, ast.Attribute) else call)[:60])
