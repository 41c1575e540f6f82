"""Tests that vanish on AMD."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX805",
    code="tests-skip-on-amd",
    severity=Severity.LOW,
    phase=8,
    tier="extended",
    confidence="documented",
    en=Text(
        "Tests that vanish on AMD",
        "{expr}",
        "The run is green with nothing tested.",
        "Count the skips in the verification report; gfxgraph port verify does.",
    ),
    zh=Text(
        "在 AMD 上消失的测试",
        "{expr}",
        "结果全绿，却什么也没测。",
        "在验证报告中统计跳过数；gfxgraph port verify 会统计。",
    ),
    path="test_x.py",
    bad='import pytest\nimport torch\n\n\n@pytest.mark.skipif("NVIDIA" not in vendor(), reason="vendor")\ndef test_it():\n    pass\n',
    good='import pytest\n\n\n@pytest.mark.skipif(not has_gpu(), reason="no GPU")\ndef test_it():\n    pass\n',
    needs=("skip",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not is_test_file(f.path):
        return
    for function in f.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        for decorator in function.decorator_list:
            text = f.source(decorator)
            if re.search(r"(?i)skip_?if_?(rocm|hip|amd)|NVIDIA", text) and re.search(r"(?i)skip", text):
                yield Hit(decorator.lineno, decorator.col_offset, decorator, {"expr": text[:80]})
