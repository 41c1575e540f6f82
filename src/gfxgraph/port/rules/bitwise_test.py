"""A test compares GPU results bit by bit, or nearly."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX801",
    code="bitwise-test",
    severity=Severity.LOW,
    phase=8,
    fix=Fix.SUGGEST,
    en=Text(
        "A test compares GPU results bit by bit, or nearly",
        "{expr}",
        "The order of accumulation and the fusing of multiply-add differ between back ends; projects loosen such tests on ROCm.",
        "A tolerance by dtype (gfxgraph port verify has a table); keep the exact test for NVIDIA. Exactness is right for copies, indexing and integers.",
    ),
    zh=Text(
        "测试对 GPU 结果作逐位或近乎逐位比较",
        "{expr}",
        "累加顺序与乘加融合因后端而异；各项目都会在 ROCm 上放宽此类测试。",
        "按 dtype 设容差（gfxgraph port verify 有表）；NVIDIA 保留精确测试。对复制、索引与整数，精确比较是对的。",
    ),
    path="test_ops.py",
    bad='import torch\n\n\ndef test_it():\n    x = torch.ones(8, device="cuda")\n    torch.testing.assert_close(run(x), ref(x), rtol=0, atol=0)\n',
    good='import torch\n\n\ndef test_it():\n    x = torch.ones(8, device="cuda")\n    torch.testing.assert_close(run(x), ref(x), rtol=1e-2, atol=1e-2)\n',
    needs=("equal", "allclose", "assert_close", ".all("),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not is_test_file(f.path) or not re.search(r"cuda|triton|kernel", f.text) and "torch" not in f.text:
        return
    for call in f.nodes(ast.Call):
        scope = f.function(call)
        if scope is not None and not re.search(r"cuda|gpu|device|triton|kernel", f.source(scope), re.I):
            continue  # a comparison that stays on the CPU
        last = call.func.attr if isinstance(call.func, ast.Attribute) else f.call_name(call).rpartition(".")[2]
        if last in ("assert_close", "allclose", "assert_allclose"):
            atol, rtol = (_number(keyword(call, n)) for n in ("atol", "rtol"))
            if atol is not None and atol <= 1e-6 and (rtol is None or rtol <= 1e-6):
                yield hit(call, expr=f.source(call)[:100], group="tests")


def _number(node: ast.AST | None) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return None
