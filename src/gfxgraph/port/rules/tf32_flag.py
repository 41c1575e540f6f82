"""A TF32 switch is turned on."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX110",
    code="tf32-flag",
    severity=Severity.INFO,
    phase=1,
    archs=GFX94,
    confidence="contradicted",
    en=Text(
        "A TF32 switch is turned on",
        "{expr}",
        "The attribute exists on every build and raises nothing. On gfx942 newer builds do compute in TF32 through hipBLASLt, with numerics of their own; elsewhere on AMD it has no effect.",
        "Leave it, and allow for it in the tolerances. Gate it only where bitwise fp32 is wanted.",
    ),
    zh=Text(
        "打开了 TF32 开关",
        "{expr}",
        "该属性在所有构建上都存在，不会抛错。gfx942 的较新构建会经 hipBLASLt 真正使用 TF32，数值与 NVIDIA 不同；AMD 其他架构上无效果。",
        "保留，并在容差中考虑；只有需要逐位 fp32 时才加条件。",
    ),
    bad="import torch\n\ntorch.backends.cuda.matmul.allow_tf32 = True\n",
    good="import torch\n\ntorch.backends.cuda.matmul.allow_tf32 = False\n",
    needs=("tf32", "set_float32_matmul_precision", "fp32_precision"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, value in assigned(f):
        if name.endswith("allow_tf32") and name.startswith("torch.backends") and is_true(value):
            yield hit(node, expr=f.source(node))
        elif name.endswith("fp32_precision") and text_of(value) == "tf32":
            yield hit(node, expr=f.source(node))
    for call in f.calls("torch.set_float32_matmul_precision"):
        if text_of(argument(call, 0, "precision")) in ("high", "medium"):
            yield hit(call, expr=f.source(call))
