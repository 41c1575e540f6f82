"""A setting that only cuDNN or cuFFT has."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX112",
    code="cudnn-only-flag",
    severity=Severity.LOW,
    phase=1,
    fix=Fix.SUGGEST,
    confidence="contradicted",
    en=Text(
        "A setting that only cuDNN or cuFFT has",
        "{expr}",
        "torch.backends.cudnn is MIOpen on ROCm, with MIOpen's version numbers; cuFFT's plan cache cannot be sized. cudnn.benchmark and cudnn.deterministic do work and must stay.",
        "Put the comparison or setting under torch.version.hip is None.",
    ),
    zh=Text(
        "只有 cuDNN 或 cuFFT 才有的设置",
        "{expr}",
        "ROCm 上 torch.backends.cudnn 就是 MIOpen，版本号也是 MIOpen 的；cuFFT 计划缓存不可调整。cudnn.benchmark 与 cudnn.deterministic 有效，必须保留。",
        "把该比较或设置放在 torch.version.hip is None 之下。",
    ),
    bad="import torch\n\nnew = torch.backends.cudnn.version() >= 8900\n",
    good="import torch\n\ntorch.backends.cudnn.benchmark = True\n",
    needs=("cudnn", "cufft_plan_cache"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("torch.backends.cudnn.version"):
        if any(isinstance(u, ast.Compare) for u in f.ancestors(call)):
            yield hit(call, expr=f.source(f.parent(call) or call)[:120])
    for op in f.nodes(ast.Constant):
        if isinstance(op.value, str) and re.fullmatch(r"aten::cudnn_\w+", op.value):
            yield hit(op, expr=op.value)  # ROCm's are aten::miopen_...
    for node, name, _ in assigned(f):
        if name.startswith("torch.backends.cudnn.benchmark_limit") or name.startswith(
            "torch.backends.cuda.cufft_plan_cache"
        ):
            yield hit(node, expr=f.source(node)[:120])
