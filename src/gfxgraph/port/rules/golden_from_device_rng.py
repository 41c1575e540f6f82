"""Saved references come from the device's random numbers."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX802",
    code="golden-from-device-rng",
    severity=Severity.MEDIUM,
    phase=8,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="seed-only",
    en=Text(
        "Saved references come from the device's random numbers",
        "{expr}",
        "The streams need not agree across vendors or launch shapes.",
        "Make inputs on the CPU, and save inputs with outputs; gfxgraph port verify does.",
    ),
    zh=Text(
        "保存的参考值来自设备随机数",
        "{expr}",
        "不同厂商或不同启动形状的随机序列不必一致。",
        "在 CPU 上生成输入，并把输入与输出一起保存；gfxgraph port verify 即如此。",
    ),
    bad='import torch\n\ntorch.manual_seed(0)\nx = torch.randn(4, device="cuda")\ntorch.save({"x": x, "y": f(x)}, "golden.pt")\n',
    good='import torch\n\ntorch.manual_seed(0)\nx = torch.randn(4).to("cuda")\ntorch.save({"x": x, "y": f(x)}, "golden.pt")\n',
    needs=("torch.save", "np.save"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    saves = [
        c
        for c in f.calls("torch.save", "numpy.save", "np.save")
        if re.search(r"(?i)golden|reference|expected|ref_", f.source(c))
    ]
    if not saves:
        return
    for call in f.nodes(ast.Call):
        if re.fullmatch(r"torch\.rand(n|int|perm)?(_like)?", f.call_name(call)) and "cuda" in (
            text_of(keyword(call, "device")) or ""
        ):
            if any(f.scope(s) is f.scope(call) for s in saves):
                yield hit(call, expr=f.source(call)[:80])
