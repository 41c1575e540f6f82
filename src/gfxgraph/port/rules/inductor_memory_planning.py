"""Inductor's memory planning is switched on."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX604",
    code="inductor-memory-planning",
    severity=Severity.LOW,
    phase=6,
    fix=Fix.SAFE,
    confidence="seed-only",
    en=Text(
        "Inductor's memory planning is switched on",
        "{key}",
        "A porting guide reports deep recursion with it on ROCm. The default is False, so only an explicit True matters.",
        "= torch.version.hip is None.",
    ),
    zh=Text(
        "打开了 inductor 的内存规划",
        "{key}",
        "有移植指南称其在 ROCm 上导致深度递归。默认为 False，因此只有显式 True 才有影响。",
        "改为 = torch.version.hip is None。",
    ),
    bad="import torch._inductor.config\n\ntorch._inductor.config.memory_planning = True\n",
    good="import torch._inductor.config\n\ntorch._inductor.config.memory_planning = False\n",
    needs=("memory_planning",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _, key, value in inductor_settings(f):
        if key == "memory_planning" and is_true(value):
            yield hit(value, key=f"{key} = True")
    for node, name, written in env_writes(f):
        if name == "TORCHINDUCTOR_MEMORY_PLANNING" and text_of(written) == "1":
            yield hit(node, key=f"{name}=1")


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, _match in f.matching(r"\bTORCHINDUCTOR_MEMORY_PLANNING\s*[=: ]\s*[\"']?1\b"):
        yield entry_hit(f, entry, key="TORCHINDUCTOR_MEMORY_PLANNING=1")


check_docker = check_shell = _scan


def fix_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not is_true(node):
        return EditRefusal(node.lineno, "set through the environment: gate it by hand")
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return Edit(node.lineno, node.col_offset, f"({ROCM} is None)")
