"""A place that stops the program on every build but CUDA's."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX126",
    code="cuda-demanded",
    severity=Severity.MEDIUM,
    phase=1,
    confidence="documented",
    en=Text(
        "A place that stops the program on every build but CUDA's",
        "{expr}",
        "On ROCm torch.version.cuda is None, so this is as far as the program gets; what follows is reached by nobody there.",
        "Ask for a GPU (torch.cuda.is_available()), or name the feature that is missing; then read what follows, which no rule has judged for AMD.",
    ),
    zh=Text(
        "在 CUDA 以外的构建上终止程序的位置",
        "{expr}",
        "在 ROCm 上 torch.version.cuda 为 None，程序到此为止；其后的代码在那里无人到达。",
        "改为询问是否有 GPU（torch.cuda.is_available()），或说明缺少哪项功能；然后检查其后的代码，尚无规则为 AMD 评判过它。",
    ),
    bad='import torch\n\nif torch.version.cuda is None:\n    raise RuntimeError("this needs CUDA")\n',
    good='import torch\n\nif not torch.cuda.is_available():\n    raise RuntimeError("this needs a GPU")\n',
    needs=("version.cuda", "is_cuda", "is_rocm", "is_hip", "version.hip"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f, ctx))


def _all(f: PyFile, ctx: Context) -> Iterator[Hit]:
    guards = ctx.guards
    if guards is None:
        return
    amd = [DeviceKind(a) for a in select("gfx942,gfx1100")]
    for test in f.nodes(ast.Assert):
        if all(truth(guards.conditions.value(test.test, w)) is False for w in amd):
            if truth(guards.conditions.value(test.test, NVIDIA)) is not False:
                yield hit(test, expr=f.source(test)[:90])
    for stop in f.nodes(ast.Raise):
        if guards.exclusion(stop, NVIDIA) is not None and all(guards.exclusion(stop, w) is None for w in amd):
            up = f.parent(stop)
            yield hit(stop, expr=f.source(up.test if isinstance(up, ast.If) else stop)[:90])
            if isinstance(up, ast.If):
                yield hit(up.test, expr=f.source(up.test)[:90])
