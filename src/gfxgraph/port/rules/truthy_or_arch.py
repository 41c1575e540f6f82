"""A string before `or` makes the test always true."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX106",
    code="truthy-or-arch",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SAFE,
    en=Text(
        "A string before `or` makes the test always true",
        "{expr}",
        "A non-empty string is true by itself, so the part after `or` never counts.",
        "any(a in name for a in (...)). Under a ROCm guard the rewrite is applied by default; elsewhere it changes NVIDIA's value too and is only suggested.",
    ),
    zh=Text(
        "`or` 前的字符串使判断恒为真",
        "{expr}",
        "非空字符串本身即为真，`or` 之后的部分永不起作用。",
        "改为 any(a in name for a in (...))。位于 ROCm 保护之内时默认改写；否则会同时改变 NVIDIA 的值，只作建议。",
    ),
    bad='def is_navi4(arch):\n    return "gfx1200" or "gfx1201" in arch\n',
    good='def is_navi4(arch):\n    return any(a in arch for a in ("gfx1200", "gfx1201"))\n',
    needs=(" or ",),
)


_ABOUT = re.compile(
    r"(?i)gfx|arch|cuda|rocm|\bhip|gpu|navi|[rc]dna|\bmi\d|nvidia|\bamd|device|vendor|\bsm_?\d|platform_name"
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.BoolOp):
        if not isinstance(node.op, ast.Or) or not text_of(node.values[0]):
            continue
        if not _ABOUT.search(f.source(node)):
            continue
        if any(isinstance(v, ast.Compare) and isinstance(v.ops[0], ast.In) for v in node.values[1:]):
            yield hit(node, expr=f.source(node)[:120])


def fix_python(node: ast.BoolOp, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    compare = node.values[-1]
    words = [text_of(v) or "" for v in node.values[:-1]]
    if not isinstance(compare, ast.Compare) or not all(words) or not text_of(compare.left):
        return EditRefusal(node.lineno, "not of the form 'a' or 'b' in name")
    if ctx.guards is None or ctx.guards.exclusion(node, NVIDIA) is None:
        return EditRefusal(node.lineno, "not under a ROCm guard: the rewrite would change NVIDIA's value too")
    listed = ", ".join(repr(w) for w in [*words, text_of(compare.left)])
    return Edit(node.lineno, node.col_offset, f"any(a in {f.source(compare.comparators[0])} for a in ({listed}))")
