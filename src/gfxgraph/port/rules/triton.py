"""Kernels written in Triton: warps, stages, assembly."""

from __future__ import annotations

from gfxgraph.port.rule_api import *
from gfxgraph.port.rules.translation import PTX

_WARPS = re.compile(
    r"(?i)(?:n|num)_?warps(?:_(?:list|options|choices|configs?))?|warps_?(?:list|options|choices)|calculate_settings"
)


def triton_num_warps(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant) if re.search(r"\btriton\b|\btl\.", f.text) else ():
        if (int_of(node) or 0) >= 32 and _WARPS.fullmatch(_purpose(f, node)):
            yield hit(node, expr=f"num_warps={f.source(node)}")


def _purpose(f: PyFile, node: ast.AST) -> str:
    """The name that a constant goes to, alone or in a list."""
    child, up = node, f.parent(node)
    while isinstance(up, ast.List | ast.Tuple):
        child, up = up, f.parent(up)
    match up:
        case (
            ast.keyword(arg=str(name))
            | ast.For(target=ast.Name(id=name))
            | ast.comprehension(target=ast.Name(id=name))
        ):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case ast.Dict():
            return text_of(next((k for k, v in zip(up.keys, up.values) if v is child), None)) or ""
        case ast.arguments():
            owner = f.parent(up)
            pairs = defaults(owner) if isinstance(owner, ast.FunctionDef) else ()
            return next((arg.arg for arg, value in pairs if value is child), "")
        case ast.Return():
            function = f.function(up)
            return function.name if function is not None else ""
    return ""


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


def triton_target_assumption(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult):
            for a, b in ((node.left, node.right), (node.right, node.left)):
                named = isinstance(a, ast.Name | ast.Attribute) and re.search(
                    r"(?i)num_?warps$|n_?warps$", f.source(a)
                )
                if named and int_of(b) == 32:
                    yield hit(node, expr=f.source(node))
    for call in f.calls("*.GPUTarget", "GPUTarget"):
        if call.args and text_of(call.args[0]) == "cuda":
            yield hit(call, expr=f.source(call)[:80])
    for taken in f.nodes(ast.Subscript):
        if text_of(taken.slice) in ("ptx", "cubin", "sass") and re.search(r"\basm$", f.source(taken.value)):
            yield hit(taken, expr=f.source(taken)[:80])
    for site, name in imports_of(
        f, r"triton\.backends\.nvidia|triton\.runtime\.driver\.CudaDriver|triton\.common\.backend"
    ):
        yield hit(site, guarded_by=import_guard(f, site), expr=name)
    for compare in f.nodes(ast.Compare):
        if any(text_of(s) == "cuda" for s in compare.comparators) and re.search(
            r"(?i)target\.backend|get_current_target\(\)\.backend|triton\w*backend", f.source(compare.left)
        ):
            yield hit(compare, expr=f.source(compare)[:80])
    for compare in f.nodes(ast.Compare):
        sides = [compare.left, *compare.comparators]
        for side in sides:
            if (
                isinstance(side, ast.Attribute)
                and side.attr == "arch"
                and "target" in f.source(side.value)
                and any(int_of(s) is not None for s in sides)
            ):
                yield hit(compare, expr=f.source(compare))


def triton_hopper_features(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.nodes(ast.Call):
        last = call.func.attr if isinstance(call.func, ast.Attribute) else f.call_name(call).rpartition(".")[2]
        if re.fullmatch(
            r"make_tensor_descriptor|_experimental_\w*descriptor\w*|TensorDescriptor|create_[12]d_tma_descriptor",
            last,
        ) and ("triton" in f.text or not last == "TensorDescriptor"):
            yield hit(call, expr=f.source(call)[:80])
        for kw in call.keywords:
            if (kw.arg == "warp_specialize" and is_true(kw.value)) or kw.arg in (
                "num_consumer_groups",
                "num_buffers_warp_spec",
            ):
                if int_of(kw.value) != 0:
                    yield hit(kw.value, expr=f"{kw.arg}={f.source(kw.value)}")
    for node, name in imports_of(
        f,
        r"triton\.experimental\.gluon\.language\.nvidia|triton\.tools\.tensor_descriptor|triton\.tools\.experimental_descriptor",
    ):
        yield hit(node, guarded_by=import_guard(f, node), expr=name)
