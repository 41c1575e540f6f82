"""Shared memory, grids and barriers."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

_SIZES = {
    name: nbytes
    for nbytes, names in {
        1: "char uint8_t int8_t bool", 2: "half __half __nv_bfloat16 short uint16_t",
        4: "float int unsigned uint32_t int32_t half2", 8: "double float2 int64_t uint64_t", 16: "float4 int4 uint4",
    }.items()
    for name in names.split()
}  # fmt: skip


def lds_over_64k(f: CppFile, ctx: Context) -> Iterator[Hit]:
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


_TAIL = re.compile(r"__syncwarp|\bvolatile\b[^;]*\*|warp_?[Rr]educe")
_LOOP = r"\bfor\s*\([^;]*;[^;]*>=?\s*32u?\s*;[^)]*|\bfor\s*\([^;]*=\s*32u?\s*;[^;]*>[^;]*;[^)]*(?:>>=\s*1|/=\s*2)"
_STEP = r"\bif\s*\(\s*\(?(?:threadIdx\.x|\w*[tT]id\w*|\w*[tT]hread\w*)\s*(?:<\s*32u?|<=\s*31)\s*\)"


def warp_tail(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for node, text in functions_with(f, _TAIL):
        fenced = "__syncwarp" in text or "volatile" in text
        for line, column, found in lines_of(f, node, text, f"{_LOOP}|{_STEP}" if fenced else _STEP):
            yield line_hit(line, column, name=" ".join(found.split())[:80])
