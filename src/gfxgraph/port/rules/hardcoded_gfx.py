"""One gfx architecture is written into a test."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX105",
    code="hardcoded-gfx",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "One gfx architecture is written into a test",
        "{name} in {expr}",
        "The next architecture falls out of it, and prefixes join families: gfx12 covers RDNA4 and gfx1250, gfx9 covers GCN and CDNA.",
        "Ask the device, and keep sets of whole names in one place with a default.",
    ),
    zh=Text(
        "判断中写死了某个 gfx 架构",
        "{name}，位于 {expr}",
        "下一代架构会被漏掉；前缀还会混淆系列：gfx12 同时覆盖 RDNA4 与 gfx1250，gfx9 同时覆盖 GCN 与 CDNA。",
        "询问设备，并把完整名称的集合集中放在一处，给出默认值。",
    ),
    bad='import torch\n\narch = torch.cuda.get_device_properties(0).gcnArchName\nfast = "gfx90a" in arch\n',
    good='import torch\n\narch = torch.cuda.get_device_properties(0).gcnArchName\nfast = any(a in arch for a in ("gfx90a", "gfx942", "gfx950"))\n',
    needs=("gfx",),
)
_GFX = re.compile(r"gfx[0-9a-f]{1,5}")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_test_file(f.path):
        return
    for node in f.nodes(ast.Constant):
        if not (isinstance(node.value, str) and _GFX.fullmatch(node.value)):
            continue
        up = f.parent(node)
        alone = isinstance(up, ast.Compare) or (
            isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr == "startswith"
        )
        if not alone or up is None:
            continue
        statement = f.statement(node)
        names = set(_GFX.findall(f.source(statement.test if isinstance(statement, ast.If) else statement or node)))
        if len(names) == 1:
            yield hit(node, name=node.value, expr=f.source(up)[:100])
