"""A CUDA name is left in an AMD arm."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX803",
    code="hip-arm-has-cuda",
    severity=Severity.INFO,
    phase=8,
    scope=Scope.ONLY_AMD,
    tier="extended",
    confidence="documented",
    en=Text(
        "A CUDA name is left in an AMD arm",
        "{name}",
        "The port may not be finished. In sources that torch's hipify translates, runtime names are renamed and this is fine.",
        "Use the HIP name, or let hipify rename it.",
    ),
    zh=Text(
        "AMD 分支中残留 CUDA 名称",
        "{name}",
        "移植可能尚未完成。若由 torch 的 hipify 转换，运行时名称会被改名，则没有问题。",
        "使用 HIP 名称，或交给 hipify 改名。",
    ),
    path="arm.cpp",
    bad="#ifdef USE_ROCM\nvoid f(void** p) { cudaMalloc(p, 4); }\n#endif\n",
    good="#ifdef USE_ROCM\nvoid f(void** p) { hipMalloc(p, 4); }\n#endif\n",
    needs=("cuda", "cublas"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if f.path.rpartition("/")[2] in ctx.project.extension_sources or ctx.vendor == "amd":
        return
    if ctx.project.has_torch_extension and f.path.endswith((".cu", ".cuh")):
        return
    own = {name for name, _, _, _ in f.defines()} | set(ctx.project.macros.known)
    hits = [
        line_hit(line, column, name=name)
        for name, line, column in f.idents_like(r"cu(da|blas|fft|rand|sparse)[A-Z]\w*|__nv_bfloat16\w*")
        if name not in own
    ]
    kept = [h for h in hits if (arm := f.arm(h.line)) is not None and mentions_amd(arm, ctx.project.macros)]
    yield from once_a_line(kept)
