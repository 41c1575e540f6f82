"""The ROCm branch comes after torch.cuda.is_available()."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX119",
    code="dead-rocm-branch",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "The ROCm branch comes after torch.cuda.is_available()",
        "{expr} is never reached on AMD",
        "is_available() is true on ROCm too, so the branch before takes AMD's place.",
        "Test for ROCm first.",
    ),
    zh=Text(
        "ROCm 分支排在 torch.cuda.is_available() 之后",
        "{expr} 在 AMD 上永远到不了",
        "is_available() 在 ROCm 上同样为真，前面的分支会抢先。",
        "先判断 ROCm。",
    ),
    bad='import torch\n\nif torch.cuda.is_available():\n    name = "a"\nelif torch.version.hip:\n    name = "b"\n',
    good='import torch\n\nif torch.version.hip:\n    name = "b"\nelif torch.cuda.is_available():\n    name = "a"\n',
    needs=("is_available",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    guards = ctx.guards
    if guards is None:
        return
    amd = DeviceKind(select("gfx1030")[0])
    for node in f.nodes(ast.If):
        if not (isinstance(node.test, ast.Call) and f.call_name(node.test) == "torch.cuda.is_available"):
            continue
        later = node.orelse
        while len(later) == 1 and isinstance(later[0], ast.If):
            branch = later[0]
            on_amd, on_nvidia = (truth(guards.conditions.value(branch.test, w)) for w in (amd, NVIDIA))
            if on_amd is True and on_nvidia is False:
                yield hit(branch.test, expr=f.source(branch.test))
            later = branch.orelse
