"""Lane or warp number computed with 31, 32 or 5."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX302",
    code="lane-arithmetic",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=WAVE64,
    en=Text(
        "Lane or warp number computed with 31, 32 or 5",
        "{expr}",
        "On 64-lane wavefronts lanes 32 to 63 fold onto 0 to 31, and a share of the warp counted in lanes is another share.",
        "warpSize - 1 and warpSize, or a compile-time macro by architecture.",
    ),
    zh=Text(
        "用 31、32 或 5 计算 lane 或 warp 编号",
        "{expr}",
        "在 64 宽的 wavefront 上，lane 32 至 63 会折叠到 0 至 31，以 lane 数表示的份额也随之改变。",
        "使用 warpSize - 1 与 warpSize，或按架构的编译期宏。",
    ),
    path="k.cu",
    bad="__global__ void k(float* o) { int lane = threadIdx.x & 31; o[lane] = __shfl_down(o[lane], 1); }\n",
    good="__global__ void k(float* o) { int tx = threadIdx.x % 32, ty = threadIdx.x / 32; o[ty * 32 + tx] = 0; }\n",
    needs=("threadidx", "lane", "tid", "thread"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    if may_exchange(f.text):
        yield from once_a_line(_all(f))


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


def _is_lane(f: CppFile, node: object, depth: int = 3) -> bool:
    from tree_sitter import Node

    if not isinstance(node, Node) or depth == 0:
        return False
    if is_thread_index(f, node):
        return True
    if node.type == "parenthesized_expression" and node.named_children:
        return _is_lane(f, node.named_children[0], depth - 1)
    if node.type == "identifier":
        name = f.source(node)
        function = f.function(node)
        if function is not None:
            text = (function.text or b"").decode("utf-8", "replace")
            return bool(re.search(rf"\b{re.escape(name)}\s*=\s*\(?(?:int\)?\s*)?threadIdx\s*\.\s*[xyz]", text))
    return False
