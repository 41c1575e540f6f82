"""The grid grows with a 64-bit size and has no cap."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX316",
    code="grid-total-threads",
    severity=Severity.MEDIUM,
    phase=3,
    fix=Fix.SUGGEST,
    en=Text(
        "The grid grows with a 64-bit size and has no cap",
        "{expr}",
        "HIP refuses a launch whose gridDim times blockDim reaches 2^32 in a dimension; CUDA limits the blocks alone.",
        "A grid-stride loop with a cap on ROCm.",
    ),
    zh=Text(
        "网格随 64 位大小增长且没有上限",
        "{expr}",
        "HIP 拒绝某一维 gridDim 乘 blockDim 达到 2^32 的启动；CUDA 只限制块数。",
        "在 ROCm 上使用带上限的 grid-stride 循环。",
    ),
    path="grid.cu",
    bad="void f(int64_t n) { int64_t blocks = (n + 255) / 256; k<<<blocks, 256>>>(n); }\n",
    good="void f(int64_t n) { int64_t blocks = std::min<int64_t>((n + 255) / 256, 65535); k<<<blocks, 256>>>(n); }\n",
    needs=("<<<",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("kernel_call_syntax"):
        grid = f.source(n.named_children[0]) if n.named_children else ""
        name = re.fullmatch(r"[A-Za-z_]\w*", grid)
        function = f.function(n)
        if name is None or function is None:
            continue
        text = (function.text or b"").decode("utf-8", "replace")
        match = re.search(
            rf"\b(?:int64_t|size_t|uint64_t|long long)\s+(?:const\s+)?{re.escape(grid)}\s*=\s*([^;]+);", text
        )
        if (
            match
            and not re.search(r"\bmin\b|::min|MIN\(|cap|max_?(grid|block)|clamp", match.group(1), re.I)
            and not re.search(rf"\b{re.escape(grid)}\s*=\s*[^;]*min", text)
        ):
            yield cpp_hit(f, n, expr=f"{grid} = {match.group(1)[:60]}")
