"""Code that relies on 32 lanes: widths, masks, shuffles, and their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfxgraph.port.rule_api import *

if TYPE_CHECKING:
    from tree_sitter import Node

_NAME = re.compile(
    r"(?i)(k_?)?(threads?_?per_?)?warp_?(size|threads|width|len|length|dim|sz)?|\w*_?warp_?size\w*|(k|num_?)?threads?_?per_?warp|(k|num_?)?lanes?(_?per_?warp)?|n_?lanes|wave(front)?_?size|kWarp\w*Size|C10_WARP_SIZE|WARPSZ"
)
# What the nodes below can only say where a name and a 32 stand in one statement.
_MAY = re.compile(r"(?i)(?:warp|lane|wave|thread_block_tile|tiled_partition)[^;]{0,300}?\b32")
_RETURNED = re.compile(r"\b(\w+)\s*\(\s*(?:void)?\s*\)[\w\s]*\{\s*(return\s+32[uU]?\s*;)")


def warp_size_32_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
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


def fix_warp_size_32(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    return lanes.constant(f, hit.line)


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


def lane_arithmetic(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if may_exchange(f.text):
        yield from _all(f)


def _all(f: CppFile) -> Iterator[Hit]:
    """A 32 that divides a tile or a bank is no warp: only code whose lanes exchange values is looked at."""
    for n in f.nodes("binary_expression"):
        operator = f.source(n.child_by_field_name("operator"))
        right = f.source(n.child_by_field_name("right")).strip("()")
        left = n.child_by_field_name("left")
        number = re.sub(r"(?i)(?<=[0-9a-f])u?l*$", "", f.expand(right)) if re.fullmatch(r"\w+", right) else right
        if operator in ("<", "<=", ">", ">=", "==") and number in ("16", "24", "28", "31", "32"):
            if left is not None and re.fullmatch(r"(?i)(my_?)?lane(_?(id|idx|index))?", f.source(left).strip("()")):
                if not exchanges(f, n):
                    continue
                yield cpp_hit(f, n, expr=f.source(n)[:80])
            continue
        wanted = {"&": ("31", "0x1f", "0x1F"), "%": ("32",), "/": ("32",), ">>": ("5",)}.get(operator, ())
        if number not in wanted or not _is_lane(f, left):
            continue
        if right != number and re.fullmatch(r"[A-Za-z_]\w*", right) and not re.search(r"(?i)warp|lane|mask", right):
            continue
        if right != number and re.search(r"(?i)warp.*size|warp_threads", right):
            continue  # the constant itself is reported where it is defined
        if not exchanges(f, n):
            continue
        if f.qualifiers(n) or f.path.endswith((".cu", ".cuh")):
            yield cpp_hit(f, n, expr=f.source(n)[:80])


def _is_lane(f: CppFile, node: Node | None) -> bool:
    if node is None or is_thread_index(f, node):
        return node is not None
    if node.type == "parenthesized_expression" and node.named_children:
        return _is_lane(f, node.named_children[0])
    named = rf"\b{re.escape(f.source(node))}\s*=\s*\(?(?:int\)?\s*)?threadIdx\s*\.\s*[xyz]"
    return node.type == "identifier" and bool(re.search(named, body_of(f, node)))


def sync_mask_32(f: CppFile, ctx: Context) -> Iterator[Hit]:
    known = ctx.project.macros.known
    shims = {name for name, takes, _, _ in f.defines() if takes and re.fullmatch(SYNC_INTRINSICS, name)}
    for call in f.calls_like(SYNC_INTRINSICS + r"|__syncwarp"):
        if not call.texts or call.name in shims or known.get(call.name) == (True, False):
            continue
        mask = call.texts[0]
        if is_full_mask_32(f, mask):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])
        elif re.fullmatch(r"\(?0[xX][0-9a-fA-F]{1,8}[uU]?\)?", mask):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])
        elif re.fullmatch(r"[A-Za-z_]\w*(?:(?:\.|->)\w+)?", mask):
            mask = re.split(r"\.|->", mask)[-1]
            where = _narrow(f, call.node, mask)
            if where or re.fullmatch(
                r"(?i)(k?full_?(warp_?)?mask|all_?lanes|warp_?(full_?)?mask|FINAL_MASK|k?WarpMask|lane_?mask_?all)",
                mask,
            ):
                if known.get(mask) is None:
                    yield cpp_hit(f, call, expr=f.source(call.node)[:80])
            elif not mask.isupper() and not _wide(f, mask):
                yield cpp_hit(f, call, expr=f.source(call.node)[:80], severity=Severity.LOW)
    masks = {re.split(r"\.|->", c.texts[0])[-1] for c in f.calls_like(SYNC_INTRINSICS + r"|__syncwarp") if c.texts}
    for n in f.nodes("init_declarator"):
        name, value = f.source(n.child_by_field_name("declarator")), f.source(n.child_by_field_name("value"))
        if name in masks and is_full_mask_32(f, value):
            yield cpp_hit(f, n, expr=f.source(n)[:80])
    for name, takes, body, line in f.defines():
        if not takes and (name in masks or re.search(r"(?i)mask|lanes", name)) and is_full_mask_32(f, body):
            yield line_hit(line, expr=f"#define {name} {body}")


def _narrow(f: CppFile, node: Node, name: str) -> bool:
    """Whether the mask variable is declared with 32 bits in the same function."""
    text = body_of(f, node)
    declared = rf"\b(unsigned(?: int)?|uint32_t|int|uint)\s+(?:const\s+)?{re.escape(name)}\b"
    return bool(re.search(declared, text) or re.search(rf"{declared}\s*;", f.code))  # a member of its own file


def _wide(f: CppFile, name: str) -> bool:
    """Whether something in the file makes the mask 64 bits wide, or takes it from the device."""
    wide = r"64_t|long long|ull\b|lane_?mask_t|__ballot|__activemask|\bauto\b|template"
    return bool(re.search(rf"(?i)({wide})[^;{{}}]*\b{name}\b|\b{name}\b[^;{{}}]*({wide})", f.code))


_SOURCE = re.compile(r"\b__(ballot(_sync)?|activemask|match_(any|all)(_sync)?)\s*\(")


def popc_on_ballot(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("__popc", "__ffs", "__clz", "__brev", "__fns"):
        if not call.texts:
            continue
        text = call.texts[0]
        if _SOURCE.search(text) or _bound(f, call.node, text):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])


def _bound(f: CppFile, node: Node, text: str) -> bool:
    match = re.match(r"[A-Za-z_]\w*", text)
    return match is not None and bool(
        re.search(rf"\b{re.escape(match.group())}\s*=\s*__(ballot|activemask|match_)", body_of(f, node))
    )


def reduction_from_16(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("for_statement"):
        head = f.source(n.child_by_field_name("initializer"))
        match = re.search(r"=\s*(\(?\s*\w+\s*(?:/\s*2|>>\s*1)?\s*\)?)\s*;?$", head)
        value = match.group(1).strip("() ") if match else ""
        half = re.fullmatch(r"(\w+)\s*(?:/\s*2|>>\s*1)", value)
        if value != "16" and not (half and f.expand(half.group(1)) == "32"):
            continue
        body = f.source(n)
        if re.search(r"__shfl(_down|_xor|_up)?(_sync)?\s*\(", body) and not _has_width(body):
            yield cpp_hit(f, n, expr=body[:90])
    unrolled = [
        c
        for c in f.calls("__shfl_down_sync", "__shfl_xor_sync", "__shfl_down", "__shfl_xor")
        if _offset(c.name, c.texts) == "16"
    ]
    for call in unrolled:
        if f.enclosing(call.node, "for_statement") is None and len(call.texts) <= (
            3 if call.name.endswith("_sync") else 2
        ):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])


def _offset(name: str, texts: list[str]) -> str:
    index = 2 if name.endswith("_sync") else 1
    return texts[index] if len(texts) > index else ""


def _has_width(body: str) -> bool:
    for match in re.finditer(r"__shfl(?:_down|_xor|_up)?(_sync)?\s*\(", body):
        depth, commas, end = 1, 0, match.end()
        while end < len(body) and depth:
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            commas += body[end] == "," and depth == 1
            end += 1
        if commas >= (3 if match.group(1) else 2):
            return True
    return False


_NARROW = re.compile(
    r"\b(threadIdx\s*\.\s*x|tid\w*|thread_?id\w*)\s*<\s*(32|16|8)\b|\b(warp_?id|wid|warp_?idx)\s*==\s*0\b|\(\s*!\s*(warp_?id|wid)\s*\)|\b(threadIdx\s*\.\s*x|tid)\s*/\s*32\s*==\s*0"
)


def partial_warp_shuffle(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("if_statement"):
        condition = f.source(n.child_by_field_name("condition"))
        body = f.source(n.child_by_field_name("consequence"))
        if _NARROW.search(condition) and "warpSize" not in condition and re.search(SYNC_INTRINSICS + r"\s*\(", body):
            yield cpp_hit(f, n, expr=condition[:80])


# A block, or a row of one, of 32 threads; a count rounded up to whole warps.
_DEFAULT = re.compile(r"\bWarp(?:Reduce|Scan)\s*<(?![^;{}]*,\s*\w+\s*>)[^;{}<>]*(?:<[^<>]*>[^<>;]*)?>")


def cub_warp_width(f: CppFile, ctx: Context) -> Iterator[Hit]:
    types = set()
    for number, line in enumerate(f.code.split("\n"), 1):
        if match := _DEFAULT.search(line):
            if alias := re.search(r"\busing\s+(\w+)\s*=|\btypedef\b.*>\s*(\w+)\s*;", line):
                types.add(alias[1] or alias[2])
            yield line_hit(number, match.start(), name=match.group()[:80])
    for name, at, column in f.idents_like("|".join(map(re.escape, sorted(types))) if types else r"(?!)"):
        yield line_hit(at, column, name=name)


def fix_cub_warp_width(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """The width that NVIDIA's default has is named."""
    line = f.line_text(hit.line)
    match = re.search(r"\bWarp(?:Reduce|Scan)\s*<\s*([\w:]+)\s*(>)", line)
    if match is None:
        return EditRefusal(hit.line, "the type is a template of several parts")
    needs = "storage and results are counted by groups of 32 threads, as NVIDIA's default has it"
    return lanes.gated(hit.line, f"{line[: match.start(2)]}, 32>{line[match.end(2) :]}", line, needs)
