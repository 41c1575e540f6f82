"""A member of __half2 is used as a half."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX213",
    code="half2-members",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    en=Text(
        "A member of __half2 is used as a half",
        "{expr}",
        "In HIP the members may be raw _Float16 or ushort: an ambiguous overload, or the wrong bits.",
        "__low2half and __high2half work on both.",
    ),
    zh=Text(
        "把 __half2 的成员当作 half 使用",
        "{expr}",
        "HIP 中成员可能是原始的 _Float16 或 ushort：重载不明确，或位模式错误。",
        "__low2half 与 __high2half 两边都可用。",
    ),
    path="h.cu",
    bad="__device__ float f(half2 v) { return __half2float(v.x); }\n",
    good="__device__ float f(half2 v, float2 w) { return __half2float(__low2half(v)) + w.x; }\n",
    needs=("half2", "bfloat162"),
)
_TYPES = re.compile(r"\b(__half2|half2|__nv_bfloat162|nv_bfloat162)\b")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    declared: dict[int, set[str]] = {}
    for n in f.nodes("declaration", "parameter_declaration"):
        text = f.source(n)
        if not _TYPES.search(text.split("=")[0].split("(")[0]):
            continue
        function = f.function(n)
        key = -1 if function is None else function.start_byte
        for name in re.findall(r"[*&\s,]([A-Za-z_]\w*)\s*(?:=|,|$|\[|;|\()", text + ";"):
            declared.setdefault(key, set()).add(name)
    for n in f.nodes("field_expression"):
        text = f.source(n)
        match = re.fullmatch(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\.(x|y)", text)
        if not match:
            continue
        function = f.function(n)
        key = -1 if function is None else function.start_byte
        if match.group(1) not in declared.get(key, ()):
            continue
        up = n.parent
        if up is not None and up.type == "assignment_expression" and up.child_by_field_name("left") == n:
            continue
        yield replace(cpp_hit(f, n, expr=text), group="members")
