"""32-bit mask in a *_sync intrinsic."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX303",
    code="sync-mask-32",
    severity=Severity.HIGH,
    phase=3,
    fix=Fix.SUGGEST,
    versions="ROCm >= 6.2 on request, always from 6.3",
    en=Text(
        "32-bit mask in a *_sync intrinsic",
        "{expr}",
        "HIP's builtins take 64-bit masks and reject other types when compiling, on wave32 as well. Before ROCm 6.2 the _sync names did not exist.",
        "A full-mask macro: 0xffffffffu on CUDA, a 64-bit value on HIP, trimmed to the lanes that exist: naming absent lanes faults on wave32. __activemask() fits where all lanes take part.",
    ),
    zh=Text(
        "*_sync 内建函数使用 32 位掩码",
        "{expr}",
        "HIP 的内建函数要求 64 位掩码，其他类型在编译时就被拒绝，wave32 也一样。ROCm 6.2 之前没有 _sync 名称。",
        "定义全掩码宏：CUDA 为 0xffffffffu，HIP 为 64 位值并裁剪到实际存在的 lane，因为在 wave32 上指明不存在的 lane 会出错。全部 lane 都参与时可用 __activemask()。",
    ),
    path="shfl.cu",
    bad="__device__ float f(float v) { return __shfl_xor_sync(0xffffffff, v, 1); }\n",
    good="__device__ float f(float v) { return __shfl_xor_sync(__activemask(), v, 1); }\n",
    needs=("_sync", "syncwarp"),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    known = ctx.project.macros.known
    shims = {name for name, takes, _, _ in f.defines() if takes and re.fullmatch(SYNC_INTRINSICS, name)}
    for call in f.calls_like(SYNC_INTRINSICS + r"|__syncwarp"):
        if not call.texts or call.name in shims or known.get(call.name) == (True, False):
            continue
        mask = call.texts[0]
        if is_full_mask_32(f, mask):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])
        elif re.fullmatch(r"\(?0[xX][0-9a-fA-F]{1,8}[uU]?\)?", mask):
            yield cpp_hit(f, call, expr=f.source(call.node)[:80])
        elif re.fullmatch(r"[A-Za-z_]\w*(?:(?:\.|->)\w+)?", mask):
            mask = re.split(r"\.|->", mask)[-1]
            where = _narrow(f, call.node, mask)
            if where or re.fullmatch(
                r"(?i)(k?full_?(warp_?)?mask|all_?lanes|warp_?(full_?)?mask|FINAL_MASK|k?WarpMask|lane_?mask_?all)",
                mask,
            ):
                if known.get(mask) is None:
                    yield cpp_hit(f, call, expr=f.source(call.node)[:80])
            elif not mask.isupper() and not _wide(f, mask):
                yield cpp_hit(f, call, expr=f.source(call.node)[:80], severity=Severity.LOW)
    masks = {re.split(r"\.|->", c.texts[0])[-1] for c in f.calls_like(SYNC_INTRINSICS + r"|__syncwarp") if c.texts}
    for n in f.nodes("init_declarator"):
        name, value = f.source(n.child_by_field_name("declarator")), f.source(n.child_by_field_name("value"))
        if name in masks and is_full_mask_32(f, value):
            yield cpp_hit(f, n, expr=f.source(n)[:80])
    for name, takes, body, line in f.defines():
        if not takes and (name in masks or re.search(r"(?i)mask|lanes", name)) and is_full_mask_32(f, body):
            yield line_hit(line, expr=f"#define {name} {body}")


def _narrow(f: CppFile, node: object, name: str) -> bool:
    """Whether the mask variable is declared with 32 bits in the same function."""
    from tree_sitter import Node

    function = f.function(node) if isinstance(node, Node) else None
    text = (function.text or b"").decode("utf-8", "replace") if function is not None else ""
    declared = rf"\b(unsigned(?: int)?|uint32_t|int|uint)\s+(?:const\s+)?{re.escape(name)}\b"
    return bool(re.search(declared, text) or re.search(rf"{declared}\s*;", f.code))  # a member of its own file


def _wide(f: CppFile, name: str) -> bool:
    """Whether something in the file makes the mask 64 bits wide, or takes it from the device."""
    wide = r"64_t|long long|ull\b|lane_?mask_t|__ballot|__activemask|\bauto\b|template"
    return bool(re.search(rf"(?i)({wide})[^;{{}}]*\b{name}\b|\b{name}\b[^;{{}}]*({wide})", f.code))


_MASK = (
    "#if defined(USE_ROCM) || defined(__HIP_PLATFORM_AMD__)\n#define FULL_WARP_MASK (~0ull >> (64 - warpSize))\n"
    "#else\n#define FULL_WARP_MASK {old}\n#endif\n"
)


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """A literal mask becomes a macro of 64 bits on HIP, trimmed to the lanes that exist."""
    if (made := lanes.full_mask(f, hit.line)) is not None:
        return made
    line = f.line_text(hit.line)
    if re.search(r"_sync\s*\(\s*[A-Za-z_]|__syncwarp", line) and not re.search(r"_sync\s*\(\s*0[xX]", line):
        return EditRefusal(hit.line, "the mask has a name: it is widened where it is defined, if that is a constant")
    found = [m for m in re.finditer(r"_sync\s*\(\s*(0[xX][fF]{8}[uU]?)\s*,", line)]
    if len(found) != 1 or "FULL_WARP_MASK" in f.code:
        return EditRefusal(hit.line, "the mask is no literal, or several stand on the line")
    old = found[0].group(1)
    if any(m != old for m in re.findall(r"_sync\s*\(\s*(0[xX][fF]{8}[uU]?)\s*,", f.code)):
        return EditRefusal(hit.line, "the file spells the mask in several ways")
    return Edit(
        hit.line, found[0].start(1), "FULL_WARP_MASK", length=len(old), define=_MASK.format(old=old),
        needs="all lanes of the wavefront take part, as on NVIDIA",
    )  # fmt: skip
