"""Kernels written in Triton: warps."""

from __future__ import annotations

from gfxgraph_port.rule_api import *

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


def warp_size_32_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    named = re.compile(
        r"(?i)_?(threads_per_)?warp_?size|threads_per_warp|wave(front)?_size|lanes_per_warp|num_threads_per_warp"
    )
    for node in f.nodes(ast.Assign, ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            name = getattr(target, "id", "") or getattr(target, "attr", "")  # of a variable, of an attribute
            if named.fullmatch(name) and int_of(node.value) == 32:
                yield hit(node, expr=f.source(node))
    for function in f.nodes(ast.FunctionDef):
        for arg, value in defaults(function):
            if named.fullmatch(arg.arg) and int_of(value) == 32:
                yield hit(value, expr=f"{arg.arg}=32")
    for kw in f.nodes(ast.keyword):
        if kw.arg and named.fullmatch(kw.arg) and int_of(kw.value) == 32:
            yield hit(kw.value, expr=f"{kw.arg}=32")
