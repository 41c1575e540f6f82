"""Torch's architecture list is searched for sm_."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX103",
    code="sm-arch-list-parse",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "torch's architecture list is searched for sm_",
        "{expr}",
        "On ROCm the list holds gfx names: the filter leaves nothing, and max() or [-1] of nothing raises.",
        "Return early where torch.version.cuda is falsy, and read gcnArchName instead.",
    ),
    zh=Text(
        "在 torch 架构列表中查找 sm_",
        "{expr}",
        "ROCm 上列表中是 gfx 名称：过滤后为空，对空列表取 max() 或 [-1] 会抛错。",
        "torch.version.cuda 为假时提前返回，改读 gcnArchName。",
    ),
    bad='import torch\n\nnewest = max(int(a.split("_")[1]) for a in torch.cuda.get_arch_list() if a.startswith("sm_"))\n',
    good="import torch\n\narchs = torch.cuda.get_arch_list()\n",
    needs=("get_arch_list", "get_gencode_flags"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("torch.cuda.get_arch_list", "torch.cuda.get_gencode_flags"):
        scope = f.function(call) or f.statement(call)
        text = f.source(scope) if scope is not None else ""
        if re.search(r"sm_|compute_|split\(", text) and "default=" not in text:
            yield hit(call, expr=f.source(f.statement(call) or call)[:120])
