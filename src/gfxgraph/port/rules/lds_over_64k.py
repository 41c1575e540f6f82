"""More shared memory than the workgroup has."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX314",
    code="lds-over-64k",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    archs=lds_below(163841),
    en=Text(
        "More shared memory than the workgroup has",
        "{expr}: {nbytes} bytes",
        "A workgroup has 64 KiB of LDS, 160 KiB on gfx950; beyond it the launch fails.",
        "Smaller tiles or fewer stages on ROCm, chosen from the device's own limit.",
    ),
    zh=Text(
        "共享内存超过工作组上限",
        "{expr}：{nbytes} 字节",
        "工作组的 LDS 为 64 KiB，gfx950 为 160 KiB；超出则启动失败。",
        "在 ROCm 上用更小的 tile 或更少的 stage，并以设备自身的上限为准。",
    ),
    path="lds.cu",
    bad="__global__ void k() { __shared__ float tile[128][256]; }\n",
    good="__global__ void k() { __shared__ float tile[64][64]; }\n",
    needs=("__shared__", "smem", "shared"),
)
_SIZES = {
    "char": 1,
    "uint8_t": 1,
    "int8_t": 1,
    "bool": 1,
    "half": 2,
    "__half": 2,
    "__nv_bfloat16": 2,
    "short": 2,
    "uint16_t": 2,
    "float": 4,
    "int": 4,
    "unsigned": 4,
    "uint32_t": 4,
    "int32_t": 4,
    "half2": 4,
    "double": 8,
    "float2": 8,
    "int64_t": 8,
    "uint64_t": 8,
    "float4": 16,
    "int4": 16,
    "uint4": 16,
}


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for n in f.nodes("declaration") if "__shared__" in f.code else ():
        text = f.source(n)
        match = re.match(
            r"(?:static\s+)?__shared__\s+(?:__align__\(\d+\)\s*|alignas\(\d+\)\s*|volatile\s+)*(\w+)\s+\w+((?:\[[^\]]+\])+)",
            text,
        )
        if not match or match.group(1) not in _SIZES:
            continue
        nbytes = _SIZES[match.group(1)]
        for dim in re.findall(r"\[([^\]]+)\]", match.group(2)):
            value = _value(f, dim)
            nbytes = nbytes * value if value is not None else 0
        if nbytes > 65536:
            yield cpp_hit(f, n, archs=lds_below(nbytes), expr=text[:60], nbytes=str(nbytes))
    if not re.search(r"(?i)smem|shared_?mem", f.code):
        return  # before constants are looked for
    for name, value_text in f.constants().items():
        if re.search(r"(?i)smem|shared_?mem", name):
            value = _value(f, value_text)
            if value is not None and 65536 < value < 1 << 20:
                for _, line, column in f.idents_like(re.escape(name)):
                    yield line_hit(line, column, archs=lds_below(value), expr=name, nbytes=str(value))
                    break


def _value(f: CppFile, text: str, depth: int = 4) -> int | None:
    """A constant expression of literals, this file's constants and arithmetic."""
    if depth == 0 or len(text) > 80:
        return None
    total: int | None = 1
    for part in re.split(r"\*", text):
        part = part.strip().strip("()")
        if re.fullmatch(r"\d+[uUlL]*", part):
            number: int | None = int(re.sub(r"[uUlL]", "", part))
        elif re.fullmatch(r"\d+\s*\+\s*\d+", part):
            number = sum(int(p) for p in part.split("+"))
        elif re.fullmatch(r"[A-Za-z_]\w*", part):
            inner = f.expand(part)
            number = _value(f, inner, depth - 1) if inner != part else None
        else:
            number = None
        if number is None or total is None:
            return None
        total *= number
    return total
