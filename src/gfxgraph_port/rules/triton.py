"""Kernels written in Triton: warps, stages, assembly."""

from __future__ import annotations

from gfxgraph_port.rule_api import *
from gfxgraph_port.rules.translation import PTX

_WARPS = re.compile(
    r"(?i)(?:n|num)_?warps(?:_(?:list|options|choices|configs?))?|warps_?(?:list|options|choices)|calculate_settings"
)


def triton_num_warps(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for given in f.nodes(ast.keyword, ast.Assign) if re.search(r"\btriton\b|\btl\.", f.text) else ():
        target = given.targets[0] if isinstance(given, ast.Assign) else None
        name = given.arg if isinstance(given, ast.keyword) else target.id if isinstance(target, ast.Name) else ""
        values = given.value.elts if isinstance(given.value, ast.List | ast.Tuple) else [given.value]
        for node in values if _WARPS.fullmatch(name or "") else ():
            if (int_of(node) or 0) >= 32:
                yield hit(node, expr=f"num_warps={f.source(node)}")


def fix_triton_num_warps(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if f.at_import(node):
        return EditRefusal(node.lineno, "runs at import, where no fix may ask the device for its wavefront")
    if int_of(node) is None or not torch_is_bound(f.tree, node, at_import=False):
        return EditRefusal(node.lineno, "torch is not imported at the top of this file")
    wave = "torch.cuda.get_device_properties(torch.cuda.current_device()).warp_size"
    return edit_of(node, f"(16 if {ROCM} and {wave} == 64 else {{old}})")


def triton_inline_ptx(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("*.inline_asm_elementwise"):
        asm, constraints = argument(call, 0, "asm"), text_of(argument(call, 1, "constraints")) or ""
        if isinstance(asm, ast.Name):
            bound = f.lookup(asm.id, asm)
            asm = bound[0] if bound and isinstance(bound[0], ast.expr) else asm
        text = text_of(asm) or ""
        if PTX.search(text) or re.search(r"=[rfhl]\b|=[rfhl],", constraints):
            yield hit(call, text=" ".join(text.split())[:80] or constraints)


def warp_size_32_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    named = re.compile(
        r"(?i)_?(threads_per_)?warp_?size|threads_per_warp|wave(front)?_size|lanes_per_warp|num_threads_per_warp"
    )
    for node in f.nodes(ast.Assign, ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            name = (
                target.id
                if isinstance(target, ast.Name)
                else target.attr
                if isinstance(target, ast.Attribute)
                else ""
            )
            if named.fullmatch(name) and int_of(node.value) == 32:
                yield hit(node, expr=f.source(node))
    for function in f.nodes(ast.FunctionDef):
        for arg, value in defaults(function):
            if named.fullmatch(arg.arg) and int_of(value) == 32:
                yield hit(value, expr=f"{arg.arg}=32")
    for kw in f.nodes(ast.keyword):
        if kw.arg and named.fullmatch(kw.arg) and int_of(kw.value) == 32:
            yield hit(kw.value, expr=f"{kw.arg}=32")
