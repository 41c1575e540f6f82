"""A lane mask is kept in 32 bits."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX304",
    code="lane-mask-32bit-variable",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "A lane mask is kept in 32 bits",
        "{expr}",
        "The upper 32 lanes are dropped, silently.",
        "unsigned long long or uint64_t, or a lane-mask type chosen by platform.",
    ),
    zh=Text(
        "lane 掩码保存在 32 位变量中",
        "{expr}",
        "高 32 个 lane 会被悄悄丢弃。",
        "使用 unsigned long long 或 uint64_t，或按平台选择的掩码类型。",
    ),
    path="ballot.cu",
    bad="__device__ bool f(bool p) { unsigned m = __ballot(p); return m != 0; }\n",
    good="__device__ bool f(bool p) { auto m = __ballot(p); return m != 0; }\n",
    needs=("ballot", "activemask", "match_"),
)
_SOURCE = re.compile(r"\b__(ballot(_sync)?|activemask|match_(any|all)(_sync)?)\s*\(")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("declaration"):
        text = f.source(n)
        value = re.search(r"=\s*(.*)", text)
        if (
            value
            and _SOURCE.match(value.group(1))
            and re.match(r"(const\s+)?(unsigned(\s+int)?|uint32_t|int|uint|int32_t)\s+(const\s+)?\w", text)
        ):
            if not re.match(r"(const\s+)?unsigned\s+long", text):
                yield cpp_hit(f, n, expr=text[:80])


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    return lanes.lane_mask(f, hit.line)
