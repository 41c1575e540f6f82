"""A reduced-precision accumulation switch."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX111",
    code="reduced-precision-reduction",
    severity=Severity.INFO,
    phase=1,
    tier="extended",
    confidence="documented",
    en=Text(
        "A reduced-precision accumulation switch",
        "{expr}",
        "Listed as unsupported on ROCm: it has no effect there.",
        "Nothing to do; do not count on it for speed or for numerics.",
    ),
    zh=Text(
        "降低精度累加的开关",
        "{expr}",
        "ROCm 文档列为不支持：设置后无效果。",
        "无需处理；速度与数值都不要依赖它。",
    ),
    bad="import torch\n\ntorch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True\n",
    good="import torch\n\nflag = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction\n",
    needs=("reduced_precision_reduction", "fp16_accumulation"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, _ in assigned(f):
        if re.search(r"matmul\.allow_(fp16|bf16)_(reduced_precision_reduction|accumulation)$", name):
            yield hit(node, expr=f.source(node))
