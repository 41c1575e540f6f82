"""A constructor, destructor or assignment that only the device has."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX228",
    code="device-only-special-member",
    severity=Severity.LOW,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="reported",
    en=Text(
        "A constructor, destructor or assignment that only the device has",
        "{expr}",
        "nvcc lets host code copy and destroy such a type without calling the member; hipcc is clang, which takes __device__ as part of overload resolution and refuses: no matching host function.",
        "__host__ __device__ on special members of types that both sides hold.",
    ),
    zh=Text(
        "只有设备侧的构造、析构或赋值函数",
        "{expr}",
        "nvcc 允许主机代码复制、销毁这种类型而不调用该成员；hipcc 即 clang，把 __device__ 纳入重载决议，会拒绝：没有可用的主机函数。",
        "两侧都持有的类型，其特殊成员写成 __host__ __device__。",
    ),
    path="info.hpp",
    bad="struct Split {\n  __device__ Split() : gain(0) {}\n  __device__ ~Split() {}\n  float gain;\n};\n",
    good="struct Split {\n  __host__ __device__ Split() : gain(0) {}\n  float gain;\n  __device__ void reset() { gain = 0; }\n};\n",
    needs=("__device__",),
)
_TYPE = re.compile(r"\b(?:struct|class)\s+(?:__\w+__\s*(?:\([^)]*\)\s*)?)?(\w+)\b[^;{}()]*\{")


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    names = {m.group(1) for m in _TYPE.finditer(f.code)}
    if not names:
        return
    for number, line in enumerate(f.code.split("\n"), 1):
        match = re.match(
            r"\s*(?:inline\s+|__forceinline__\s+)*__device__\s+(?:inline\s+|__forceinline__\s+|constexpr\s+|explicit\s+)*(.*)",
            line,
        )
        if not match or "__host__" in line:
            continue
        rest = match.group(1)
        made = re.match(r"~?\s*(\w+)\s*\(\s*(?:const\s+\w+\s*&[^,()]*)?\)", rest)
        given = re.match(r"(?:\w+::)*(\w+)\s*&\s*operator\s*=\s*\(", rest)
        if (made and made.group(1) in names) or (given and given.group(1) in names):
            yield line_hit(number + f.offset, line.index("__device__"), expr=line.strip()[:90])
