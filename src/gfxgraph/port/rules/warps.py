"""Warp sizes of 32 that are written down, where the stand-in toolkit does not make them true."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

_NAME = re.compile(
    r"(?i)(k_?)?(threads?_?per_?)?warp_?(size|threads|width|len|length|dim|sz)?|\w*_?warp_?size\w*|(k|num_?)?threads?_?per_?warp|(k|num_?)?lanes?(_?per_?warp)?|n_?lanes|wave(front)?_?size|kWarp\w*Size|C10_WARP_SIZE|WARPSZ"
)
# What the nodes below can only say where a name and a 32 stand in one statement.
_MAY = re.compile(r"(?i)(?:warp|lane|wave|thread_block_tile|tiled_partition)[^;]{0,300}?\b32")
_RETURNED = re.compile(r"\b(\w+)\s*\(\s*(?:void)?\s*\)[\w\s]*\{\s*(return\s+32[uU]?\s*;)")


def warp_size_32_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if not (ctx.project.has_hip_build or f.path.endswith(".hip") or "hip/hip_runtime" in f.text):
        return  # the stand-in toolkit's warps have 32 lanes, and torch extensions take its shuffles
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
        yield line_hit(f.code.count("\n", 0, found.start()) + 1, expr=found.group())
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
            yield line_hit(f.code.count("\n", 0, found.start(2)) + 1, expr=f"{found.group(1)}() is 32")
    for name, line, column in f.idents_like(r"tiled_partition|thread_block_tile"):
        row = f.line_text(line)
        if re.match(r"\s*<\s*32\s*>", row[column + len(name) :]):
            yield line_hit(line, column, expr=f"{name}<32>")


def _bounded(value: str) -> bool:
    """``std::min(kNThreads, 32)``, ``n < 32 ? n : 32``: a warp size that never passes 32."""
    return bool(re.search(r"(?i)\bmin\w*(<\w+>)?\s*\([^;?]{0,60}\b32[uU]?\b|\?[^;?]{0,60}\b32[uU]?\b", value))


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
