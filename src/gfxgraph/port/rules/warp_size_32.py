"""Warp size fixed at 32."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX301",
    code="warp-size-32",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "Warp size fixed at 32",
        "{expr}",
        "The wavefront is 64 lanes wide on gfx9 parts (gfx900 to gfx950). On gfx10, gfx11, gfx12 and gfx1250 it is 32, and the number is right.",
        "Device code: warpSize or a macro by architecture; host code: ask the device (at::cuda::warp_size()).",
    ),
    zh=Text(
        "warp 大小写死为 32",
        "{expr}",
        "gfx9 系列（gfx900 至 gfx950）的 wavefront 宽 64；gfx10、gfx11、gfx12 与 gfx1250 为 32，该数字是对的。",
        "设备代码用 warpSize 或按架构的宏；主机代码询问设备（at::cuda::warp_size()）。",
    ),
    path="reduce.cuh",
    bad="#define WARP_SIZE 32\n",
    good="constexpr int TILE_SIZE = 32;\n",
    needs=("warp", "lane", "wave"),
)
_NAME = re.compile(
    r"(?i)(k_?)?(threads?_?per_?)?warp_?(size|threads|width|len|length|dim|sz)?|\w*_?warp_?size\w*|(k|num_?)?threads?_?per_?warp|(k|num_?)?lanes?(_?per_?warp)?|n_?lanes|wave(front)?_?size|kWarp\w*Size|C10_WARP_SIZE|WARPSZ"
)


# What the nodes below can only say where a name and a 32 stand in one statement.
_MAY = re.compile(r"(?i)(?:warp|lane|wave|thread_block_tile|tiled_partition)[^;]{0,300}?\b32")
_RETURNED = re.compile(r"\b(\w+)\s*\(\s*(?:void)?\s*\)[\w\s]*\{\s*(return\s+32[uU]?\s*;)")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for name, takes, body, line in f.defines():
        if not takes and _NAME.fullmatch(name) and re.fullmatch(r"\(?\s*32[uU]?\s*\)?", body):
            yield line_hit(line, expr=f"#define {name} {body}")
    if not _MAY.search(f.code):
        return  # without parsing
    for n in f.nodes("init_declarator"):
        name = f.source(n.child_by_field_name("declarator"))
        value = f.source(n.child_by_field_name("value")).strip("{} ()")
        if _NAME.fullmatch(name) and (re.fullmatch(r"32[uU]?", value) or _bounded(value)):
            yield cpp_hit(f, n, expr=f.source(n))
    for found in re.finditer(r"static_assert\s*\(\s*\w*(?i:warp_?size)\w*\s*==\s*32", f.code):
        yield line_hit(f.code.count("\n", 0, found.start()) + 1 + f.offset, expr=found.group())
    for n in f.nodes("field_declaration", "optional_parameter_declaration"):
        match = re.search(r"\b(\w+)\s*=\s*\{?32[uU]?\}?\s*;?$", f.source(n))
        if match and _NAME.fullmatch(match.group(1)):
            yield cpp_hit(f, n, expr=f.source(n))
    for n in f.nodes("template_function", "template_type"):
        text = f.source(n)
        if re.match(
            r"(\w+::)*(tiled_partition|thread_block_tile)<",
            text,
        ) and re.search(r"[<,]\s*32\s*[,>]", text):
            yield cpp_hit(f, n, expr=text[:80])
    for found in _RETURNED.finditer(f.code):
        if _NAME.fullmatch(found.group(1)):
            yield line_hit(f.code.count("\n", 0, found.start(2)) + 1 + f.offset, expr=f"{found.group(1)}() is 32")
    for name, line, column in f.idents_like(r"tiled_partition|thread_block_tile"):
        row = f.line_text(line)
        if re.match(r"\s*<\s*32\s*>", row[column + len(name) :]):
            yield line_hit(line, column, expr=f"{name}<32>")


def _bounded(value: str) -> bool:
    """``std::min(kNThreads, 32)``, ``n < 32 ? n : 32``: a warp size that never passes 32."""
    return bool(re.search(r"(?i)\bmin\w*(<\w+>)?\s*\([^;?]{0,60}\b32[uU]?\b|\?[^;?]{0,60}\b32[uU]?\b", value))


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    return lanes.constant(f, hit.line)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
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
