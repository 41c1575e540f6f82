"""NVTX ranges."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX509",
    code="nvtx",
    severity=Severity.INFO,
    phase=5,
    tier="extended",
    confidence="documented",
    en=Text(
        "NVTX ranges",
        "{name}",
        "ROCm builds map torch.cuda.nvtx to roctx where that is present; the nvtx package does nothing there.",
        "Leave it; torch.profiler.record_function works everywhere.",
    ),
    zh=Text(
        "NVTX 区间",
        "{name}",
        "ROCm 构建在有 roctx 时把 torch.cuda.nvtx 映射过去；nvtx 包本身不起作用。",
        "保留；torch.profiler.record_function 处处可用。",
    ),
    bad='import torch\n\ntorch.cuda.nvtx.range_push("step")\n',
    good='import torch\n\nwith torch.profiler.record_function("step"):\n    pass\n',
    needs=("nvtx",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    found = list(import_hits(f, r"nvtx", Severity.INFO, Severity.INFO))
    found += [hit(n, name=f.dotted(n)) for n in f.nodes(ast.Attribute) if f.dotted(n).startswith("torch.cuda.nvtx.")]
    yield from once_a_line(found)
