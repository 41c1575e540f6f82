"""A shuffle tree starts at 16."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX306",
    code="reduction-from-16",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "A shuffle tree starts at 16",
        "{expr}",
        "It reduces 32 of 64 lanes: each half keeps a partial result of its own.",
        "Start at warpSize/2, or pass the width 32 on purpose.",
    ),
    zh=Text(
        "shuffle 归约从 16 开始",
        "{expr}",
        "只归约 64 个 lane 中的 32 个：两半各自保留部分结果。",
        "从 warpSize/2 开始，或有意传入宽度 32。",
    ),
    path="tree.cu",
    bad="__device__ float f(float v) {\n  for (int o = 16; o > 0; o /= 2) v += __shfl_down(v, o);\n  return v;\n}\n",
    good="__device__ float f(float v) {\n  for (int o = warpSize / 2; o > 0; o /= 2) v += __shfl_down(v, o);\n  return v;\n}\n",
    needs=("shfl",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
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
