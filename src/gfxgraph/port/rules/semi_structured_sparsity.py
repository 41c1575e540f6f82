"""2:4 sparsity through cuSPARSELt or CUTLASS."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX514",
    code="semi-structured-sparsity",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "2:4 sparsity through cuSPARSELt or CUTLASS",
        "{expr}",
        "There is no CUTLASS path; hipSPARSELt comes with ROCm 7 and CDNA3 or later.",
        "Gate by version and architecture.",
    ),
    zh=Text(
        "经 cuSPARSELt 或 CUTLASS 的 2:4 稀疏",
        "{expr}",
        "没有 CUTLASS 路径；hipSPARSELt 需要 ROCm 7 与 CDNA3 及之后。",
        "按版本与架构加条件。",
    ),
    bad="from torch.sparse import to_sparse_semi_structured\n\nw = to_sparse_semi_structured(w)\n",
    good="w = w.to_sparse()\n",
    needs=("semi_structured", "semistructured", "semisparse", "cutlasssemi"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls(
        "*.to_sparse_semi_structured", "torch.sparse.to_sparse_semi_structured", "to_sparse_semi_structured"
    ):
        yield hit(call, expr=f.source(call)[:80])
    for node, name, value in assigned(f):
        if name.endswith("._FORCE_CUTLASS") and is_true(value):
            yield hit(node, expr=f.source(node))
    for node in f.nodes(ast.Name):
        if node.id == "CutlassSemiSparseLayout" and isinstance(f.parent(node), ast.Call):
            yield hit(node, expr=node.id)
