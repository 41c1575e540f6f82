"""Triton num_warps beyond the workgroup limit."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX318",
    code="triton-num-warps",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SAFE,
    archs=WAVE64,
    en=Text(
        "Triton num_warps beyond the workgroup limit",
        "{expr}",
        "Threads are num_warps times the wavefront: 32 * 64 = 2048 is over the limit of 1024, and the launch fails with an invalid argument. 16 is the most on wave64; 32 is legal on wave32.",
        "16 where the wavefront is 64, 32 elsewhere; is_hip() alone holds RDNA back. The helper must not ask the device at import.",
    ),
    zh=Text(
        "Triton 的 num_warps 超出工作组上限",
        "{expr}",
        "线程数等于 num_warps 乘 wavefront 宽度：32 * 64 = 2048，超过 1024 的上限，启动会报 invalid argument。wave64 上最多 16；wave32 上 32 是合法的。",
        "wavefront 为 64 时用 16，其余用 32；只判断 is_hip() 会限制 RDNA。辅助函数不得在导入时询问设备。",
    ),
    bad='import triton\n\nCONFIGS = [triton.Config({"B": 64}, num_warps=32)]\n',
    good='import triton\n\nCONFIGS = [triton.Config({"B": 64}, num_warps=8)]\n',
    needs=("num_warps",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not re.search(r"\btriton\b|\btl\.", f.text):
        return
    yield from once_a_line(_all(f))


def too_many(node: ast.AST) -> bool:
    value = int_of(node)
    return value is not None and value >= 32


def _all(f: PyFile) -> Iterator[Hit]:
    for kw in f.nodes(ast.keyword):
        if kw.arg == "num_warps":
            if too_many(kw.value):
                yield hit(kw.value, expr=f"num_warps={f.source(kw.value)}")
            elif isinstance(kw.value, ast.Name):
                yield from _from_loop(f, kw.value)
    yield from _assigned(f)
    for mapping in f.nodes(ast.Dict):
        for key, value in zip(mapping.keys, mapping.values):
            if text_of(key) == "num_warps" and too_many(value):
                yield hit(value, expr="num_warps: " + f.source(value))
    yield from _in_functions(f)


def _assigned(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Assign):
        for name in (target.id for target in node.targets if isinstance(target, ast.Name)):
            if name in ("num_warps", "NUM_WARPS", "nwarps") and too_many(node.value):
                yield hit(node.value, expr=f.source(node))
            elif re.search(r"(?i)(num_?warps|warps)_?(list|options|choices|configs?)?$", name):
                yield from _in_list(node.value)


def _in_functions(f: PyFile) -> Iterator[Hit]:
    """What a function that is named for it returns, and defaults."""
    for function in f.nodes(ast.FunctionDef):
        if re.search(r"num_?warps|calculate_settings", function.name):
            for inner in ast.walk(function):
                if isinstance(inner, ast.Return) and inner.value is not None and too_many(inner.value):
                    yield hit(inner.value, expr=f.source(inner))
        for arg, value in defaults(function):
            if arg.arg == "num_warps" and too_many(value):
                yield hit(value, expr=f"num_warps={f.source(value)}")


def _in_list(value: ast.AST) -> Iterator[Hit]:
    if isinstance(value, ast.List | ast.Tuple):
        for element in value.elts:
            if too_many(element):
                yield hit(element, expr="32 among the warps to try")


def _from_loop(f: PyFile, name: ast.Name) -> Iterator[Hit]:
    """``for num_warps in [4, 32]`` and comprehensions of that form."""
    for up in f.ancestors(name):
        loops = (
            up.generators
            if isinstance(up, ast.ListComp | ast.GeneratorExp)
            else [up]
            if isinstance(up, ast.For)
            else []
        )
        for loop in loops:
            if isinstance(loop.target, ast.Name) and loop.target.id == name.id:
                iterable = loop.iter
                if isinstance(iterable, ast.Name):
                    for bound in f.lookup(iterable.id, iterable):
                        yield from _in_list(bound)
                else:
                    yield from _in_list(iterable)


def fix_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if f.at_import(node):
        return EditRefusal(node.lineno, "runs at import, where no fix may ask the device for its wavefront")
    if int_of(node) is None or not torch_is_bound(f.tree, node, at_import=False):
        return EditRefusal(node.lineno, "torch is not imported at the top of this file")
    wave = "torch.cuda.get_device_properties(torch.cuda.current_device()).warp_size"
    return Edit(node.lineno, node.col_offset, f"(16 if {ROCM} and {wave} == 64 else {{old}})")
