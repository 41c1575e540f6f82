"""Attn_implementation is fixed to flash attention."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX505",
    code="hf-attn-hardcoded",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "attn_implementation is fixed to flash attention",
        "{expr}",
        "It needs the flash_attn package when the model loads; on ROCm that has to be built first.",
        '"sdpa" where the package is missing.',
    ),
    zh=Text(
        "attn_implementation 写死为 flash attention",
        "{expr}",
        "加载模型时需要 flash_attn 包，而 ROCm 上须先自行构建。",
        '缺少该包时用 "sdpa"。',
    ),
    bad='model = AutoModel.from_pretrained("x", attn_implementation="flash_attention_2")\n',
    good='model = AutoModel.from_pretrained("x", attn_implementation="sdpa")\n',
    needs=("flash_attention_",),
)
_VALUES = ("flash_attention_2", "flash_attention_3")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for kw in f.nodes(ast.keyword):
        if kw.arg in ("attn_implementation", "_attn_implementation") and text_of(kw.value) in _VALUES:
            yield hit(kw.value, expr=f"{kw.arg}={f.source(kw.value)}")
    for node in f.nodes(ast.Assign):
        for target in node.targets:
            name = (
                target.attr
                if isinstance(target, ast.Attribute)
                else target.id
                if isinstance(target, ast.Name)
                else text_of(target.slice)
                if isinstance(target, ast.Subscript)
                else ""
            )
            if name in ("attn_implementation", "_attn_implementation") and text_of(node.value) in _VALUES:
                yield hit(node, expr=f.source(node)[:80])
    for function in f.nodes(ast.FunctionDef):
        for arg, value in defaults(function):
            if arg.arg in ("attn_implementation", "_attn_implementation") and text_of(value) in _VALUES:
                yield hit(value, expr=f"{arg.arg}={f.source(value)}")
