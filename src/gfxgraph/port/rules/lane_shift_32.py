"""A 32-bit one is shifted by a lane number."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX311",
    code="lane-shift-32",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    tier="extended",
    confidence="documented",
    en=Text(
        "A 32-bit one is shifted by a lane number",
        "{expr}",
        "Undefined for lanes 32 and up.",
        "1ull << lane, and 64-bit masks throughout.",
    ),
    zh=Text(
        "32 位的 1 按 lane 编号移位",
        "{expr}",
        "lane 大于等于 32 时是未定义行为。",
        "使用 1ull << lane，并全程使用 64 位掩码。",
    ),
    path="shift.cu",
    bad="__device__ unsigned f(int lane) { return (1u << lane) - 1; }\n",
    good="__device__ unsigned f(int bit) { return 1u << bit; }\n",
    needs=("<<",),
)
_MAY = re.compile(r"1[uU]?\s*\)?\s*<<")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if not (("lane" in f.code.lower() or "threadIdx" in f.code) and _MAY.search(f.code)):
        return  # without parsing
    for n in f.nodes("binary_expression"):
        if f.source(n.child_by_field_name("operator")) != "<<":
            continue
        left, right = (
            f.source(n.child_by_field_name("left")).strip("()"),
            f.source(n.child_by_field_name("right")),
        )
        if re.fullmatch(r"1[uU]?|\(?unsigned\)?\s*1", left) and re.search(
            r"(?i)\blane(_?id|_?idx)?\b|threadIdx", right
        ):
            yield cpp_hit(f, n, expr=f.source(n)[:60])
