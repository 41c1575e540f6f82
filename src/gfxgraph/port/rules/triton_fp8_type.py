"""Triton FP8 type that the architecture lacks."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX322",
    code="triton-fp8-type",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=GFX94,
    confidence="reported",
    en=Text(
        "Triton FP8 type that the architecture lacks",
        "{name}",
        "gfx942 has float8e4b8 and float8e5b16; e4nv was rejected there and is now emulated through fp16, e4b15 is not supported.",
        "Choose the type by architecture.",
    ),
    zh=Text(
        "架构不具备的 Triton FP8 类型",
        "{name}",
        "gfx942 使用 float8e4b8 与 float8e5b16；e4nv 曾被拒绝，如今经 fp16 模拟，e4b15 不受支持。",
        "按架构选择类型。",
    ),
    bad="import triton.language as tl\n\n\ndef f(x):\n    return x.to(tl.float8e4nv)\n",
    good="import triton.language as tl\n\n\ndef f(x):\n    return x.to(tl.float16)\n",
    needs=("float8e4nv", "float8e4b15"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Attribute):
        if node.attr in ("float8e4nv", "float8e4b15", "float8e4b15x4") and not any(
            isinstance(u, ast.Compare) for u in f.ancestors(node)
        ):
            yield hit(node, name=f.source(node))
