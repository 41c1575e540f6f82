"""Inductor's graphs are switched on."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX603",
    code="inductor-cudagraphs",
    severity=Severity.HIGH,
    phase=6,
    fix=Fix.SAFE,
    confidence="documented",
    en=Text(
        "Inductor's graphs are switched on",
        "{key} = True",
        'The same mechanism as mode="reduce-overhead", with the same risk on ROCm.',
        "= torch.version.hip is None; then measure.",
    ),
    zh=Text(
        "打开了 inductor 的图",
        "{key} = True",
        '与 mode="reduce-overhead" 是同一机制，在 ROCm 上风险相同。',
        "改为 = torch.version.hip is None；然后实测。",
    ),
    bad="import torch._inductor.config\n\ntorch._inductor.config.triton.cudagraphs = True\n",
    good="import torch._inductor.config\n\ntorch._inductor.config.triton.cudagraphs = False\n",
    needs=("cudagraph", "graph_partition"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _node, key, value in inductor_settings(f):
        if key in ("triton.cudagraphs", "triton.cudagraph_trees", "graph_partition") and is_true(value):
            yield hit(value, key=key)


def fix_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not is_true(node):
        return EditRefusal(node.lineno, "set through the environment: gate it by hand")
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    return Edit(node.lineno, node.col_offset, f"({ROCM} is None)")
