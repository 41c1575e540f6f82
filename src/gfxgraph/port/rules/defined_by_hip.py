"""A function or operator that HIP's own headers define already."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX229",
    code="defined-by-hip",
    severity=Severity.MEDIUM,
    phase=2,
    fix=Fix.SUGGEST,
    confidence="reported",
    en=Text(
        "A function or operator that HIP's own headers define already",
        "{name}",
        "HIP's vector types come with arithmetic operators, and atomicAdd for double and half, atomicMax and atomicMin for float, rsqrt and their like exist: a second definition is ambiguous or a redefinition.",
        "Keep the project's own for CUDA only (#if !defined(USE_ROCM)), or give it a name of its own.",
    ),
    zh=Text(
        "HIP 自带头文件已经定义的函数或运算符",
        "{name}",
        "HIP 的向量类型自带算术运算符，double 与 half 的 atomicAdd、float 的 atomicMax/atomicMin、rsqrt 等也已存在：再次定义会产生歧义或重定义。",
        "项目自己的定义只留给 CUDA（#if !defined(USE_ROCM)），或另起名称。",
    ),
    path="float_math.cuh",
    bad="__device__ inline float2 operator+(const float2& a, const float2& b) {\n  return make_float2(a.x + b.x, a.y + b.y);\n}\n",
    good="__device__ inline float2 add2(const float2& a, const float2& b) {\n  return make_float2(a.x + b.x, a.y + b.y);\n}\n",
    needs=("__device__", "operator", "device", "typedef", "struct"),
)
_VECTOR = r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]"
_OPERATOR = re.compile(
    rf"\b(operator\s*(?:[-+*/]=?|==|!=))\s*\(\s*(?:const\s+)?(?:{_VECTOR}\b[^)]*|[^),]*,\s*(?:const\s+)?{_VECTOR}\b[^)]*)\)"
)
_FUNCTION = re.compile(
    r"\b(?:float|double|int|unsigned|void|auto|half|__half2?|[A-Z]|scalar_t|[uU]?int\d*(?:_t)?|unsigned\s+(?:int|long\s+long))\s*&?\s+"
    r"(atomic(?:Add|Sub|Max|Min|Exch|CAS|And|Or|Xor|Inc|Dec)|r?sqrtf?|rcbrt|exp10f?|sincosf?|rhypot|norm3df?|erfinvf?|normcdff?|max|min|clamp|lerp|__ldg|__shfl\w*)\s*\("
)


_TYPE = re.compile(
    rf"\btypedef\s+struct\s*\w*\s*\{{[^{{}}]*\}}\s*({_VECTOR}|dim3)\s*;|\bstruct\s+(?:__align__\(\d+\)\s*)?({_VECTOR}|dim3)\s*\{{|"
    r"extern\s+\"C\"\s+__device__\s+void\s+(__assert_fail)\b"
)


_MAY = (
    "dim3",
    "__assert_fail",
    *(f"{t}{n}" for t in ("char", "short", "int", "long", "float", "double") for n in "1234"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line([*_all(f), *_types(f)])


def _types(f: CppFile) -> Iterator[Hit]:
    """Types and functions that hip/hip_vector_types.h and the device library bring."""
    for found in _TYPE.finditer(f.code) if any(word in f.code for word in _MAY) else ():
        line = f.code.count("\n", 0, found.start()) + 1 + f.offset
        yield line_hit(line, name=next(g for g in found.groups() if g))


def _all(f: CppFile) -> Iterator[Hit]:
    code = f.code.replace("\\\n", " ")
    if not (("operator" in code and _OPERATOR.search(code)) or ("__device__" in code and _FUNCTION.search(code))):
        return  # without parsing
    for n in f.nodes("function_definition"):
        body = n.child_by_field_name("body")
        if body is None:
            continue
        head = f.source(n)[: max(0, body.start_byte - n.start_byte)]
        device = re.search(r"__device__|(?i:(?<!\w)\w*(device|HD|inline_hd)\w*\s)", head)
        found = _OPERATOR.search(head) or (_FUNCTION.search(head) if "__device__" in head else None)
        if found and device and "::" not in head[: found.start()].split("(")[0]:
            up = f.enclosing(n, "namespace_definition", "class_specifier", "struct_specifier")
            if up is not None and found.re is _FUNCTION:
                continue  # a name in a namespace or class of its own does not clash
            yield line_hit(
                f.line(n), f.column(n), name=found.group(1), end_line=f.line(n) + n.end_point[0] - n.start_point[0]
            )


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal | None:
    """The whole definition goes under a condition."""
    if not hit.end_line:
        return EditRefusal(hit.line, "a type: which of its members are used decides")
    first = hit.line
    while first > 1 and f.line_text(first - 1).lstrip().startswith("template"):
        first -= 1
    lines = [f.line_text(n) for n in range(first, hit.end_line + 1)]
    if any(line.rstrip().endswith("\\") for line in lines):
        return EditRefusal(hit.line, "inside a macro")
    text = "\n".join(["#if !defined(__HIP_PLATFORM_AMD__)", *lines, "#endif"])
    return Edit(
        first, 0, text, last_line=hit.end_line, needs="HIP's own has the same meaning, as it has for the vector types"
    )
