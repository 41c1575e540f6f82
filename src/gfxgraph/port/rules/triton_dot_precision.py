"""Tl.dot asks for TF32."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX325",
    code="triton-dot-precision",
    severity=Severity.INFO,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="seed-only",
    en=Text(
        "tl.dot asks for TF32",
        "{expr}",
        "tf32x3 is NVIDIA's, tf32 exists on gfx942; elsewhere the result is plain fp32.",
        'Leave it unset or "ieee" on ROCm.',
    ),
    zh=Text(
        "tl.dot 要求 TF32",
        "{expr}",
        "tf32x3 只属于 NVIDIA，tf32 存在于 gfx942；其余得到普通 fp32。",
        'ROCm 上不设置或设为 "ieee"。',
    ),
    bad='import triton.language as tl\n\n\ndef f(a, b):\n    return tl.dot(a, b, input_precision="tf32x3")\n',
    good="import triton.language as tl\n\n\ndef f(a, b):\n    return tl.dot(a, b, allow_tf32=False)\n",
    needs=("input_precision", "allow_tf32"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("triton.language.dot", "tl.dot"):
        for kw in call.keywords:
            if (kw.arg == "input_precision" and text_of(kw.value) in ("tf32", "tf32x3")) or (
                kw.arg == "allow_tf32" and is_true(kw.value)
            ):
                yield hit(kw.value, expr=f"{kw.arg}={f.source(kw.value)}")
