"""PTX in Triton's inline assembly."""

from gfxgraph.port.rule_api import *
from gfxgraph.port.rules.inline_ptx import PTX

RULE = Rule(
    id="GFX320",
    code="triton-inline-ptx",
    severity=Severity.HIGH,
    phase=3,
    confidence="documented",
    en=Text(
        "PTX in Triton's inline assembly",
        "{text}",
        "The AMD back end cannot parse it.",
        "Branch on a constexpr taken from the target, and write plain tl operations for AMD.",
    ),
    zh=Text(
        "Triton 内联汇编中的 PTX",
        "{text}",
        "AMD 后端无法解析。",
        "用取自目标的 constexpr 分支，AMD 一侧写普通 tl 运算。",
    ),
    bad='import triton.language as tl\n\n\ndef f(x):\n    return tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], tl.int32, True, 1)\n',
    good='import triton.language as tl\n\n\ndef f(x):\n    return tl.inline_asm_elementwise("v_mov_b32 $0, $1", "=v,v", [x], tl.int32, True, 1)\n',
    needs=("inline_asm_elementwise",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("*.inline_asm_elementwise"):
        asm, constraints = argument(call, 0, "asm"), text_of(argument(call, 1, "constraints")) or ""
        if isinstance(asm, ast.Name):
            bound = f.lookup(asm.id, asm)
            asm = bound[0] if bound and isinstance(bound[0], ast.expr) else asm
        text = text_of(asm) or ""
        if PTX.search(text) or re.search(r"=[rfhl]\b|=[rfhl],", constraints):
            yield hit(call, text=" ".join(text.split())[:80] or constraints)
