"""A 32-bit bit intrinsic on a lane mask."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX305",
    code="popc-on-ballot",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    confidence="documented",
    en=Text(
        "A 32-bit bit intrinsic on a lane mask",
        "{expr}",
        "It counts or searches only the lower 32 lanes.",
        "__popcll, __ffsll, __clzll, __brevll.",
    ),
    zh=Text(
        "对 lane 掩码使用 32 位位操作",
        "{expr}",
        "只会统计或查找低 32 个 lane。",
        "使用 __popcll、__ffsll、__clzll、__brevll。",
    ),
    path="popc.cu",
    bad="__device__ int f(bool p) { return __popc(__ballot(p)); }\n",
    good="__device__ int f(unsigned w) { return __popc(w); }\n",
    needs=("__popc", "__ffs", "__clz", "__brev", "__fns"),
)
_SOURCE = re.compile(r"__(ballot(_sync)?|activemask|match_(any|all)(_sync)?)\s*\(")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("__popc", "__ffs", "__clz", "__brev", "__fns"):
        if not call.texts:
            continue
        text = call.texts[0]
        if _SOURCE.search(text) or _bound(f, call.node, text):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])


def _bound(f: CppFile, node: object, text: str) -> bool:
    from tree_sitter import Node

    match = re.match(r"[A-Za-z_]\w*", text)
    function = f.function(node) if isinstance(node, Node) else None
    if match is None or function is None:
        return False
    body = (function.text or b"").decode("utf-8", "replace")
    return bool(re.search(rf"\b{re.escape(match.group())}\s*=\s*__(ballot|activemask|match_)", body))
