"""A patch of Dynamo's RNG handling that has no effect."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX705",
    code="ineffective-rng-patch",
    severity=Severity.MEDIUM,
    phase=7,
    fix=Fix.SUGGEST,
    en=Text(
        "A patch of Dynamo's RNG handling that has no effect",
        "{name}",
        "One form assigns to a name that does not exist; the other replaces a decorator that was applied at import, so it is never asked (from torch 2.9 on). The error it is meant for is not particular to ROCm.",
        "Warm up before the capture, so that nothing compiles inside it.",
    ),
    zh=Text(
        "对 Dynamo 随机数处理的无效补丁",
        "{name}",
        "一种写法给不存在的名称赋值；另一种替换的是导入时就已应用的装饰器，自 torch 2.9 起从不被调用。它针对的错误也并非 ROCm 特有。",
        "捕获之前先预热，使捕获中不再发生编译。",
    ),
    bad="import torch._dynamo.utils\n\ntorch._dynamo.utils.preserve_global_state = lambda f: f\n",
    good="import torch._dynamo.utils\n\nutils = torch._dynamo.utils\n",
    needs=("preserve_global_state",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, _ in assigned(f):
        if re.match(
            r"(torch\._dynamo\.(utils|convert_frame)|convert_frame|dynamo_utils)\.preserve_global_state$",
            name,
        ):
            yield hit(node, name=name)
    for call in f.calls("setattr"):
        if len(call.args) >= 2 and text_of(call.args[1]) == "preserve_global_state":
            yield hit(call, name="setattr(..., 'preserve_global_state')")
