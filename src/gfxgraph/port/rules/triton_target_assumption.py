"""A Triton launcher assumes NVIDIA's target."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX323",
    code="triton-target-assumption",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "A Triton launcher assumes NVIDIA's target",
        "{expr}",
        "On HIP the target's arch is a name, not a number, and a warp has 64 or 32 lanes.",
        "target.warp_size for lanes; test target.backend before comparing arch.",
    ),
    zh=Text(
        "Triton 启动代码假定目标为 NVIDIA",
        "{expr}",
        "HIP 上 target.arch 是名称而非数字，warp 有 64 或 32 个 lane。",
        "lane 数用 target.warp_size；比较 arch 之前先判断 target.backend。",
    ),
    bad="def threads(num_warps):\n    return num_warps * 32\n",
    good="def threads(num_warps, target):\n    return num_warps * target.warp_size\n",
    needs=("num_warps", "get_current_target", ".arch", "triton"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
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
